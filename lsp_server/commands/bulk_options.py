"""The options of ``midline bulk``, with their help texts: a command has as many as this class has fields."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import typer

FORMATS = ("diff", "jsonl", "summary")
PROGRESS = ("auto", "rich", "json", "none")

_WHICH, _HOW, _RESULT = "Which holes", "How they are filled", "What becomes of the result"


@dataclass(frozen=True)
class BulkOptions:
    """What was typed. None, or an empty list, is what was not."""

    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATHS]...", help="Files and folders. Default: the whole workspace.")
    ] = None
    root: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The workspace. Default: the current folder.", rich_help_panel=_WHICH),
    ] = None
    kind: Annotated[
        list[str] | None,
        typer.Option(help="markers, stubs, docstrings or cursors; several times for several.", rich_help_panel=_WHICH),
    ] = None
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only files like this, as in .gitignore.", rich_help_panel=_WHICH),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="No files like this.", rich_help_panel=_WHICH),
    ] = None
    lang: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only files in this language.", rich_help_panel=_WHICH),
    ] = None
    max_holes: Annotated[int, typer.Option(min=0, help="Only the first so many; 0 is all.", rich_help_panel=_WHICH)] = 0
    cursors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Places to fill, one a line: {"file": "a.py", "line": 3, "column": 5}, from 1, in characters.',
            rich_help_panel=_WHICH,
        ),
    ] = None
    marker: Annotated[
        list[str] | None,
        typer.Option(metavar="[LANG=]TEXT", help="A further text that marks a hole.", rich_help_panel=_WHICH),
    ] = None
    list_only: Annotated[
        bool, typer.Option("--list", help="Show the holes and do nothing; needs no model.", rich_help_panel=_WHICH)
    ] = False
    json: Annotated[bool, typer.Option("--json", help="With --list: one JSON object.", rich_help_panel=_WHICH)] = False
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="As for the other commands. Default: the setting.", rich_help_panel=_HOW),
    ] = None
    max_batch: Annotated[
        int, typer.Option(min=0, help="Holes at once, at most; 0 is what is measured best.", rich_help_panel=_HOW)
    ] = 0
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one fill.", rich_help_panel=_HOW)] = 256
    context_chars: Annotated[
        int,
        typer.Option(min=0, help="Characters of other files that the model sees, such as 2000.", rich_help_panel=_HOW),
    ] = 0
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="A hole sees the fills before it in its file. Slower.", rich_help_panel=_HOW),
    ] = False
    seed: Annotated[int, typer.Option(help="Of second attempts, which are sampled.", rich_help_panel=_HOW)] = 0
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where answers are kept until the same command goes on. Default: in the cache.",
            rich_help_panel=_HOW,
        ),
    ] = None
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Write the fills into the files. Default: dry run.", rich_help_panel=_RESULT),
    ] = False
    check: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="With --apply: take back fills with which this fails. {file} stands for each changed file.",
            rich_help_panel=_RESULT,
        ),
    ] = None
    format: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(FORMATS),
            help="Of the result. Default: diff, and summary with --apply.",
            rich_help_panel=_RESULT,
        ),
    ] = None
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="For the result. Default: stdout.", rich_help_panel=_RESULT)
    ] = None
    progress: Annotated[
        str,
        typer.Option(metavar="|".join(PROGRESS), help="On stderr; json is one object a line.", rich_help_panel=_RESULT),
    ] = "auto"
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=_RESULT)
    ] = False


def as_command(work: Callable[[BulkOptions], int]) -> Callable[..., None]:
    """A function for typer whose parameters are the fields; it ends with the exit code that ``work`` returns."""

    def command(**values: object) -> None:
        raise typer.Exit(work(BulkOptions(**values)))  # type: ignore[arg-type]

    command.__signature__ = inspect.signature(BulkOptions)  # type: ignore[attr-defined]
    command.__annotations__ = get_type_hints(BulkOptions, include_extras=True)
    command.__doc__ = work.__doc__
    return command
