"""Journals that nobody needs go; none that anybody might miss."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.paths import cache_dir
from lsp_server.bulk.journal import Journal, Record, default_path
from lsp_server.bulk.old_journals import remove_old_journals
from lsp_server.bulk.undo import log_path
from tests.support.bulk_editor import bulk_editor

_DAY_S = 24 * 3600


def _journal(root: Path, age_days: float) -> Path:
    path = default_path(root)
    with Journal.open(path) as journal:
        journal.add(Record("key", "text"))
    _age(path, age_days)
    return path


def _age(path: Path, age_days: float) -> None:
    then_s = time.time() - age_days * _DAY_S
    os.utime(path, (then_s, then_s))


def test_what_is_old_goes_and_what_is_not_stays(tmp_path: Path) -> None:
    old, recent, tomorrow = (_journal(tmp_path / str(days), days) for days in (30.1, 29.9, -1))
    named = tmp_path / "mine.jsonl"
    Journal.open(named).close()
    _age(named, 400)
    remove_old_journals()
    assert [path.exists() for path in (old, recent, tomorrow, named)] == [False, True, True, True]
    with Journal.open(old) as journal:
        assert len(journal) == 0
    with Journal.open(recent) as journal:
        assert len(journal) == 1


def test_it_counts_when_it_was_last_opened(tmp_path: Path) -> None:
    path = _journal(tmp_path, 100)
    with Journal.open(path):
        assert path.stat().st_mtime == pytest.approx(time.time(), abs=60)
        _age(path, 100)
        remove_old_journals()
        assert path.exists(), "it is open"
    remove_old_journals()
    assert not path.exists()


def test_one_with_files_to_be_put_back_stays(tmp_path: Path) -> None:
    path = _journal(tmp_path, 100)
    log_path(path).touch()
    remove_old_journals()
    assert path.exists()


def test_what_cannot_be_removed_disturbs_nobody(tmp_path: Path) -> None:
    first, second = _journal(tmp_path / "a", 100), _journal(tmp_path / "b", 100)
    for path in (first, second):
        path.unlink()
        path.mkdir()
        _age(path, 100)
    third = _journal(tmp_path / "c", 100)
    remove_old_journals()
    assert first.is_dir() and second.is_dir() and not third.exists()


def test_without_a_cache_there_is_nothing_to_do() -> None:
    remove_old_journals()
    assert not (cache_dir() / "bulk").exists()


def test_killed_at_any_moment_it_leaves_whole_journals_or_none(tmp_path: Path) -> None:
    program = "from lsp_server.bulk.old_journals import remove_old_journals as r\nprint(flush=True)\nwhile True: r()"
    for pause_s in (0.0, 0.002, 0.01):
        paths = [_journal(tmp_path / str(number), 100) for number in range(40)]
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            time.sleep(pause_s)
            process.send_signal(signal.SIGKILL)
        for path in paths:
            existed = path.exists()
            with Journal.open(path) as journal:
                assert (len(journal), journal.num_damaged) == (int(existed), 0)


async def test_a_run_from_the_editor_removes_them_and_goes_on_with_its_own(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    (root / "a.py").write_text("x = <FILL>\n")
    own, other = _journal(root, 100), _journal(tmp_path, 100)
    async with bulk_editor(root) as (editor, _):
        await editor.initialize()
        await editor.command("start")
        await editor.command("review")
    assert not other.exists()
    with Journal.open(own) as journal:
        assert journal.get("key") == Record("key", "text")
