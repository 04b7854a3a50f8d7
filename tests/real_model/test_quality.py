"""How good the fills are: HumanEval single-line infilling, greedy, run against the tests of each problem."""

import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine.engine import Engine
from engine.request import CompletionRequest, SamplingParams
from tests.real_model.conftest import load
from tests.support.humaneval import Hole, load_holes, passes_tests, run_program

pytestmark = pytest.mark.timeout(1500)
_SAMPLING = SamplingParams(max_tokens=96, stop=("\n",))


def _fill(engine: Engine, prefix: str, suffix: str) -> str:
    return "".join(delta.text for delta in engine.generate(CompletionRequest(prefix, suffix, _SAMPLING)))


def _at_line_start(engine: Engine, hole: Hole) -> str:
    """The benchmark's own convention: the model writes the whole line."""
    return _fill(engine, hole.prefix, hole.suffix) + "\n"


def _after_indentation(engine: Engine, hole: Hole) -> str:
    """As an editor has it: the cursor stands behind the indentation, the line's end after it."""
    return hole.indent + _fill(engine, hole.prefix + hole.indent, "\n" + hole.suffix) + "\n"


@dataclass(frozen=True)
class _Outcome:
    """What became of each hole."""

    is_exact: list[bool]
    is_passed: list[bool]
    is_indented: list[bool]


def _measure(engine: Engine, count: int, fill: Callable[[Engine, Hole], str]) -> _Outcome:
    holes = load_holes(count)
    lines = [fill(engine, hole) for hole in holes]
    pairs = list(zip(lines, holes, strict=True))
    outcome = _Outcome(
        is_exact=[line == hole.line for line, hole in pairs],
        is_passed=[passes_tests(hole, line) for line, hole in pairs],
        is_indented=[line[: len(line) - len(line.lstrip(" \t"))] == hole.indent for line, hole in pairs],
    )
    print(
        f"\n{engine.info.model} {engine.info.dtype} {fill.__name__} n={count}: exact {_share(outcome.is_exact):.4f}, "
        f"pass@1 {_share(outcome.is_passed):.4f}, indented {_share(outcome.is_indented):.4f}"
    )
    return outcome


def _share(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def _loss_by_chance(before: list[bool], after: list[bool]) -> float:
    """The probability that as many holes are lost, or more, when losing and winning one are equally likely.

    McNemar's test in its exact, one-sided form: of the holes whose outcomes differ, the lost ones are binomial.
    """
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    won = sum(new and not old for old, new in zip(before, after, strict=True))
    num_different = lost + won
    return sum(math.comb(num_different, k) for k in range(lost, num_different + 1)) / 2**num_different


def test_the_paired_test_tells_a_loss_from_chance() -> None:
    assert _loss_by_chance([True] * 10 + [False] * 10, [True] * 20) == 1.0
    assert _loss_by_chance([True] * 10, [True] * 10) == 1.0
    assert _loss_by_chance([True] * 10, [True] * 5 + [False] * 5) == 1 / 32
    assert _loss_by_chance([True, True, False], [False, True, True]) == 0.75


def test_the_runner_tells_right_from_wrong() -> None:
    hole = load_holes(1)[0]
    assert passes_tests(hole, hole.line)
    assert not passes_tests(hole, hole.indent + "return None\n")
    assert not passes_tests(hole, hole.indent + "while True: pass\n")
    assert not passes_tests(hole, hole.indent + "raise SystemExit\n")
    assert not passes_tests(hole, hole.indent + "import os; os._exit(0)\n")


def test_the_runner_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        # by the module that Python's own way is made of, which no prelude can close
        connect = f"import _socket; s = _socket.socket(2, 1); s.connect(('127.0.0.1', {port}))"
        assert run_program("x = 1")
        if os.geteuid() == 0:
            assert not run_program(connect)
        assert not run_program(f"import socket; socket.create_connection(('127.0.0.1', {port}))")
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.real_model
def test_the_default_model_passed_its_self_test(default_engine: Engine) -> None:
    assert default_engine.info.self_test == "passed"


@pytest.mark.real_model
def test_default_model_at_line_start(default_engine: Engine) -> None:
    """What ``auto`` precision rounds away costs nothing that can be told from chance."""
    rounded = _measure(default_engine, 150, _at_line_start)
    exact = _measure(load(default_engine.info.model, precision="exact"), 150, _at_line_start)
    print(
        f"lost by chance: exact matches {_loss_by_chance(exact.is_exact, rounded.is_exact):.2f}, "
        f"passed {_loss_by_chance(exact.is_passed, rounded.is_passed):.2f}"
    )
    assert _share(rounded.is_passed) >= 0.48  # llama.cpp with the same file: 0.507
    for before, after in ((exact.is_exact, rounded.is_exact), (exact.is_passed, rounded.is_passed)):
        assert _share(after) >= _share(before) - 0.03
        assert _loss_by_chance(before, after) > 0.05


@pytest.mark.real_model
def test_default_model_after_the_indentation(default_engine: Engine) -> None:
    outcome = _measure(default_engine, 100, _after_indentation)
    assert _share(outcome.is_passed) >= 0.58  # without token healing: 0.20
    assert all(outcome.is_indented)


@pytest.mark.real_model_large
def test_large_model_at_line_start() -> None:
    outcome = _measure(load("qwen2.5-coder-1.5b"), 80, _at_line_start)
    assert _share(outcome.is_passed) >= 0.82  # llama.cpp with the same file: 0.8625


@pytest.mark.real_model_large
def test_experimental_model_continues_left_to_right() -> None:
    if os.environ.get("CI"):
        pytest.skip("only the default model is downloaded in CI")
    engine = load("smollm2-135m")
    assert (engine.info.fim_family, engine.info.self_test) == ("left-to-right", "skipped")
    assert _fill(engine, "def add(a, b):\n    return", "") == " a + b"
    assert _fill(engine, "The capital of France is", "") == " Paris."
