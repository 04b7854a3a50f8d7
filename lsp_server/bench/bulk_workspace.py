"""A workspace with holes whose right fills are known: real files, out of which bodies and ends of lines are cut.

A function's body becomes what people write until they know better, the end of a line becomes a marker; so the holes
are found by the same selection as anybody's. The same files and seed give the same workspace.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsp_server.bench.sessions import SourceFile
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.grammars import Syntax, num_errors, parse
from lsp_server.bulk.holes import Hole, KindOptions
from lsp_server.bulk.kinds.bodies import docstring_in
from lsp_server.bulk.kinds.layout import is_first_on_line
from lsp_server.bulk.kinds.unwritten import UNWRITTEN
from lsp_server.bulk.select import SelectOptions, select

HOLES_PER_FILE = 6
MAX_TOKENS = KindOptions().max_tokens
"""Of a fill, as in ``midline bulk``: what is cut out has fewer."""
_SELECTED = SelectOptions()
_MARKER = "<FILL>"
_STUBS = {
    "python": "raise NotImplementedError",
    "javascript": 'throw new Error("not implemented");',
    "typescript": 'throw new Error("not implemented");',
    "tsx": 'throw new Error("not implemented");',
    "go": 'panic("not implemented")',
    "rust": "todo!()",
    "java": 'throw new UnsupportedOperationException("not implemented");',
    "c": 'panic("not implemented");',
    "cpp": 'throw std::runtime_error("not implemented");',
}
_BODY_CHARS = range(100, 900)
_MIN_LINE_CHARS = 8
# behind what is assigned or returned; not in comments and strings
_LINE_CUT = re.compile(r"^[ \t]*[^\s#/*\"'<][^\n#\"'<]*?(?:[\w\])] = |\breturn )(?=\S)", re.MULTILINE)
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))


@dataclass(frozen=True)
class Cut:
    """``file.text[start:end]`` was taken out, and something else put in its place."""

    file: SourceFile
    start: int
    end: int
    replacement: str

    @property
    def truth(self) -> str:
        """What was there."""
        return self.file.text[self.start : self.end]


@dataclass(frozen=True)
class Task:
    """A hole, and what was there before."""

    hole: Hole
    cut: Cut

    def is_exact(self, fill: Fill) -> bool:
        """The fill is what was there, but for white space around it."""
        return fill.state is FillState.FILLED and fill.text.strip() == self.cut.truth.strip()

    def parses(self, fill: Fill) -> bool:
        """The original file with the fill in place of the truth has no more syntax errors than without."""
        if fill.state is not FillState.FILLED:
            return False
        text, language, hole = self.cut.file.text, self.hole.source.language, self.hole
        fitted = hole.before_fill + fill.text + hole.after_fill
        filled = text[: self.cut.start] + fitted + text[self.cut.end :]
        return (num_errors(language, filled) or 0) <= (num_errors(language, text) or 0)


def make_workspace(root: Path, files: Sequence[SourceFile], num_holes: int, seed: int) -> list[Task]:
    """Write the files below ``root``, an empty folder, with up to ``num_holes`` holes; returns these in their order.

    Files that have holes of their own are left out, so that what a selection finds there is what was cut.
    """
    rng = random.Random(f"bulk {seed}")
    paths = {file.name: root / file.name for file in files}
    for file in files:
        paths[file.name].parent.mkdir(parents=True, exist_ok=True)
        paths[file.name].write_text(file.text, encoding="utf-8", newline="")
    for name in {hole.source.relative for hole in select(root, [], _SELECTED).holes}:
        paths.pop(name).unlink()
    cuts: dict[str, list[Cut]] = {}
    usable = [file for file in files if file.name in paths]
    for file in rng.sample(usable, len(usable)):
        num_left = num_holes - sum(map(len, cuts.values()))
        if num_left <= 0:
            break
        cuts[file.name] = chosen_cuts(file, min(HOLES_PER_FILE, num_left), rng)
        paths[file.name].write_text(_without(file.text, cuts[file.name]), encoding="utf-8", newline="")
    return list(_matched(select(root, [], _SELECTED).holes, cuts))


def chosen_cuts(file: SourceFile, count: int, rng: random.Random) -> list[Cut]:
    """Up to so many, from top to bottom: ends of lines are at most one in six."""
    bodies, lines = list(_bodies(file)), list(_line_ends(file))
    rng.shuffle(bodies)
    rng.shuffle(lines)
    chosen: list[Cut] = []
    num_lines = -(-count // HOLES_PER_FILE)
    for candidates, num_left in ((bodies, count - num_lines), (lines, num_lines)):
        for cut in candidates:
            if num_left and all(cut.end < other.start or cut.start > other.end for other in chosen):
                chosen.append(cut)
                num_left -= 1
    return sorted(chosen, key=lambda cut: cut.start)


def _bodies(file: SourceFile) -> Iterator[Cut]:
    """Of functions; what comes first in them as their documentation stays."""
    language = file.language_id
    syntax = parse(language, file.text)
    if syntax is None or language not in _STUBS:
        return
    for function in syntax.captures(UNWRITTEN[language].functions).get("function", ()):
        block = function.child_by_field_name("body")
        if block is None or function.has_error:
            continue
        nodes = block.named_children
        if language == "python" and docstring_in(block) is not None:
            nodes = nodes[1:]
        if nodes:
            yield from _whole_lines(file, syntax, syntax.start(nodes[0]), syntax.end(nodes[-1]), _STUBS[language])


def _whole_lines(file: SourceFile, syntax: Syntax, start: int, end: int, stub: str) -> Iterator[Cut]:
    end = start + len(file.text[start:end].rstrip())
    is_alone = is_first_on_line(file.text, start) and file.text[end : end + 1] in ("", "\n")
    if is_alone and end - start in _BODY_CHARS:
        yield Cut(file, start, end, stub)


def _line_ends(file: SourceFile) -> Iterator[Cut]:
    for match in _LINE_CUT.finditer(file.text):
        line_end = file.text.find("\n", match.end())
        rest = file.text[match.end() : line_end]
        is_whole = all(rest.count(opener) == rest.count(closer) for opener, closer in _BRACKETS)
        if is_whole and len(rest) >= _MIN_LINE_CHARS:  # else the marker would break all that follows
            yield Cut(file, match.end(), line_end, _MARKER)


def _without(text: str, cuts: Sequence[Cut]) -> str:
    pieces, end = list[str](), 0
    for cut in cuts:
        pieces += [text[end : cut.start], cut.replacement]
        end = cut.end
    return "".join([*pieces, text[end:]])


def _matched(holes: Sequence[Hole], cuts: dict[str, list[Cut]]) -> Iterator[Task]:
    """The holes that were found where something was cut."""
    known: dict[tuple[str, int, int], Cut] = {}
    for name, own in cuts.items():
        moved = 0
        for cut in own:
            start = cut.start + moved
            known[name, start, start + len(cut.replacement)] = cut
            moved += len(cut.replacement) - (cut.end - cut.start)
    for hole in holes:
        if (cut_here := known.get((hole.source.relative, hole.start, hole.end))) is not None:
            yield Task(hole, cut_here)
