import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.engine import Engine
from engine.machine.threads import ThreadCount, automatic_threads, count_threads
from tests.support.tiny_checkpoints import write_tiny_gguf


def _topology(folder: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        (folder / f"cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu{cpu}/topology/thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("usable", "quota", "expected"),
    [
        ({0, 1, 2, 3}, math.inf, ThreadCount(2, "physical cores")),
        ({0, 2}, math.inf, ThreadCount(1, "physical cores that this process may use")),  # both on one core
        ({0, 1}, math.inf, ThreadCount(2, "physical cores")),
        ({0, 1, 2, 3}, 1.5, ThreadCount(1, "a CPU quota of 1.5")),
        ({0, 1, 2, 3}, 0.2, ThreadCount(1, "a CPU quota of 0.2")),
        ({0, 1, 2, 3}, 2.0, ThreadCount(2, "physical cores")),
    ],
)
def test_one_thread_for_each_core_that_may_be_used(
    tmp_path: Path, usable: set[int], quota: float, expected: ThreadCount
) -> None:
    topology = _topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert automatic_threads(frozenset(usable), 2, quota, topology) == expected


@pytest.mark.parametrize(("num_usable", "num_cores", "expected"), [(8, 4, 4), (2, 4, 2), (8, 0, 8), (0, 0, 1)])
def test_without_a_topology_the_number_of_cores_is_the_limit(
    tmp_path: Path, num_usable: int, num_cores: int, expected: int
) -> None:
    found = automatic_threads(frozenset(range(num_usable)), num_cores, math.inf, tmp_path / "nothing")
    assert found.num_threads == expected


@given(st.frozensets(st.integers(0, 63)), st.integers(0, 64), st.floats(0.01, 128))
@settings(derandomize=True, max_examples=200)
def test_there_is_always_a_thread_and_never_one_too_many(usable: frozenset[int], num_cores: int, quota: float) -> None:
    found = automatic_threads(usable, num_cores, quota, Path("nothing"))
    assert 1 <= found.num_threads <= max(1, len(usable))
    assert found.num_threads <= max(1, math.floor(quota))


def test_setting_and_environment_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert count_threads(5) == ThreadCount(5, "engine.num_threads")
    assert count_threads() == ThreadCount(3, "OMP_NUM_THREADS")
    for unusable in ("0", "", "4,2", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", unusable)
        assert "physical cores" in count_threads().source or "quota" in count_threads().source


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity masks")
def test_a_process_that_may_use_one_processor_computes_with_one_thread() -> None:
    cpu = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, [{cpu}])\nfrom engine.machine.threads import count_threads\n"
    script += "print(count_threads().num_threads)"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


_LOAD = """
import os, sys, torch
from engine.config import EngineConfig
from engine.engine import Engine
engine = Engine.load(EngineConfig(model=sys.argv[1], num_threads=2))
print(engine.info.num_threads, torch.get_num_threads(), torch.get_num_interop_threads())
print(os.environ["TOKENIZERS_PARALLELISM"])
"""


def test_an_engine_has_its_threads_to_itself(tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-c", _LOAD, model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2 2 1\nfalse\n"
    engines = [Engine.load(EngineConfig(model=model, num_threads=1)) for _ in range(2)]  # a second one bears it
    assert [engine.info.num_threads for engine in engines] == [1, 1]
