"""HumanEval infilling: programs with a hole, and running a filled program's tests.

The runner executes code that a model wrote. Each program gets a process of its own with a time and memory limit, an
empty folder as working directory, an empty environment and no network.
"""

import contextlib
import functools
import gzip
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_DEFAULT_DATA = Path(__file__).resolve().parents[2].parent / "shared/data/humaneval-infilling"
_LINES = "HumanEval-SingleLineInfilling.jsonl.gz"
_SPANS = "HumanEval-RandomSpanInfillingLight.jsonl.gz"
_TIMEOUT_S = 10.0
_MEMORY_BYTES = 2 << 30
# Where a network namespace cannot be had, at least Python's way to the network is closed.
_PRELUDE = "import socket\nsocket.socket = None\nsocket.create_connection = None\n"


@dataclass(frozen=True)
class Hole:
    """A program with a part of it missing, and tests that the whole must pass."""

    prefix: str
    suffix: str
    missing: str
    test: str
    entry_point: str

    @property
    def indent(self) -> str:
        """The white space that the missing part begins with."""
        return white_space(self.missing)


def load_holes(count: int) -> list[Hole]:
    """The first ``count`` missing lines after a fixed shuffle; the line feed behind the line is there already.

    Skips the test where the data is not at hand.
    """
    rows = _rows(_LINES)
    random.Random(0).shuffle(rows)
    return [_hole(row, line_end="\n") for row in rows[:count]]


def load_spans(count: int) -> list[Hole]:
    """The first ``count`` missing spans of any length, which begin and end anywhere; skips as ``load_holes`` does."""
    return [_hole(row) for row in _rows(_SPANS)[:count]]


def _rows(name: str) -> list[dict[str, str]]:
    path = Path(os.environ.get("MIDLINE_HUMANEVAL", _DEFAULT_DATA)) / name
    if not path.exists():
        pytest.skip(f"no HumanEval infilling data at {path}; set MIDLINE_HUMANEVAL to its folder")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _hole(row: dict[str, str], line_end: str = "") -> Hole:
    missing = row["canonical_solution"].removesuffix(line_end)
    return Hole(row["prompt"], line_end + row["suffix"], missing, row["test"], row["entry_point"])


def white_space(text: str) -> str:
    """The blanks and tabs that ``text`` begins with."""
    return text[: len(text) - len(text.lstrip(" \t"))]


def passes_tests(hole: Hole, filled: str) -> bool:
    """Whether the program with ``filled`` in the hole passes its tests."""
    program = f"{hole.prefix}{filled}{hole.suffix}\n{hole.test}\ncheck({hole.entry_point})\n"
    return run_program(program)


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (int(_TIMEOUT_S), int(_TIMEOUT_S)))


def run_program(program: str) -> bool:
    """Run untrusted Python; True when it comes to its end, in time and without an error."""
    sentinel = secrets.token_hex(8)  # only the end of the program prints it: leaving early is no success
    text = f"{_PRELUDE}{program}\nimport sys\nsys.__stdout__.write({sentinel!r})\n"
    with tempfile.TemporaryDirectory(prefix="midline-untrusted-") as folder:
        path = Path(folder) / "program.py"
        path.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [*_without_network(), sys.executable, "-I", "-S", str(path)],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=_limit_resources,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
            process.communicate()
        return process.returncode == 0 and output.decode(errors="replace").endswith(sentinel)


@functools.cache
def _without_network() -> list[str]:
    """Command prefix for an empty network namespace, where this user may make one."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    prefix = [unshare, "--net"] if os.geteuid() == 0 else [unshare, "--user", "--net"]
    is_allowed = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if is_allowed else []
