"""The model store: from the name of a model to its files, and the ways in and out of the store. Light.

Every place that takes a model takes the same names: one of the catalogue, the path of a ``.gguf``, a Hugging
Face folder, or ``hf:org/repo[/file]``; what ``auto`` stands for is settled before (``engine.machine.auto``).
Resolving never touches the network and never hashes; pulling does.
"""

import difflib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.catalogue import CatalogueEntry, load_catalogue
from engine.checkpoint.download import PARTIAL_DIR, ProgressSink, disk_errors, download_lock, find_partials
from engine.checkpoint.packed import packed_files
from engine.checkpoint.record import RECORD_SUFFIX, Record, read_record
from engine.config import AUTO_MODEL
from engine.errors import CheckpointError, ModelNotDownloadedError, UnknownModelError
from engine.paths import absolute_path, models_dir

HUB_PREFIX = "hf:"
_HUB_NAME = re.compile(r"hf:(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<file>(?:[\w-][\w.+-]*/)*[\w-][\w.+-]*\.gguf))?")
_WHOLE_REPO = "repo"


@dataclass(frozen=True)
class ResolvedModel:
    """A model whose files are on this machine."""

    name: str
    path: Path
    """A ``.gguf`` file or a Hugging Face folder."""
    fim_family: str
    """Prompt format to use, or ``auto`` to detect it."""


@dataclass(frozen=True)
class StoredName:
    """A name that the store can download, and where it keeps it."""

    name: str
    folder: Path
    file: str | None
    """Name of the ``.gguf`` in ``folder``; None for a whole repository of the hub."""
    entry: CatalogueEntry | None = None
    repo: str | None = None
    """``org/name`` on the hub of a name that is not in the catalogue."""

    @property
    def record_path(self) -> Path:
        """The record of the finished download."""
        return self.folder / f"{self.file or _WHOLE_REPO}{RECORD_SUFFIX}"

    @property
    def lock_path(self) -> Path:
        """Held while the model's files change; one for all names of a hub repository, which share files."""
        return models_dir() / ".locks" / f"{self.entry.name if self.entry else self.folder.name}.lock"

    def resolved(self, record: Record) -> ResolvedModel:
        """The model as ``record`` describes it."""
        is_folder = self.file is None and len(record.files) > 1
        path = self.folder if is_folder else self.folder / record.files[0].path
        return ResolvedModel(self.name, path.absolute(), self.entry.fim_family if self.entry else "auto")


@dataclass(frozen=True)
class ListedModel:
    """A model as ``midline models list`` shows it."""

    name: str
    path: Path | None
    """None if it is not downloaded."""
    size_bytes: int
    num_partial_bytes: int
    """Bytes of an unfinished download."""
    source: str | None
    entry: CatalogueEntry | None


def resolve_model(name: str) -> ResolvedModel:
    """The files of the model ``name``; never downloads and costs a few ``stat`` calls.

    Raises UnknownModelError, ModelNotDownloadedError, or CheckpointError if files are gone or cut short.
    """
    stored = parse_stored_name(name)
    if stored is None:
        return _resolve_path(name)
    record = read_record(stored.record_path)
    if record is None:
        raise ModelNotDownloadedError(f"model {name} is not downloaded; run: midline models pull {name}")
    if damage := record.find_damage(stored.folder):
        raise CheckpointError(f"model {name} is damaged: {damage}; run: midline models pull {name}")
    return stored.resolved(record)


def pull_model(name: str, progress: ProgressSink) -> ResolvedModel:
    """Download the model ``name`` unless it is there, verified against its source's hash.

    A path is only checked. Waits for another process that downloads the same model. Raises DownloadError, and
    what ``resolve_model`` raises for bad names; a repeated call goes on where an interrupted one stopped.
    """
    # Pulling needs HTTP clients and pip; a name is resolved at every start and must not import them.
    from engine.checkpoint.pull import pull_stored

    stored = parse_stored_name(name)
    if stored is None:
        return _resolve_path(name)
    with (
        disk_errors(models_dir(), name, lambda: stored.entry.size_bytes if stored.entry else 0),
        download_lock(stored.lock_path, name, progress),
    ):
        record = read_record(stored.record_path)
        if record is None or record.find_damage(stored.folder):
            record = pull_stored(stored, progress)
            for partial in _partials_of(stored):  # of a source that was given up
                _delete(partial)
    return stored.resolved(record)


def remove_model(name: str) -> int:
    """Delete the downloaded model ``name`` and what is left of unfinished downloads; returns the freed bytes.

    Raises UnknownModelError for a path, ModelNotDownloadedError if there is nothing to delete, DownloadError
    while another process downloads it.
    """
    stored = parse_stored_name(name)
    if stored is None:
        path = _resolve_path(name).path
        raise UnknownModelError(f"{path} is your own file, not a download of Midline; delete it yourself")
    with download_lock(stored.lock_path, name):
        paths = list(_paths_of(stored))
        if not paths:
            raise ModelNotDownloadedError(f"model {name} is not downloaded, nothing to remove")
        num_bytes = sum(_delete(path) for path in paths)
        for folder in (stored.folder / PARTIAL_DIR, stored.folder):
            if stored.repo and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return num_bytes


def list_models() -> list[ListedModel]:
    """The catalogue in its order, then downloads from elsewhere on the hub by name."""
    entries = [_listed(_catalogue_name(entry)) for entry in load_catalogue().values()]
    records = (read_record(path) for path in sorted(models_dir().glob(f"hf/**/*{RECORD_SUFFIX}")))
    names = sorted(record.name for record in records if record)
    return entries + [_listed(stored) for name in names if (stored := parse_stored_name(name))]


def parse_stored_name(name: str) -> StoredName | None:
    """What the store keeps under ``name``; None if it is no name of the catalogue and no ``hf:`` name."""
    if not name.strip():
        raise UnknownModelError("the model's name is empty; run: midline models list")
    if name == AUTO_MODEL:  # which stands for one that is here, wherever there is one
        raise ModelNotDownloadedError("no model is on this machine yet; run: midline models pull")
    if name.startswith(HUB_PREFIX):
        match = _HUB_NAME.fullmatch(name)
        if match is None or ".." in name:
            raise UnknownModelError(f"{name!r} is not hf:org/repo or hf:org/repo/file.gguf")
        folder = models_dir() / "hf" / match["repo"].replace("/", "--")
        return StoredName(name, folder, match["file"], repo=match["repo"])
    entry = load_catalogue().get(name)
    return _catalogue_name(entry) if entry else None


def _catalogue_name(entry: CatalogueEntry) -> StoredName:
    return StoredName(entry.name, models_dir(), f"{entry.name}.gguf", entry=entry)


def _resolve_path(name: str) -> ResolvedModel:
    path = absolute_path(name)
    if path.is_dir():
        if problem := _folder_problem(path):
            raise CheckpointError(f"{name} is not a Hugging Face model folder: {problem}")
    elif not path.is_file():
        raise UnknownModelError(_unknown_text(name))
    elif path.suffix != ".gguf":
        raise CheckpointError(f"{name} is not a .gguf file; give one, or a Hugging Face folder")
    return ResolvedModel(name, path.resolve(), "auto")


def _folder_problem(folder: Path) -> str | None:
    for file in ("config.json", "tokenizer.json"):
        if not (folder / file).is_file():
            return f"it has no {file}"
    return None if any(folder.glob("*.safetensors")) else "it has no *.safetensors"


def _unknown_text(name: str) -> str:
    known = list(load_catalogue())
    if "/" in name or "\\" in name or name.endswith(".gguf"):
        return f"no such model file: {name}; known models: {', '.join(known)}"
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown model {name!r}{hint}; known: {', '.join(known)}; or give a .gguf, a folder or hf:org/repo"


def _listed(stored: StoredName) -> ListedModel:
    record = read_record(stored.record_path)
    if record and record.find_damage(stored.folder):
        record = None
    path = stored.resolved(record).path if record else None
    size_bytes = record.size_bytes if record else stored.entry.size_bytes if stored.entry else 0
    num_partial_bytes = sum(_size_bytes(partial) for partial in _partials_of(stored))
    return ListedModel(
        stored.name, path, size_bytes, num_partial_bytes, record.source if record else None, stored.entry
    )


def _paths_of(stored: StoredName) -> Iterator[Path]:
    """What the store holds under the name: the record first, for no record may outlive its files."""
    record = read_record(stored.record_path)
    packed = packed_files(stored.resolved(record).path) if record else []
    if stored.record_path.exists():
        yield stored.record_path
    files = {stored.file} if stored.file else {file.path for file in record.files} if record else set()
    yield from (path for file in files if (path := stored.folder / file).exists())
    yield from packed
    yield from _partials_of(stored)


def _partials_of(stored: StoredName) -> list[Path]:
    if stored.file:
        return find_partials(stored.folder / stored.file)
    partial_dir = stored.folder / PARTIAL_DIR
    return list(partial_dir.iterdir()) if partial_dir.is_dir() else []


def _size_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _delete(path: Path) -> int:
    num_bytes = _size_bytes(path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return num_bytes
