"""The arguments of the commands for bulk completion, and what they come to in a workspace.

Names and defaults are those of ``midline bulk``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pygls.exceptions import JsonRpcInvalidParams
from pygls.uris import to_fs_path
from pygls.workspace import Workspace

from lsp_server.bulk.editor_files import EditorFiles
from lsp_server.bulk.editor_run import Place
from lsp_server.bulk.holes import KindOptions
from lsp_server.bulk.select import SelectOptions


@dataclass(frozen=True)
class SelectArguments:
    """Where to look, and for what."""

    root: str = ""
    """A workspace folder, as a path or a URI; may be left out where it is clear which."""
    paths: tuple[str, ...] = ()
    """URIs or paths, also relative to the folder; none is the whole folder."""
    kinds: tuple[str, ...] = SelectOptions().kinds
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    max_holes: int = 0
    max_tokens: int = KindOptions().max_tokens


@dataclass(frozen=True)
class StartArguments(SelectArguments):
    """The same, and how to fill."""

    context_chars: int = 0
    max_batch: int = 0
    seed: int = 0
    sequential: bool = False


@dataclass(frozen=True)
class RunArguments:
    """Which run."""

    run: int = 0
    """0 is the last one."""


@dataclass(frozen=True)
class ApplyArguments(RunArguments):
    """Which of its fills, and how."""

    holes: tuple[int, ...] = ()
    """Indices into the ``fills`` of a review; none is all."""
    review: bool = True
    """Whether the editor is to ask before it changes anything, if it can."""


def place_of(arguments: SelectArguments, workspace: Workspace, files: EditorFiles) -> Place:
    """Where to look. Raises ``JsonRpcInvalidParams``."""
    if arguments.max_tokens == 0:
        raise JsonRpcInvalidParams("max_tokens is 0; it must be 1 or more")
    if "cursors" in arguments.kinds:
        raise JsonRpcInvalidParams("holes at cursors come from a file; run: midline bulk --cursors FILE")
    paths = [_path_of(path) for path in arguments.paths]
    root = _root_of(arguments.root, paths, _folders_of(workspace))
    options = SelectOptions(
        kinds=arguments.kinds,
        include=arguments.include,
        exclude=arguments.exclude,
        languages=arguments.languages,
        max_holes=arguments.max_holes,
        kind_options=KindOptions(max_tokens=arguments.max_tokens),
    )
    return Place(root, tuple(root / path for path in paths), options, files)


def _folders_of(workspace: Workspace) -> list[Path]:
    """Those on this machine."""
    uris: Iterable[str | None] = [folder.uri for folder in workspace.folders.values()] or [workspace.root_uri]
    return [Path(path) for uri in uris if uri and (path := to_fs_path(uri))]


def _root_of(root: str, paths: list[Path], folders: list[Path]) -> Path:
    """The folder that is named, or the only one, or the one that the first path is in."""
    if not folders:
        raise JsonRpcInvalidParams("no folder is open; open the one whose holes are to be filled")
    if root:
        fitting = [folder for folder in folders if folder.resolve() == _path_of(root).resolve()]
    elif len(folders) == 1:
        fitting = folders
    else:
        first = paths[0].resolve() if paths and paths[0].is_absolute() else None
        fitting = [folder for folder in folders if first is not None and first.is_relative_to(folder.resolve())]
    if not fitting:
        raise JsonRpcInvalidParams(f"root must be one of the folders that are open: {', '.join(map(str, folders))}")
    return max(fitting, key=lambda folder: len(folder.parts))


def _path_of(text: str) -> Path:
    """That of a path or a file's URI. Raises ``JsonRpcInvalidParams``."""
    if ":" not in text or Path(text).is_absolute():
        return Path(text)
    path = to_fs_path(text)
    if path is None:
        raise JsonRpcInvalidParams(f"{text} is no file on this machine; save it first")
    return Path(path)
