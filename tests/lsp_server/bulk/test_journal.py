"""A journal keeps what it was given through kills, damage and full disks, and belongs to one run."""

import json
import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Usage
from lsp_server.bulk import journal as journal_module
from lsp_server.bulk.journal import Journal, Record, default_path
from lsp_server.errors import JournalError, JournalInUseError
from tests.support.journal_writer import record
from tests.support.mounts import small_disk

_ROOT = Path(__file__).parents[3]


def _record(number: int) -> Record:
    return Record(f"key{number}", f"täxt {number}\n", "stop", Usage(10, 5, number), -0.25 * number, 1 + number % 2)


def _fill(path: Path, count: int) -> None:
    with Journal.open(path) as journal:
        for number in range(count):
            journal.add(_record(number))


def _held(journal: Journal) -> int:
    """How many records there are; checks that they are the first ones, whole."""
    count = len(journal)
    assert [journal.get(f"key{number}") for number in range(count)] == [_record(number) for number in range(count)]
    return count


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "journal.jsonl"
    _fill(path, 5)
    with Journal.open(path) as journal:
        assert _held(journal) == 5
        assert journal.num_damaged == 0
        assert journal.get("key5") is None
        journal.add(_record(5))
        assert journal.get("key5") == _record(5)
    with Journal.open(path) as journal:
        assert _held(journal) == 6


def test_a_later_record_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    later = Record("key1", "other", mean_logprob=None)
    with Journal.open(path) as journal:
        journal.add(_record(1))
        journal.add(later)
        assert journal.get("key1") == later
    with Journal.open(path) as journal:
        assert journal.get("key1") == later
        assert len(journal) == 1


def test_it_is_lines_of_json_that_only_the_user_may_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    _fill(path, 3)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines[0] == {"midline_journal": 1}
    assert [line["key"] for line in lines[1:]] == ["key0", "key1", "key2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_default_paths_are_in_the_cache_and_tell_workspaces_apart(tmp_path: Path) -> None:
    one, two = default_path(tmp_path / "a" / "src"), default_path(tmp_path / "b" / "src")
    assert one != two
    assert one == default_path(tmp_path / "a" / "x" / ".." / "src")
    assert one.parent.parent == Path(os.environ["MIDLINE_CACHE_DIR"])


# ---- what a crash leaves


def test_cut_anywhere_it_holds_the_whole_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    _fill(path, 2)
    content = path.read_bytes()
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        num_whole = max(content[:size].count(b"\n") - 1, 0)
        with Journal.open(path) as journal:
            assert (_held(journal), journal.num_damaged) == (num_whole, 0)
            for number in range(num_whole, 2):
                journal.add(_record(number))
        assert path.read_bytes() == content


@settings(max_examples=150, derandomize=True, deadline=None)
@given(data=st.data())
def test_damage_costs_the_lines_it_is_in(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "journal.jsonl"
    _fill(path, 4)
    lines = path.read_bytes().split(b"\n")[:-1]
    number = data.draw(st.integers(0, 3))
    other = [b"", b"null", b"[1]", b'{"key": "k"}', b"\0" * 40, b'{"key0": 1', b"[" * 100_000, b"\xff\xfe", b"\r"]
    lines[number + 1] = data.draw(st.sampled_from(other))
    path.write_bytes(b"\n".join(lines) + b"\n")
    with Journal.open(path) as journal:
        assert journal.num_damaged == 1
        assert [journal.get(f"key{n}") for n in range(4)] == [None if n == number else _record(n) for n in range(4)]
        journal.add(_record(number))
    with Journal.open(path) as journal:
        assert _held(journal) == 4


def _start_writer(path: Path) -> "subprocess.Popen[bytes]":
    """A process that has the journal and adds records."""
    command = [sys.executable, "-m", "tests.support.journal_writer", str(path)]
    writer = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline()
    return writer


def _kill(writer: "subprocess.Popen[bytes]") -> int:
    """How many records it had added for certain."""
    writer.kill()
    with writer:
        assert writer.stdout is not None
        said = writer.stdout.read().split(b"\n")[:-1]
    return int(said[-1]) if said else 0


def test_killed_at_any_moment_it_holds_all_that_was_added(tmp_path: Path) -> None:
    """One journal through 20 kills."""
    path, rng = tmp_path / "journal.jsonl", random.Random(0)
    count = 0
    for _ in range(20):
        writer = _start_writer(path)
        time.sleep(rng.uniform(0.0, 0.03))
        num_certain = _kill(writer)
        with Journal.open(path) as journal:
            assert len(journal) >= max(count, num_certain)
            count = len(journal)
            assert [journal.get(f"key{number}") for number in range(count)] == [record(n) for n in range(count)]
            assert journal.num_damaged == 0
    assert count > 20


# ---- whose it is


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    link = tmp_path / "link.jsonl"
    with Journal.open(path) as journal:
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(JournalInUseError, match=r"journal.jsonl is in use by another run.*--journal"):
                Journal.open(name)
        journal.add(_record(0))
    with Journal.open(link) as journal:
        assert _held(journal) == 1


def test_one_process_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = _start_writer(path)
    with pytest.raises(JournalInUseError):
        Journal.open(path)
    _kill(writer)
    Journal.open(path).close()


def test_a_failed_open_leaves_it_free(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"not ours\n")
    with pytest.raises(JournalError):
        Journal.open(path)
    path.unlink()
    Journal.open(path).close()


@pytest.mark.parametrize(
    "content", [b"import os\n", b"{}\n", b'{"midline_journal": "1"}\n', b"x", b'{"midline_journal": 1} \n']
)
def test_another_file_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "main.py"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"main.py is not a journal of Midline; move it away, or name another"):
        Journal.open(path)
    assert path.read_bytes() == content


def test_another_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"midline_journal": 27}\nnew ways')
    with pytest.raises(JournalError, match=r"another version of Midline \(format 27\)"):
        Journal.open(path)
    assert path.read_bytes() == b'{"midline_journal": 27}\nnew ways'


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(JournalError, match="not a regular file; name another"):
            Journal.open(path)
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=r"cannot use the journal .*file/journal.jsonl: "):
        Journal.open(tmp_path / "file" / "journal.jsonl")


# ---- the disk


@pytest.fixture
def num_syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    calls: list[int] = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        fsync(descriptor)
        calls.append(descriptor)

    monkeypatch.setattr(journal_module.os, "fsync", counted)
    yield lambda: len(calls)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_synced_without_another_record_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_syncs: Callable[[], int]
) -> None:
    assert journal_module._SYNC_EVERY_S <= 1.0
    monkeypatch.setattr(journal_module, "_SYNC_EVERY_S", 0.05)
    with Journal.open(tmp_path / "journal.jsonl") as journal:
        _until(lambda: num_syncs() == 1)  # the header
        journal.add(_record(0))
        journal.add(_record(1))
        _until(lambda: num_syncs() == 2)
        time.sleep(0.3)
        assert num_syncs() == 2  # nothing new, nothing to do
        monkeypatch.setattr(journal_module, "_SYNC_EVERY_S", 60.0)
        time.sleep(0.1)
        journal.add(_record(2))
    assert num_syncs() == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "journal"]


def test_a_sync_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal_module, "_SYNC_EVERY_S", 0.01)
    monkeypatch.setattr(journal_module.os, "fsync", fail)
    journal = Journal.open(tmp_path / "journal.jsonl")
    _until(lambda: not journal._syncer.is_alive())
    with pytest.raises(JournalError, match="Input/output error"):
        journal.add(_record(0))
    with pytest.raises(JournalError, match="Input/output error"):
        journal.close()
    monkeypatch.undo()
    Journal.open(tmp_path / "journal.jsonl").close()


def test_a_full_disk_costs_only_what_does_not_fit(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        path = disk / "journal.jsonl"
        count = 0
        journal = Journal.open(path)
        with pytest.raises(
            JournalError, match=r"cannot use the journal .*: No space left on device; make room"
        ) as caught:
            for count in range(10_000):
                journal.add(_record(count))
        assert "\n" not in str(caught.value)
        assert 10 < count < 10_000
        with pytest.raises(JournalError, match="No space left"):  # not even what would fit: a line might be half there
            journal.add(Record("small", ""))
        with pytest.raises(JournalError, match="No space left"):
            journal.close()
        assert path.read_bytes().endswith(b"}\n")
        with Journal.open(path) as again:
            assert _held(again) == count
            assert again.num_damaged == 0


def test_a_read_only_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        path = disk / "journal.jsonl"
        _fill(path, 2)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(JournalError, match=r"cannot use the journal .*journal.jsonl: Read-only file system"):
            Journal.open(path)
