"""The peer's program: how it is found, and that it ends whatever happens. A stand-in takes its place."""

import os
from pathlib import Path

import psutil
import pytest

from engine.bench import llama_server
from engine.bench.llama_server import find_server, running_server, said_by
from engine.errors import ConfigError, ServiceError
from tests.support.llama_stand_in import HELP, pid_of, write_stand_in

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write_stand_in(tmp_path)


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, and no package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(llama_server, "_PACKAGE", "no_such_package_of_midline")
    return tmp_path


def test_the_given_path_is_taken_before_what_is_on_path(
    only_here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_stand_in(only_here)
    other = write_stand_in(tmp_path_factory.mktemp("other"))
    assert find_server(str(other)) == other
    assert find_server(None) == only_here / "llama-server"


@pytest.mark.parametrize("name", ["missing", "plain", ""])
def test_a_path_that_is_no_program_is_told(only_here: Path, name: str) -> None:
    (only_here / "plain").write_text("text")
    with pytest.raises(ConfigError, match=r"^--server is '.*': no such program; give the path of llama-server$"):
        find_server(str(only_here / name))


def test_without_any_the_remedies_are_told(only_here: Path) -> None:
    with pytest.raises(ServiceError, match=r"neither on PATH nor installed; give --server PATH, .*'\.\[peers\]'"):
        find_server(None)


def test_the_package_is_asked_where_its_program_lies(
    only_here: Path, monkeypatch: pytest.MonkeyPatch, program: Path
) -> None:
    program.rename(only_here / "packaged")
    monkeypatch.setattr(llama_server, "_PACKAGE", "json")  # some package that is installed
    monkeypatch.setattr(llama_server, "_ASK_PACKAGE", f"print({str(only_here / 'packaged')!r})")
    assert find_server(None) == only_here / "packaged"
    monkeypatch.setattr(llama_server, "_ASK_PACKAGE", "raise RuntimeError('not built')")
    with pytest.raises(ServiceError, match="neither on PATH nor installed"):
        find_server(None)


def test_help_is_read_and_what_is_no_program_is_told(program: Path, tmp_path: Path) -> None:
    assert said_by(program, "--help") == HELP
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    with pytest.raises(ServiceError, match=f"^cannot run {broken}: "):
        said_by(broken, "--help")
    with pytest.raises(ServiceError, match=f"^cannot run {broken}: "), running_server(broken, []):
        pass


def test_questions_are_answered_and_the_server_ends_with_its_context(program: Path) -> None:
    with running_server(program, ["-m", "x"]) as server:
        assert psutil.pid_exists(server.pid)
        assert os.getpgid(server.pid) != os.getpgid(0)  # an interrupt at the terminal does not reach it
        data, seconds = server.post("/completion", {"n_predict": 4})
        assert data["tokens"] == [5, 5, 5, 5] and 0.0 < seconds < 5.0
        answers, _ = server.post_all("/completion", [{"n_predict": n} for n in (1, 2, 3)])
        assert [len(answer["tokens"]) for answer in answers] == [1, 2, 3]
    assert not psutil.pid_exists(server.pid)


@pytest.mark.parametrize("error", [ServiceError("x"), KeyboardInterrupt(), SystemExit(143)])
def test_it_ends_whatever_happens(program: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), running_server(program, []):
        raise error
    assert not psutil.pid_exists(pid_of(program))


def test_one_that_does_not_want_to_end_is_killed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "stubborn")
    monkeypatch.setattr(llama_server, "_END_S", 0.2)
    with running_server(program, []) as server:
        pass
    assert not psutil.pid_exists(server.pid)


def test_one_that_ends_instead_of_starting_is_quoted(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "dies")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    with pytest.raises(ServiceError) as caught, running_server(program, []):
        pass
    # nor do settings of ours or of the user change what is measured
    assert str(caught.value) == (
        "llama-server ended with code 1 instead of starting: settings: [] | loading | error: no such model"
    )


def test_one_that_is_never_ready_is_given_up(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hangs")
    monkeypatch.setattr(llama_server, "_START_S", 1.0)
    with pytest.raises(ServiceError) as caught, running_server(program, []):
        pass
    assert str(caught.value) == "llama-server is not ready after 1 s: settings: []"
    assert not psutil.pid_exists(pid_of(program))


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("falls", r"^llama-server ended with code 7 while it was measured: settings: \[\] \| out of memory$"),
        ("refuses", "^llama-server refuses /completion: HTTP 501: not supported$"),
        ("babbles", "^llama-server's answer to /completion is no JSON object: '<html>'$"),
        ("sleeps", "^llama-server does not answer: "),
    ],
)
@pytest.mark.parametrize("is_together", [False, True])
def test_a_bad_answer_is_one_line(
    program: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, message: str, is_together: bool
) -> None:
    monkeypatch.setenv("STAND_IN", behaviour)
    monkeypatch.setattr(llama_server, "_ANSWER_S", 1.0)
    with pytest.raises(ServiceError, match=message), running_server(program, []) as server:
        if is_together:
            server.post_all("/completion", [{"n_predict": 1}, {"n_predict": 1}])
        else:
            server.post("/completion", {"n_predict": 1})


def test_a_killed_server_is_told_by_its_signal(program: Path) -> None:
    with pytest.raises(ServiceError, match="llama-server ended by signal 9"), running_server(program, []) as server:
        psutil.Process(server.pid).kill()
        server.post("/completion", {"n_predict": 1})
