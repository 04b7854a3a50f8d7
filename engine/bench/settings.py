"""What a benchmark is asked to measure: defaults, and what a value must be. Light: imports no torch."""

import math
import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import DEFAULT_MODEL, SERVICE_RULES
from engine.errors import ConfigError

PUBLISHED = "published"
"""Stands for a model's name: random weights in the shape of the system whose figures are printed beside ours."""

SUBMITTED, SORTED = "submitted", "sorted"
ORDERS = {SUBMITTED: (SUBMITTED,), SORTED: (SORTED,), "both": (SUBMITTED, SORTED)}
"""Value of ``--order`` -> the orders that are measured."""

_MAX_COUNT = 1024
_MAX_REQUESTS = 100_000
_MAX_TYPED_TOKENS = 512
_MAX_ROUNDS = 1000
_MIN_REPETITIONS = 3
_MAX_CACHED_TOKENS = 2**20


@dataclass(frozen=True)
class BenchSettings:
    """What all benchmarks have in common."""

    models: tuple[str, ...] = (PUBLISHED,)
    """Names as ``EngineConfig.model`` takes them, or ``PUBLISHED``."""
    out: str = ""
    """Absolute path of the folder for JSON, CSV and plot; empty for none."""


@dataclass(frozen=True)
class WorkloadSettings(BenchSettings):
    """Of a benchmark that sends requests."""

    caps: tuple[int, ...] = (1, 4, 16, 64)
    """How many requests may run together; each is measured by itself."""
    num_requests: int = 32
    seed: int = 0
    """Of prompts, lengths and arrivals: the same seed gives the same requests."""


@dataclass(frozen=True)
class ServingSettings(WorkloadSettings):
    """People type: requests arrive at their own times, whatever the engine does."""

    num_requests: int = 24
    rate_per_s: float = 16.0
    """Mean of the Poisson process of arrivals."""
    num_buffers: int = 4
    num_prefix_tokens: int = 160
    """What stands in a buffer when it is opened."""
    num_typed_tokens: int = 48
    """By how much each request of a buffer is longer than the one before."""
    output_tokens: tuple[int, int] = (6, 20)
    """Least and most of a request; equally likely."""
    target_ms: float = 50.0
    """A first token that comes later is late."""
    is_superseding: bool = False
    """Whether a buffer's request replaces the one before that is still running, as in an editor."""


@dataclass(frozen=True)
class OfflineSettings(WorkloadSettings):
    """Nobody waits: all requests are there at the beginning."""

    models: tuple[str, ...] = (PUBLISHED, DEFAULT_MODEL)
    orders: tuple[str, ...] = ORDERS["both"]
    prompt_tokens: tuple[int, int] = (128, 512)
    """Least and most of a request; equally likely."""
    output_tokens: tuple[int, int] = (32, 96)


@dataclass(frozen=True)
class StepSettings(BenchSettings):
    """One forward pass: what it costs by the number of its rows, and where the time goes."""

    models: tuple[str, ...] = (DEFAULT_MODEL,)
    precision: str = "auto"
    """As ``EngineConfig.precision``."""
    num_cached_tokens: int = 512
    """Context before the rows, computed already."""
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 64, 256, 512)
    """New tokens in a pass; each is measured."""
    num_rounds: int = 7
    """How often everything is measured, in turn."""


@dataclass(frozen=True)
class PeersSettings(BenchSettings):
    """Midline and llama.cpp's server in turn on the same file."""

    models: tuple[str, ...] = (DEFAULT_MODEL,)
    server: str = ""
    """Absolute path of ``llama-server``."""
    speculation: str = ""
    """The peer's options for drafting; empty for the best of those that are tried."""
    data: str = ""
    """Absolute pattern of files with code; empty for Python's own library."""
    precision: str = "auto"
    """As ``EngineConfig.precision``."""
    num_repetitions: int = 5
    seed: int = 0
    """Of prompts and of places in the code."""
    num_tokens: int = 64
    """Generated behind a prompt."""
    num_code_prompts: int = 4
    """In a repetition of decoding with drafts."""
    num_trial_prompts: int = 2
    """On which the ways of drafting are tried."""
    num_speculations: int = 5
    """Ways of drafting that are tried, at most."""
    num_keystrokes: int = 24
    """In a line, at most."""
    num_together: int = 32


QUICK_SERVING = ServingSettings(caps=(1, 4), num_requests=6)
QUICK_OFFLINE = OfflineSettings(
    models=(PUBLISHED,), caps=(1, 4), num_requests=6, prompt_tokens=(32, 64), output_tokens=(8, 16)
)
QUICK_STEP = StepSettings(models=(PUBLISHED,), num_cached_tokens=32, rows=(1, 8, 16), num_rounds=2)
QUICK_PEERS = PeersSettings(
    num_repetitions=_MIN_REPETITIONS,
    num_tokens=16,
    num_code_prompts=1,
    num_trial_prompts=1,
    num_speculations=2,
    num_keystrokes=4,
    num_together=8,
)
"""Enough to see that everything works; the numbers mean little."""


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """Numbers between commas. Raises ``ConfigError``."""
    rule = f"whole numbers from 1 to {_MAX_COUNT} between commas, such as 1,4,16"
    if len(text) > 200 or not all(part.strip().isdecimal() for part in text.split(",")):
        raise ConfigError(f"--{option} is {text[:40]!r}; it must be {rule}")
    return tuple(int(part) for part in text.split(","))


def check(settings: BenchSettings) -> None:
    """Raises ``ConfigError`` for the first option that cannot be used."""
    if isinstance(settings, WorkloadSettings):
        _check_workload(settings)
    if isinstance(settings, StepSettings):
        _check_step(settings)
    if isinstance(settings, PeersSettings):
        _check_peers(settings)


def _check_workload(settings: WorkloadSettings) -> None:
    _require_counts("caps", settings.caps)
    num_requests = settings.num_requests
    _require("requests", num_requests, 1 <= num_requests <= _MAX_REQUESTS, f"1 to {_MAX_REQUESTS}")
    _require_seed(settings.seed)
    if isinstance(settings, ServingSettings):
        rate, typed = settings.rate_per_s, settings.num_typed_tokens
        _require("rate", rate, 0.0 < rate < math.inf, "above 0 requests per second")
        _require("typed", typed, 1 <= typed <= _MAX_TYPED_TOKENS, f"1 to {_MAX_TYPED_TOKENS} tokens")


def _check_step(settings: StepSettings) -> None:
    _require_precision(settings.precision)
    _require_counts("rows", settings.rows)
    num_cached, num_rounds = settings.num_cached_tokens, settings.num_rounds
    _require("context", num_cached, 0 <= num_cached <= _MAX_CACHED_TOKENS, f"0 to {_MAX_CACHED_TOKENS} tokens")
    _require("rounds", num_rounds, 1 <= num_rounds <= _MAX_ROUNDS, f"1 to {_MAX_ROUNDS}")


def _check_peers(settings: PeersSettings) -> None:
    try:
        shlex.split(settings.speculation)
    except ValueError as error:
        raise ConfigError(f"--peer-spec is {settings.speculation!r}: {error}") from None
    is_real = PUBLISHED not in settings.models
    _require("model", PUBLISHED, is_real, "a model that llama.cpp can load too: a .gguf file, or its name")
    _require_precision(settings.precision)
    _require_seed(settings.seed)
    count = settings.num_repetitions
    _require("repetitions", count, _MIN_REPETITIONS <= count <= _MAX_ROUNDS, f"{_MIN_REPETITIONS} to {_MAX_ROUNDS}")


def make_folder(path: str) -> Path:
    """Make the folder for results. Raises ``ConfigError`` when nothing can be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"--out is {folder}: cannot write there: {error.strerror}; give another folder") from None
    return folder


def is_published_workload(settings: WorkloadSettings) -> bool:
    """Whether the published figures may stand beside: the requests are as many, as long and as frequent."""
    free: dict[str, Any] = {"models": (), "caps": (), "seed": 0, "out": ""}
    if isinstance(settings, OfflineSettings):
        free["orders"] = ()
    return replace(settings, **free) == replace(type(settings)(), **free)


def is_asked_comparison(settings: PeersSettings) -> bool:
    """Whether the ratios that are asked may stand beside: it is measured as much as they are meant for."""
    free: dict[str, Any] = {"models": (), "out": "", "server": "", "speculation": "", "data": "", "seed": 0}
    free |= {"precision": "auto", "num_repetitions": _MIN_REPETITIONS}
    return replace(settings, **free) == replace(PeersSettings(), **free)


def _require_precision(precision: str) -> None:
    is_precision, rule = SERVICE_RULES["engine.precision"]
    _require("precision", repr(precision), is_precision(precision), rule)


def _require_seed(seed: int) -> None:
    _require("seed", seed, 0 <= seed < 2**63, "0 or more, and below 2^63")


def _require_counts(option: str, counts: tuple[int, ...]) -> None:
    is_valid = bool(counts) and all(1 <= count <= _MAX_COUNT for count in counts) and len(set(counts)) == len(counts)
    _require(option, ",".join(map(str, counts)), is_valid, f"different numbers from 1 to {_MAX_COUNT}")


def _require(option: str, value: object, is_valid: bool, rule: str) -> None:
    if not is_valid:
        raise ConfigError(f"--{option} is {value}; it must be {rule}")
