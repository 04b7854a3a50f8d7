"""``python -m engine.bulk`` as its parent sees it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.bulk.wire import Failure, Item, Progress, Ready, Result, Start, Summary, decode, encode
from engine.config import EngineConfig
from engine.request import CompletionRequest, SamplingParams
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

_ROOT = Path(engine.__file__).parents[1]
_DEADLINE_S = 60.0


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1), seed=1))


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    started = subprocess.Popen(
        [sys.executable, "-m", "engine.bulk"],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        for stream in (started.stdin, started.stdout, started.stderr):
            with contextlib.suppress(OSError):  # what was not flushed to a process that has gone
                assert stream is not None
                stream.close()


def _start(model: str, **fields: Any) -> bytes:
    config = EngineConfig(model=model, kernels="torch", max_context_tokens=512, kv_cache_mb=8)
    return encode(Start(config, **{"max_batch": 4, **fields}))


def _item(number: int, max_tokens: int = 8) -> bytes:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return encode(Item(number, CompletionRequest(f"x{number} = ", "\n", sampling)))


def _said(process: "subprocess.Popen[bytes]", told: bytes) -> list[Any]:
    out, _ = process.communicate(told, timeout=_DEADLINE_S)
    return [decode(line) for line in out.splitlines()]


def _wait_for(process: "subprocess.Popen[bytes]", kind: type[Any]) -> Any:
    assert process.stdout is not None
    for line in process.stdout:
        if isinstance(message := decode(line), kind):
            return message
    raise AssertionError("it has ended")


def _tell(process: "subprocess.Popen[bytes]", told: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(told)
    process.stdin.flush()


def test_it_answers_everything_and_ends(process: "subprocess.Popen[bytes]", model: str) -> None:
    ready, *middle, summary = _said(process, _start(model, max_batch=0) + b"".join(map(_item, range(20))))
    assert process.returncode == 0
    assert isinstance(ready, Ready) and ready.max_batch >= 8
    assert (ready.fim_family, ready.context_tokens) == ("qwen", 512)
    results = [message for message in middle if isinstance(message, Result)]
    assert {result.id for result in results} == set(range(20))
    assert all(not result.error and result.usage.generated_tokens >= 8 for result in results)
    assert all(isinstance(message, Result | Progress) for message in middle)
    assert isinstance(summary, Summary) and summary.progress.num_done == 20
    assert summary.operations_per_s and summary.operations_per_s > 1e9


def test_items_come_while_it_runs(process: "subprocess.Popen[bytes]", model: str) -> None:
    _tell(process, _start(model))
    _wait_for(process, Ready)
    for number in range(3):
        _tell(process, _item(number))
        assert _wait_for(process, Result).id == number
    assert _wait_for(process, Progress).num_done == 3  # also while there is nothing to do
    *_, summary = _said(process, b"")
    assert summary.progress.num_done == 3


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (b"nonsense\n", "the bulk engine's wire broke"),
        (_item(0), "was not told how to compute"),
        (_start("missing.gguf"), "missing.gguf"),
    ],
)
def test_what_cannot_be_done_is_one_line(process: "subprocess.Popen[bytes]", told: bytes, message: str) -> None:
    (failure,) = _said(process, told)
    assert isinstance(failure, Failure) and message in failure.message and "\n" not in failure.message
    assert process.returncode == 1


def test_it_fails_although_more_might_come(process: "subprocess.Popen[bytes]") -> None:
    _tell(process, _start("missing.gguf"))
    assert "missing.gguf" in _wait_for(process, Failure).message
    assert process.wait(_DEADLINE_S) == 1


def test_a_line_that_is_no_item_ends_it(process: "subprocess.Popen[bytes]", model: str) -> None:
    *_, failure = _said(process, _start(model) + _start(model))
    assert failure == Failure("the bulk engine was sent Start instead of an item")
    assert process.returncode == 1


def test_told_nothing_it_says_nothing(process: "subprocess.Popen[bytes]") -> None:
    assert _said(process, b"") == []
    assert process.returncode == 0


def test_it_ends_when_nobody_listens(process: "subprocess.Popen[bytes]", model: str) -> None:
    _tell(process, _start(model) + b"".join(_item(number, max_tokens=400) for number in range(200)))
    _wait_for(process, Ready)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.close()
    process.stdin.close()
    assert process.wait(_DEADLINE_S) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_it_leaves_ctrl_c_to_its_parent_and_ends_at_once_when_told(
    process: "subprocess.Popen[bytes]", model: str
) -> None:
    _tell(process, _start(model) + b"".join(_item(number, max_tokens=400) for number in range(200)))
    _wait_for(process, Progress)
    process.send_signal(signal.SIGINT)
    _wait_for(process, Result)
    told_s = time.monotonic()
    process.terminate()
    process.wait(_DEADLINE_S)
    assert time.monotonic() - told_s < 1.0
