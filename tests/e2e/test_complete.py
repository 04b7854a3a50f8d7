"""``midline complete`` as a process, with the real service and a tiny model."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.lsp_session import private_folders
from tests.support.services import find_registration, stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    write_tiny_gguf(tmp_path / "tiny.gguf", seed=2)
    (tmp_path / "a.py").write_text("def add(a, b):\n    return a + \n")
    yield tmp_path
    await stop_service(tmp_path)


def complete(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lsp_server", "complete", *arguments],
        env={**os.environ, **private_folders(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_prints_one_object_and_leaves_the_service_for_the_next(folder: Path) -> None:
    arguments = (f"{folder / 'a.py'}:2:16", "--json", "--model", str(folder / "tiny.gguf"))
    done = complete(folder, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert list(answer) == ["text", "reason", "model", "timing"]
    assert answer["reason"] is None
    assert answer["text"]
    assert answer["model"] == str(folder / "tiny.gguf")
    timing = answer["timing"]
    assert timing["prompt_tokens"] > 5
    assert timing["generated_tokens"] > 0
    assert 0 < timing["first_token_ms"] <= timing["total_ms"]
    registration = find_registration(folder)
    plain = complete(folder, *(argument for argument in arguments if argument != "--json"))
    assert plain.stdout == answer["text"] + "\n"
    assert find_registration(folder) == registration


def test_bad_positions_end_with_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x\n")
    for location in ("none.py:1:1", f"{tmp_path / 'a.py'}:9:1", f"{tmp_path}:1:1", "a.py"):
        done = complete(tmp_path, location)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("midline: ")
        assert done.stderr.count("\n") == 1
