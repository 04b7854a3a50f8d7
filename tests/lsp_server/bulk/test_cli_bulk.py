"""``midline bulk`` as a user has it, with a scripted engine: output, files, exit codes, errors, interrupts, kills."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.support.lsp_session import private_folders

_TEXT = 'def area(r):\n    """Of a circle."""\n    raise NotImplementedError\n\n\nname = <FILL>\n'


class Desk:
    """A workspace, and the command to use on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "ws"
        self.root.mkdir()
        (folder / "tiny.gguf").touch()
        os.utime(folder / "tiny.gguf", (1, 1))  # the same model on every desk

    def write(self, relative: str, text: str) -> Path:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def start(self, *arguments: str, mode: str = "plain", **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.support.bulk_cli", mode, "bulk"]
        return subprocess.Popen(
            [*command, "--model", str(self.folder / "tiny.gguf"), *arguments],
            cwd=self.root,
            env={**os.environ, **private_folders(self.folder), "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, mode: str = "plain", **environment: str) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments, mode=mode, **environment) as process:
            out, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def files(self) -> dict[str, bytes]:
        """What is in the workspace."""
        paths = (path for path in self.root.rglob("*") if path.is_file() and ".git" not in path.parts)
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def filled(desk: Desk) -> Desk:
    """With four files of two holes each."""
    for name in ("a", "b", "pkg/c", "pkg/d"):
        desk.write(f"{name}.py", f"# {name}\n{_TEXT}")
    return desk


def test_list_shows_the_holes_and_needs_no_model(filled: Desk) -> None:
    done = filled.run("--list", "--model", "none-such", mode="cannot")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == ["a.py:4:5\tstubs\tarea", "a.py:7:8\tmarkers\t<FILL>"]
    assert "4 stubs, 4 markers in 4 files" in done.stderr
    listing = json.loads(filled.run("--list", "--json", "--root", "..", "pkg", "--kind", "stubs").stdout)
    assert [row["place"] for row in listing["rows"]] == ["ws/pkg/c.py:4:5", "ws/pkg/d.py:4:5"]
    assert (listing["num_by_kind"], listing["num_files"]) == ({"stubs": 2}, 2)
    assert filled.run("--list", "a.py").stderr == "1 stub, 1 marker in 1 file\n"


def test_a_dry_run_prints_a_diff_and_leaves_the_files(filled: Desk) -> None:
    before = filled.files()
    done = filled.run()
    assert done.returncode == 0
    assert filled.files() == before
    subprocess.run(["git", "init", "-q"], cwd=filled.root, check=True)
    subprocess.run(["git", "apply", "-"], cwd=filled.root, input=done.stdout, text=True, check=True)
    dry = filled.files()
    assert set(dry) == set(before)
    assert all(b"value_" in content and b"<FILL>" not in content for content in dry.values())
    for name, content in before.items():
        filled.write(name, content.decode())
    applied = filled.run("--apply")
    assert applied.returncode == 0
    assert filled.files() == dry
    assert "to undo, copy" in applied.stderr
    assert "8 of 8 holes filled" in applied.stderr
    assert "8 from the journal" in applied.stderr


def test_a_journal_serves_other_formats_too(filled: Desk) -> None:
    filled.run("--quiet")
    done = filled.run("--format", "jsonl", "--progress", "json", mode="cannot")
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["file"], row["line"]) for row in rows][:3] == [("a.py", 4), ("a.py", 7), ("b.py", 4)]
    assert {row["state"] for row in rows} == {"filled"}
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["planned", *["settled"] * 8, "done"]
    assert events[-1]["report"]["num_filled"] == 8
    assert "value_" not in done.stderr, "code is in the result only"
    summary = filled.run("--format", "summary", "--out", str(filled.folder / "out"))
    assert summary.stdout == ""
    assert "stubs" in (filled.folder / "out").read_text()


def test_events_of_a_whole_run(filled: Desk) -> None:
    done = filled.run("--progress", "json", "--format", "jsonl")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    names = [event["event"] for event in events]
    assert names[:3] == ["planned", "loading", "loaded"]
    assert names.count("settled") == 8
    assert names.count("computing") >= 8
    assert events[0] == {"event": "planned", "num_holes": 8, "num_files": 4}
    engine = events[-1]["report"]["engine"]
    assert (engine["num_preemptions"], engine["padding_share"]) == (0, 0.02)


def test_old_journals_of_other_workspaces_go_but_not_its_own(filled: Desk) -> None:
    filled.run("--quiet")
    (own,) = filled.folder.rglob("*.jsonl")
    other = own.with_name("0123456789ab.jsonl")
    other.write_bytes(own.read_bytes())
    for path in (own, other):
        os.utime(path, (10**9, 10**9))
    done = filled.run("--quiet", mode="cannot")
    assert done.returncode == 0, "all is in its own journal"
    assert own.exists() and not other.exists()


def test_quiet_says_nothing(filled: Desk) -> None:
    done = filled.run("--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("diff --git a/a.py b/a.py\n")


def test_some_failed_is_exit_code_1_with_place_and_reason(filled: Desk) -> None:
    before = filled.files()
    done = filled.run("--apply", "--max-tokens", "9", mode="length")
    assert done.returncode == 1
    assert "✗ a.py:4:5 not finished within 9 tokens; a larger max_tokens allows more" in done.stderr
    assert "0 of 8 holes filled" in done.stderr
    assert filled.files() == before


@pytest.mark.parametrize("arguments", [(), ("--apply",), ("--format", "jsonl")])
def test_no_holes_is_no_error(desk: Desk, arguments: tuple[str, ...]) -> None:
    desk.write("a.py", "x = 1\n")
    done = desk.run(*arguments, mode="cannot")
    assert done.returncode == 0
    assert "no markers or stubs in 1 file\n" in done.stderr
    assert ("filled" in done.stdout) is (arguments == ("--apply",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "xml"), "--format is 'xml'; it must be one of diff, jsonl, summary"),
        (("--progress", "loud"), "--progress is 'loud'; it must be one of auto, rich, json, none"),
        (("--kind", "holes"), "unknown kind of holes 'holes'; known are"),
        (("--json",), "--json goes with --list"),
        (("--check", "true"), "--check needs --apply"),
        (("--lang", "klingon"), "klingon"),
        (("--marker", "python="), "--marker 'python=' is no text"),
        (("--model", "none-such"), "unknown model 'none-such'"),
        (("--root", "/no/such/folder"), "/no/such/folder is not a folder"),
        (("none.py",), "no such file or folder"),
        (("/",), "is outside the workspace"),
        (("--cursors", "none.jsonl"), "none.jsonl"),
        (("--kind", "cursors"), "--cursors"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(filled: Desk, arguments: tuple[str, ...], message: str) -> None:
    done = filled.run(*arguments, mode="cannot")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("midline: ")
    assert message in line


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("cannot", "midline: model tiny is damaged; run: midline models pull tiny"),
        ("die:2", "midline: the bulk engine was killed by signal 9, as when memory runs out"),
        ("exit:2", "midline: the bulk engine ended with code 3 (MemoryError: no room for 8 tensors)"),
    ],
)
def test_an_engine_that_ends_is_one_line_and_exit_code_1(filled: Desk, mode: str, message: str) -> None:
    before = filled.files()
    done = filled.run("--apply", mode=mode)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(message)
    assert filled.files() == before


def test_a_marker_of_one_s_own(desk: Desk) -> None:
    desk.write("a.py", "x = ???\n")
    desk.write("a.lua", "x = ???\ny = HERE\n")
    listed = desk.run("--list", "--marker", "lua=???", "--marker", "HERE").stdout.splitlines()
    assert listed == ["a.lua:1:5\tmarkers\t???", "a.lua:2:5\tmarkers\tHERE"]


def test_cursors_say_which_holes(filled: Desk) -> None:
    cursors = filled.folder / "cursors.jsonl"
    cursors.write_text(json.dumps({"file": "a.py", "line": 7, "column": 1}) + "\n")
    rows = list(map(json.loads, filled.run("--cursors", str(cursors), "--format", "jsonl").stdout.splitlines()))
    assert [(row["file"], row["kind"]) for row in rows] == [("a.py", "cursors")]


@pytest.mark.skipif(os.name == "nt", reason="uses a POSIX shell")
class TestCheck:
    """With ``--check``."""

    def test_fills_that_break_it_are_taken_back_and_the_others_stay(self, filled: Desk) -> None:
        before = filled.files()
        done = filled.run("--apply", "--format", "jsonl", "--check", "! grep -r 'name = value' pkg")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        states = {(row["file"], row["kind"]): row["state"] for row in rows}
        assert done.returncode == 1
        for (file, kind), state in states.items():
            is_bad = file.startswith("pkg/") and kind == "markers"
            assert state == ("reverted" if is_bad else "filled")
            content = filled.files()[file]
            assert (b"<FILL>" in content) is file.startswith("pkg/")
            assert b"NotImplementedError" not in content
            assert content != before[file]
        reasons = {row["reason"] for row in rows if row["state"] == "reverted"}
        assert reasons == {"the check fails with it: ! grep -r 'name = value' pkg"}

    def test_of_each_file_by_itself(self, filled: Desk) -> None:
        filled.write("pkg/it's.py", _TEXT)
        check = "cat {file} | (! grep -q '^# b$') || ! grep -q 'name = value' {file}"
        done = filled.run("--apply", "--format", "jsonl", "--check", check)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["file"] for row in rows if row["state"] == "reverted"] == ["b.py"]
        assert sum(row["state"] == "filled" for row in rows) == 9

    def test_one_that_changes_files_is_told(self, filled: Desk) -> None:
        check = "for f in pkg/c.py; do ! grep -q value_ $f || { echo '# mine' >> $f; false; }; done"
        done = filled.run("--apply", "--format", "jsonl", "--check", check)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 1
        assert {row["state"] for row in rows if row["file"] == "pkg/c.py"} == {"failed"}
        assert b"value_" in filled.files()["pkg/c.py"]
        (problem,) = (line for line in done.stderr.splitlines() if line.startswith("midline: "))
        assert problem.startswith("midline: pkg/c.py was changed while the check ran")
        assert "to undo, copy" in done.stderr

    def test_one_that_fails_before_any_fill_is_one_line(self, filled: Desk) -> None:
        before = filled.files()
        done = filled.run("--apply", "--check", "echo so bad; false", mode="cannot")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "midline: the check fails before any fill: 'echo so bad; false' ended with code 1 (so bad);"
            " mend that or omit --check"
        )
        assert filled.files() == before

    def test_an_interrupt_takes_everything_back(self, filled: Desk) -> None:
        before = filled.files()
        flag = filled.folder / "flag"
        check = f"if grep -rq value_ .; then touch {flag}; sleep 60; fi"
        with filled.start("--apply", "--check", check) as process:
            _wait(flag.exists)
            assert filled.files() != before
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
        assert process.returncode == 130
        assert filled.files() == before
        assert "run the same command again to go on" in err


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_an_interrupt_ends_soon_and_the_same_command_goes_on(filled: Desk) -> None:
    with filled.start("--progress", "json", mode="slow:300") as process:
        assert process.stderr is not None
        while "settled" not in process.stderr.readline():
            pass
        sent_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert time.monotonic() - sent_s < 2.0
    assert process.returncode == 130
    assert err.splitlines()[-2:] == [
        "what was computed is kept: run the same command again to go on",
        "midline: interrupted",
    ]
    rest = filled.run()
    assert rest.returncode == 0
    assert "from the journal" in rest.stderr


def test_two_runs_on_one_journal_are_refused(filled: Desk) -> None:
    with filled.start("--progress", "json", mode="slow:2000") as process:
        assert process.stderr is not None
        assert "planned" in process.stderr.readline()
        done = filled.run()
        process.kill()
    assert (done.returncode, done.stdout) == (1, "")
    assert "is in use by another run" in done.stderr


def test_a_file_that_changes_meanwhile_is_a_conflict(filled: Desk) -> None:
    with filled.start("--apply", "--progress", "json", "--format", "jsonl", mode="slow:200") as process:
        assert process.stderr is not None
        while "settled" not in process.stderr.readline():
            pass
        filled.write("a.py", "mine = 1\n")
        (filled.root / "b.py").unlink()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    problems = [line for line in err.splitlines() if line.startswith("midline: ")]
    assert problems[0].startswith("midline: a.py has changed since its holes were selected")
    assert problems[1].startswith("midline: b.py was deleted")
    files = filled.files()
    assert files["a.py"] == b"mine = 1\n"
    assert "b.py" not in files
    assert b"value_" in files["pkg/c.py"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs permissions that hold")
def test_a_read_only_file_is_told_and_the_others_are_written(filled: Desk) -> None:
    (filled.root / "a.py").chmod(0o444)
    done = filled.run("--apply")
    assert done.returncode == 1
    assert "midline: cannot write a.py" in done.stderr


def test_an_output_that_cannot_be_written_takes_the_files_back(filled: Desk) -> None:
    before = filled.files()
    done = filled.run("--apply", "--out", str(filled.folder / "none" / "out"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("midline: cannot write ")
    assert filled.files() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_below_the_journal_is_one_line(filled: Desk) -> None:
    done = filled.run("--journal", "/dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("midline: the journal /dev/full is not a regular file")


@pytest.mark.skipif(os.name == "nt", reason="has no SIGKILL")
@pytest.mark.parametrize("num_writes", [1, 2, 3, 4])
def test_a_kill_between_two_files_ends_as_if_it_had_not_been(filled: Desk, num_writes: int) -> None:
    twin = Desk(_made(filled.folder / "twin"))
    shutil.copytree(filled.root, twin.root, dirs_exist_ok=True)
    whole = twin.run("--apply", "--format", "jsonl")
    killed = filled.run("--apply", "--format", "jsonl", MIDLINE_TEST_DIE_AT_WRITE=str(num_writes))
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert sum(b"value_" in content for content in filled.files().values()) == num_writes - 1
    again = filled.run("--apply", "--format", "jsonl", mode="cannot")
    assert ("took back" in again.stderr) is (num_writes > 1)
    assert (again.returncode, again.stdout) == (whole.returncode, whole.stdout)
    assert filled.files() == twin.files()


@pytest.mark.skipif(os.name == "nt", reason="has no SIGKILL")
def test_what_a_killed_run_wrote_and_cannot_be_taken_back_yet_is_told(filled: Desk) -> None:
    filled.run("--apply", MIDLINE_TEST_DIE_AT_WRITE="4")
    (log,) = filled.folder.rglob("*.undo")
    kept = log.read_bytes()
    log.unlink()
    log.mkdir()
    done = filled.run("--apply")
    assert done.returncode == 1
    assert done.stderr.startswith(f"midline: cannot use {log}: ")
    log.rmdir()
    log.write_bytes(kept)
    assert filled.run("--apply").returncode == 0
    assert not log.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.name == "nt", reason="has no SIGKILL")
def test_kills_at_random_moments_change_nothing(desk: Desk) -> None:
    rng = random.Random(6)
    for number in range(10):
        desk.write(f"m{number}.py", f"# {number}\n{_TEXT}" + "".join(f"y{i} = <FILL>\n" for i in range(4)))
    before = desk.files()
    whole = desk.run("--format", "jsonl", "--journal", str(desk.folder / "whole"))
    command = ("--apply", "--format", "jsonl", "--journal", str(desk.folder / "journal"))
    num_kills = 0
    while num_kills < 22:
        process = desk.start(*command, mode="slow:10")
        try:
            out, _ = process.communicate(timeout=rng.uniform(0.3, 2.0))
        except subprocess.TimeoutExpired:
            process.kill()
            num_kills += 1
            out, _ = process.communicate()
        if out:  # it came to its end
            assert out == whole.stdout
            for name, content in before.items():
                desk.write(name, content.decode())
    rest = desk.run(*command)
    assert (rest.returncode, rest.stdout) == (whole.returncode, whole.stdout)
    applied = desk.files()
    for name, content in before.items():
        desk.write(name, content.decode())
    assert desk.run("--apply", "--quiet", "--journal", str(desk.folder / "whole")).returncode == 0
    assert desk.files() == applied


def _wait(is_so: object, timeout_s: float = 60.0) -> None:
    assert callable(is_so)
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
