import hashlib
import multiprocessing
import subprocess
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from filelock import FileLock

from engine.checkpoint.download import (
    ExpectedFile,
    commit,
    disk_errors,
    download_lock,
    find_partials,
    format_bytes,
    is_verified,
    partial_path,
    require_free_disk,
)
from engine.checkpoint.record import Record, RecordedFile, read_record, write_record
from engine.errors import DownloadError
from tests.engine.checkpoint.sources import CONTENT, EXPECTED, sha256


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (98_362_432, "98.4 MB"), (491_400_064, "491 MB"),
     (999_999, "1.00 MB"), (1_117_320_768, "1.12 GB")],
)  # fmt: skip
def test_bytes_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_commit_moves_only_the_right_content(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    partial = tmp_path / "partial"
    partial.write_bytes(CONTENT)
    commit(partial, target, EXPECTED, EXPECTED.hexdigest)
    assert target.read_bytes() == CONTENT
    assert not partial.exists()
    assert is_verified(target, EXPECTED)


def test_checksum_mismatch_names_both_hashes_and_keeps_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    partial = tmp_path / "partial"
    partial.write_bytes(b"x")
    with pytest.raises(DownloadError) as caught:
        commit(partial, target, EXPECTED, sha256(b"x"))
    assert EXPECTED.hexdigest in str(caught.value)
    assert sha256(b"x") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not partial.exists()
    assert not target.exists()


def test_git_hash_of_small_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"what is up, doc?")
    # The example of the book "Pro Git".
    assert is_verified(path, ExpectedFile(16, "git-sha1", "bd9dbf5aae1a3862dd1526723246b20206e5fc37"))
    assert not is_verified(path, ExpectedFile(16, "git-sha1", hashlib.sha1(b"what is up, doc?").hexdigest()))


def test_partials_belong_to_one_target(tmp_path: Path) -> None:
    target = tmp_path / "a.gguf"
    partial = partial_path(target, EXPECTED)
    partial.parent.mkdir()
    partial.write_bytes(b"1")
    (partial.parent / "a.gguf.other-123").write_bytes(b"2")
    assert find_partials(target) == [partial]
    assert find_partials(tmp_path / "elsewhere" / "a.gguf") == []


def test_a_disk_too_small_is_told_before_starting_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"for tiny in .*: 10000 TB needed, \S+ \w+ free; free some"):
        require_free_disk(tmp_path / "not" / "yet", 10**16, "tiny")
    require_free_disk(tmp_path, 1, "tiny")


def test_a_really_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("may not mount a small disk here")
    try:
        problem = r"for tiny in .*: 300 kB needed, 0 B free"
        with pytest.raises(DownloadError, match=problem), disk_errors(folder, "tiny", lambda: len(CONTENT)):
            (folder / "file").write_bytes(CONTENT)
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_bytes(b"")
    problem = r"cannot store tiny in .*Not a directory.*; set MIDLINE_CACHE_DIR"
    with pytest.raises(DownloadError, match=problem), disk_errors(folder, "tiny", lambda: 0):
        (folder / "models").mkdir()


def _hold(lock_path: Path, is_held: Event) -> None:
    with FileLock(lock_path):
        is_held.set()
        time.sleep(60)  # until killed


def test_a_lock_held_elsewhere_is_an_error_without_a_sink(tmp_path: Path) -> None:
    lock_path = tmp_path / "locks" / "tiny.lock"
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    lock_path.parent.mkdir()
    holder = context.Process(target=_hold, args=(lock_path, is_held))
    holder.start()
    try:
        assert is_held.wait(30)
        problem = "tiny is being downloaded by another process; stop that one first"
        with pytest.raises(DownloadError, match=problem), download_lock(lock_path, "tiny"):
            pass
    finally:
        holder.kill()
        holder.join()
    with download_lock(lock_path, "tiny"):  # a killed process holds nothing
        pass


def test_records_survive_and_notice_damage(tmp_path: Path) -> None:
    record = Record("tiny", "hub x", (RecordedFile("a.gguf", 3, "sha256:00"), RecordedFile("b.json", 1, "git-sha1:0")))
    path = tmp_path / "a.midline.json"
    write_record(path, record)
    assert read_record(path) == record
    assert record.size_bytes == 4
    (tmp_path / "a.gguf").write_bytes(b"123")
    assert record.find_damage(tmp_path) == f"{tmp_path / 'b.json'} is missing"
    (tmp_path / "b.json").write_bytes(b"12")
    assert record.find_damage(tmp_path) == f"{tmp_path / 'b.json'} has 2 bytes instead of 1"
    (tmp_path / "b.json").write_bytes(b"1")
    assert record.find_damage(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": [{"path": 1}]}', '{"files": [], "extra": 1}'])
def test_a_broken_record_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.midline.json"
    path.write_text(text)
    assert read_record(path) is None
