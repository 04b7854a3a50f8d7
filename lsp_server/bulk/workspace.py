"""Which files of a folder a person writes: not the ignored, the secret, the vendored, the generated.

Looks at names and folders only; what a file contains is judged where it is read. Links to folders are never followed,
a link to a file stands for its target. Inside, paths are absolute strings with slashes; those of folders end with one.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

from lsp_server.context.secret import is_secret
from lsp_server.errors import UsageError


def _words(text: str) -> list[str]:
    return text.split()


_LEFT_OUT_FOLDERS = frozenset(
    _words("""
    node_modules bower_components jspm_packages vendor vendored third_party third-party thirdparty site-packages
    dist build target out obj _build cmake-build-debug cmake-build-release Pods Carthage DerivedData
    .venv venv __pycache__ __pypackages__ .tox .nox .eggs .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache
    .gradle .terraform .next .nuxt .svelte-kit .parcel-cache .turbo .yarn .pnpm-store .dart_tool .nyc_output htmlcov
    .git .hg .svn .jj .idea .vs
    """)
)
"""Folders of other people's code and of what tools make."""

_GENERATED_NAMES = GitIgnoreSpec.from_lines(
    _words("""
    *.min.js *.min.mjs *.min.css *.bundle.js *.map *.lock *.snap
    package-lock.json npm-shrinkwrap.json pnpm-lock.yaml go.sum
    *_pb2.py *_pb2.pyi *_pb2_grpc.py *.pb.go *.pb.cc *.pb.h *.g.dart *.freezed.dart *.generated.* *.designer.cs
    """)
)


def ignore_spec(lines: Sequence[str]) -> GitIgnoreSpec:
    """Patterns as in ``.gitignore``; lines that are none are passed over, as git does."""
    return GitIgnoreSpec.from_lines(filter(is_pattern, lines))


@cache
def is_pattern(line: str) -> bool:
    """Whether a line of a ``.gitignore`` means anything to it, if only nothing."""
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Skipped:
    """A file or folder that was left out for a reason a person may want to know."""

    relative: str
    reason: str
    """Without the name."""


@dataclass
class Listing:
    """Files to read, by their name relative to the workspace, and what was left out."""

    files: dict[str, Path] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    """Those of ``files`` and ``skipped`` that were asked for by name."""
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True)
class _Layer:
    """One file of ignore patterns, for all below the folder ``base``."""

    base: str
    spec: GitIgnoreSpec


_Layers = tuple[_Layer, ...]
"""From the outermost to the innermost: the last that says anything decides."""


class Workspace:
    """A folder whose files may be completed."""

    def __init__(self, root: Path) -> None:
        """Raises ``UsageError`` where ``root`` is no folder."""
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder; give the workspace's folder")
        self.root = Path(os.path.realpath(root))
        self._base = _slashed(self.root)
        self._layers_above = _layers_above(self.root)

    def locate(self, path: Path) -> Path:
        """A path as a person gave it, absolute and without links. Raises ``UsageError`` if it is missing or outside."""
        try:
            found = path.resolve(strict=True)
        except FileNotFoundError:
            raise UsageError(f"no such file or folder: {path}") from None
        except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a NUL
            raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        if not found.is_relative_to(self.root):
            raise UsageError(f"{path} is outside the workspace {self.root}; give paths inside it or another workspace")
        return found

    def relative_source(self, name: str) -> str:
        """The name of a file that a person gave relative to the workspace, or absolute. Raises ``UsageError``."""
        path = self.locate(self.root / name)
        relative = self._relative(path.as_posix())
        if path.is_dir():
            raise UsageError(f"{name} is a folder; give a file")
        if is_secret(relative):
            raise UsageError(f"{name} may hold secrets and is never read")
        return relative

    def list_files(self, paths: Iterable[Path]) -> Listing:
        """All files below ``paths``, sorted by name. One that is named itself is taken whatever ignores it.

        Raises ``UsageError`` for a path that is missing or outside.
        """
        listing, links = Listing(), list[str]()
        for path in map(self.locate, paths):
            if path.is_dir():
                links += self._walk(_slashed(path), listing)
            else:
                listing.named.add(self._relative(path.as_posix()))
                self._take(path.as_posix(), listing)
        for link in sorted(set(links)):
            self._take_target(link, listing)
        listing.files = dict(sorted(listing.files.items()))
        listing.skipped = sorted(set(listing.skipped), key=lambda skipped: skipped.relative)
        return listing

    def _relative(self, path: str) -> str:
        return path[len(self._base) :] or "."

    def _walk(self, folder: str, listing: Listing) -> Iterator[str]:
        """Take the files below a folder; what comes out are links to files."""
        pending = [(folder, self._layers_of(folder) or ())]
        while pending:
            folder, layers = pending.pop()
            layers += _layers_in(folder)
            try:
                entries = list(os.scandir(folder))
            except OSError as error:
                listing.skipped.append(Skipped(self._relative(folder), f"cannot be read: {error.strerror}"))
                continue
            for entry in entries:
                path, is_folder = folder + entry.name, entry.is_dir(follow_symlinks=False)
                if _is_left_out(path, is_folder, layers):
                    continue
                if is_folder:
                    pending.append((path + "/", layers))
                elif not entry.is_symlink():
                    self._take(path, listing)
                elif not os.path.isdir(path):
                    yield path

    def _take(self, path: str, listing: Listing) -> None:
        relative = self._relative(path)
        if is_secret(relative):
            listing.skipped.append(Skipped(relative, "may hold secrets"))
        elif (printable := relative.encode("utf-8", "backslashreplace").decode()) != relative:
            listing.skipped.append(Skipped(printable, "has a name that is not UTF-8"))
        else:
            listing.files[relative] = Path(path)

    def _take_target(self, link: str, listing: Listing) -> None:
        target = Path(os.path.realpath(link)).as_posix()
        if not os.path.exists(link):
            listing.skipped.append(Skipped(self._relative(link), "is a link that leads nowhere"))
        elif not target.startswith(self._base):
            listing.skipped.append(Skipped(self._relative(link), "is a link that leads outside the workspace"))
        elif not self._is_left_out(target):
            self._take(target, listing)

    def _is_left_out(self, path: str) -> bool:
        folder = _slashed(Path(path).parent)
        layers = self._layers_of(folder)
        return layers is None or _is_left_out(path, False, layers + _layers_in(folder))

    def _layers_of(self, folder: str) -> _Layers | None:
        """The ignore patterns that reach a folder from above it, or None if it is left out itself."""
        layers, above = self._layers_above, self._base
        for name in folder[len(self._base) :].split("/")[:-1]:
            layers += _layers_in(above)
            if _is_left_out(above + name, True, layers):
                return None
            above += name + "/"
        return layers


def _slashed(folder: Path) -> str:
    return folder.as_posix().rstrip("/") + "/"


def _is_left_out(path: str, is_folder: bool, layers: _Layers) -> bool:
    name = path.rpartition("/")[2]
    if name in _LEFT_OUT_FOLDERS if is_folder else _GENERATED_NAMES.match_file(name):
        return True
    if is_folder and os.path.exists(path + "/pyvenv.cfg"):
        return True
    return _is_ignored(path, is_folder, layers)


def _is_ignored(path: str, is_folder: bool, layers: _Layers) -> bool:
    for layer in reversed(layers):
        verdict = layer.spec.check_file(path[len(layer.base) :] + "/" * is_folder).include
        if verdict is not None:
            return verdict
    return False


def _layers_above(root: Path) -> _Layers:
    """The ignore patterns of the repository that ``root`` is in; none if they ignore ``root`` itself."""
    top = next((folder for folder in (root, *root.parents) if os.path.exists(folder / ".git")), root)
    layers = _layers_from(top / ".git/info/exclude", top)
    for folder in reversed([folder for folder in root.parents if folder.is_relative_to(top)]):
        layers += _layers_in(_slashed(folder))
        child = folder / root.relative_to(folder).parts[0]
        if _is_ignored(child.as_posix(), True, layers):
            return ()
    return layers


def _layers_in(folder: str) -> _Layers:
    return _layers_from(Path(folder, ".gitignore"), Path(folder))


def _layers_from(file: Path, base: Path) -> _Layers:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.is_file() else []
    except OSError:
        return ()
    return (_Layer(_slashed(base), ignore_spec(lines)),) if lines else ()
