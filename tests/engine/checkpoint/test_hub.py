import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from engine.checkpoint import hub as hub_module
from engine.checkpoint.download import partial_path
from engine.checkpoint.hub import HubUnavailableError, fetch_files, find_repo
from engine.errors import DownloadError
from tests.engine.checkpoint.conftest import point_hub_to
from tests.engine.checkpoint.sources import CONTENT, EXPECTED, REVISION, FileServer, RecordingProgress, serving


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store" / "tiny.gguf"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "RETRY_PAUSE_S", 0.0)


def fetch(target: Path, progress: RecordingProgress) -> None:
    fetch_files(find_repo("org/repo"), {"tiny.gguf": target}, progress)


def test_what_a_repository_holds(hub: FileServer) -> None:
    hub.files = {"tiny.gguf": CONTENT, "config.json": b"{}"}
    hub.small_files = frozenset({"config.json"})
    repo = find_repo("org/repo")
    assert repo.revision == REVISION
    assert repo.files["tiny.gguf"] == EXPECTED
    assert repo.files["config.json"].digest == f"git-sha1:{hashlib.sha1(b'blob 2' + bytes(1) + b'{}').hexdigest()}"


def test_files_are_fetched_at_the_revision_and_verified(
    hub: FileServer, target: Path, progress: RecordingProgress, tmp_path: Path
) -> None:
    hub.files = {"tiny.gguf": CONTENT, "config.json": b"{}", "empty.txt": b""}
    hub.small_files = frozenset({"config.json", "empty.txt"})
    targets = {"tiny.gguf": target, "config.json": tmp_path / "config.json", "empty.txt": tmp_path / "empty.txt"}
    fetch_files(find_repo("org/repo"), targets, progress)
    assert [path.read_bytes() for path in targets.values()] == [CONTENT, b"{}", b""]
    assert progress.updates[-1] == (len(CONTENT) + 2, len(CONTENT) + 2)
    assert not list(partial_path(target, EXPECTED).parent.iterdir())
    hub.requests.clear()
    fetch_files(find_repo("org/repo"), targets, progress)  # all is there: only the listing is asked for
    assert [path.split("?")[0] for path, _ in hub.requests] == ["/api/models/org/repo"]


def test_a_connection_that_breaks_is_taken_up_again(hub: FileServer, target: Path, progress: RecordingProgress) -> None:
    hub.files = {"tiny.gguf": CONTENT}
    hub.break_after_bytes = 120_000
    fetch(target, progress)
    assert target.read_bytes() == CONTENT
    assert [wanted for path, wanted in hub.requests if "resolve" in path] == [None, "bytes=120000-", "bytes=240000-"]


def test_a_broken_download_is_finished_by_the_next_call(
    hub: FileServer, target: Path, progress: RecordingProgress
) -> None:
    hub.files = {"tiny.gguf": CONTENT}
    hub.break_after_bytes = 100_000
    hub.num_breaks = 1
    hub_status = iter([200])

    def find(path: str) -> bytes | None:
        if "resolve" in path:
            hub.status = next(hub_status, 503)
        else:
            hub.status = 200
        return FileServer.find(hub, path)

    hub.find = find  # type: ignore[method-assign]
    with pytest.raises(DownloadError) as caught:
        fetch(target, progress)
    assert str(caught.value).startswith("the download of tiny.gguf broke at 100 kB of 300 kB (")
    assert str(caught.value).endswith("repeat the command to go on from there")
    assert not isinstance(caught.value, HubUnavailableError)
    assert not target.exists()
    del hub.find
    hub.status = 200
    hub.requests.clear()
    fetch(target, progress)
    assert target.read_bytes() == CONTENT
    assert [wanted for path, wanted in hub.requests if "resolve" in path] == ["bytes=100000-"]


def test_a_server_without_ranges_starts_anew(hub: FileServer, target: Path, progress: RecordingProgress) -> None:
    hub.files = {"tiny.gguf": CONTENT}
    hub.ignores_ranges = True
    hub.break_after_bytes = 100_000
    hub.num_breaks = 1
    fetch(target, progress)
    assert target.read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_and_discarded(hub: FileServer, target: Path, progress: RecordingProgress) -> None:
    hub.files = {"tiny.gguf": CONTENT}
    hub.wrong_hashes = True
    with pytest.raises(DownloadError, match=f"checksum mismatch for tiny.gguf: .*{'0' * 64}, got {EXPECTED.hexdigest}"):
        fetch(target, progress)
    assert not target.exists()
    assert not list((target.parent / ".partial").iterdir())


def test_a_hub_that_delivers_nothing_is_unavailable(hub: FileServer, target: Path, progress: RecordingProgress) -> None:
    hub.files = {"tiny.gguf": CONTENT}
    hub.break_after_bytes = 0
    with pytest.raises(HubUnavailableError, match=r"the hub does not deliver tiny\.gguf \("):
        fetch(target, progress)


def test_a_missing_repository(hub: FileServer) -> None:
    with pytest.raises(HubUnavailableError, match="other/repo") as caught:
        find_repo("other/repo")
    assert "\n" not in str(caught.value)


def test_offline_switch(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnavailableError, match="switched off by HF_HUB_OFFLINE"):
        find_repo("org/repo")
    assert hub.requests == []


def test_a_refused_connection_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    point_hub_to("http://127.0.0.1:9", monkeypatch)
    started_s = time.monotonic()
    with pytest.raises(HubUnavailableError, match=r"the hub at http://127.0.0.1:9 cannot be reached \("):
        find_repo("org/repo")
    assert time.monotonic() - started_s < 5


def test_a_hub_that_never_answers_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        point_hub_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        started_s = time.monotonic()
        with pytest.raises(HubUnavailableError):
            find_repo("org/repo")
        assert time.monotonic() - started_s < 10


def test_a_name_that_never_resolves_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    point_hub_to("http://hub.invalid", monkeypatch)
    monkeypatch.setattr(hub_module, "REACH_DEADLINE_S", 0.3)
    is_over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: is_over.wait(60))
    started_s = time.monotonic()
    with pytest.raises(HubUnavailableError, match="did not answer within"):
        find_repo("org/repo")
    assert time.monotonic() - started_s < 5
    is_over.set()


def test_endpoint_and_token_of_the_environment_and_a_separate_file_server(hub: FileServer, tmp_path: Path) -> None:
    hub.files = {"tiny.q4_k_m.gguf": CONTENT}
    with serving(FileServer(files=hub.files, break_after_bytes=200_000)) as storage:
        hub.redirect_to = storage.url
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_test", "MIDLINE_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "lsp_server", "models", "pull", "hf:org/repo"]
        pulled = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    path = Path(pulled.stdout.strip())
    assert path == tmp_path / "models" / "hf" / "org--repo" / "tiny.q4_k_m.gguf"
    assert path.read_bytes() == CONTENT
    assert [path.split("?")[0] for path, _ in hub.requests if "/resolve/" not in path] == ["/api/models/org/repo"]
    assert set(hub.tokens) == {"Bearer hf_test"}
    assert [wanted for _, wanted in storage.requests] == [None, "bytes=200000-"]
    assert set(storage.tokens) == {None}  # the token is for the hub alone
