"""What ``auto`` stands for: of what is here, by what was measured; in the end a service's name as any other."""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import pytest

from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ModelNotDownloadedError
from engine.machine import auto
from engine.machine.auto import known_machine, measured_machine, model_here, model_to_pull, settled
from engine.machine.record import Machine, MachineKey, machine_key, read_machine, record_suggestion
from engine.service.registration import ServiceFiles, normalised
from tests.support.machine import EXPERIMENTAL, FAST, LARGE, SLOW, SMALL, keep_machine, keep_model

CONFIG = EngineConfig()


@pytest.fixture
def never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(key: MachineKey) -> NoReturn:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(auto, "_measure", fail)


Measured = Callable[[Machine], list[MachineKey]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Has measuring find a machine; gives the keys it was measured for."""

    def find(machine: Machine) -> list[MachineKey]:
        keys: list[MachineKey] = []

        def measure(key: MachineKey) -> Machine:
            keys.append(key)
            time.sleep(0.05)  # long enough for others to come
            return replace(machine, measured_at_s=time.time())

        monkeypatch.setattr(auto, "_measure", measure)
        return keys

    return find


@pytest.mark.usefixtures("never_measured")
class TestWithoutMeasuring:
    def test_a_name_stays(self) -> None:
        config = EngineConfig(model="hf:org/repo")
        assert settled(config) == config

    def test_the_only_one_here_is_taken_whatever_fits(self) -> None:
        for name in (SMALL, LARGE):
            keep_model(EXPERIMENTAL)
            keep_model(name)
            assert settled(CONFIG) == replace(CONFIG, model=name)
            os.unlink(resolve_model(name).path)

    def test_none_is_told_with_the_remedy(self) -> None:
        keep_model(EXPERIMENTAL)
        assert settled(CONFIG) == CONFIG
        with pytest.raises(ModelNotDownloadedError, match="no model is on this machine yet; run: midline models pull"):
            resolve_model(CONFIG.model)
        with pytest.raises(ModelNotDownloadedError):
            Engine.load(CONFIG)

    def test_a_damaged_one_is_not_here(self) -> None:
        keep_model(SMALL)
        keep_model(LARGE)
        resolve_model(LARGE).path.write_bytes(b"too long")
        assert settled(CONFIG).model == SMALL

    def test_of_several_the_best_by_what_is_known(self) -> None:
        keep_model(SMALL)
        keep_model(LARGE)
        for known, name in ((SLOW, SMALL), (FAST, LARGE)):
            keep_machine(known)
            assert settled(CONFIG).model == name

    def test_a_machine_without_torch_takes_the_smallest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auto, "machine_key", lambda config: replace(machine_key(config), torch=""))
        keep_model(SMALL)
        keep_model(LARGE)
        assert settled(CONFIG).model == SMALL
        assert measured_machine(CONFIG).error.startswith("the engine is not installed")
        assert model_to_pull(CONFIG, measured_machine).entry.name == SMALL

    def test_a_name_and_auto_find_the_same_service(self) -> None:
        keep_model(SMALL)
        keep_model(LARGE)
        keep_machine(FAST)
        keys = [
            ServiceFiles.for_engine(normalised(settled(EngineConfig(model=name)))) for name in ("auto", LARGE, SMALL)
        ]
        assert keys[0] == keys[1] != keys[2]

    def test_a_folder_that_cannot_be_used_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("MIDLINE_CACHE_DIR", str(tmp_path / "file"))
        machine = measured_machine(CONFIG)
        assert machine.rates is None
        assert machine.error.endswith("cannot be used (Not a directory); set MIDLINE_CACHE_DIR to another folder")


def test_several_are_measured_once_and_the_answer_is_kept(measured: Measured) -> None:
    keys = measured(Machine(FAST, free_bytes=64 * 10**9))
    keep_model(SMALL)
    keep_model(LARGE)
    assert model_here(CONFIG, known_machine) == SMALL  # as long as nothing is known
    assert [settled(CONFIG).model for _ in range(3)] == [LARGE] * 3
    assert keys == [machine_key(CONFIG)]
    assert settled(replace(CONFIG, num_threads=77)).model == LARGE  # another machine, so to say
    assert len(keys) == 2


def test_callers_at_the_same_time_measure_once(measured: Measured) -> None:
    keys = measured(Machine(FAST, free_bytes=64 * 10**9))
    found: list[Machine] = []
    threads = [threading.Thread(target=lambda: found.append(measured_machine(CONFIG))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 1 and len(found) == 4 and found == [found[0]] * 4


def test_a_failure_is_kept_too_until_it_is_asked_for_anew(measured: Measured) -> None:
    keys = measured(Machine(rates=None, error="it broke"))
    assert [measured_machine(CONFIG).error for _ in range(2)] == ["it broke"] * 2
    assert len(keys) == 1
    assert measured_machine(CONFIG, is_anew=True).error == "it broke"
    assert len(keys) == 2


def test_times_of_suggestions_survive_measuring_but_not_measuring_anew(measured: Measured) -> None:
    measured(Machine(FAST))
    record_suggestion(machine_key(CONFIG), SMALL, "int8", 99.0)  # by an engine that was started by its name
    assert measured_machine(CONFIG).rates == FAST
    assert measured_machine(CONFIG).suggestion_ms == {f"{SMALL} int8": 99.0}
    assert measured_machine(CONFIG, is_anew=True).suggestion_ms == {}


def test_a_disturbed_measurement_is_repeated_later(measured: Measured) -> None:
    keys = measured(Machine(FAST))
    keep_machine(SLOW, num_busy_cores=1.4)
    assert measured_machine(CONFIG).rates == SLOW
    keep_machine(SLOW, num_busy_cores=1.4, measured_at_s=time.time() - 7200)
    assert measured_machine(CONFIG).rates == FAST
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("raise SystemExit('no such instruction')", "this machine could not be measured: no such instruction"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it ended with code -9"),
        ("print('{}')", "this machine could not be measured: not the rates of a machine"),
        ("print('nonsense')", "this machine could not be measured: "),
        ("import time; time.sleep(60)", "it took more than 0 s"),
    ],
)
def test_a_measurement_that_breaks_is_one_line(
    script: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real process, with another program in place of the interpreter."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(auto, "_MEASURE_TIMEOUT_S", 0.4 if "sleep" in script else 30.0)
    machine = measured_machine(CONFIG)
    assert machine.rates is None and error in machine.error and "\n" not in machine.error
    kept = read_machine(machine_key(CONFIG))
    assert kept is not None and asdict(kept) == asdict(machine)
