"""What a benchmark is asked to measure: defaults, and what a value must be. Light: imports no torch."""

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config import DEFAULT_MODEL
from engine.errors import ConfigError

PUBLISHED = "published"
"""Stands for a model's name: random weights in the shape of the system whose figures are printed beside ours."""

SUBMITTED, SORTED = "submitted", "sorted"
ORDERS = {SUBMITTED: (SUBMITTED,), SORTED: (SORTED,), "both": (SUBMITTED, SORTED)}
"""Value of ``--order`` -> the orders that are measured."""

_MAX_CAP = 1024
_MAX_REQUESTS = 100_000
_MAX_TYPED_TOKENS = 512


@dataclass(frozen=True)
class BenchSettings:
    """What both benchmarks have in common."""

    models: tuple[str, ...] = (PUBLISHED,)
    """Names as ``EngineConfig.model`` takes them, or ``PUBLISHED``."""
    caps: tuple[int, ...] = (1, 4, 16, 64)
    """How many requests may run together; each is measured by itself."""
    num_requests: int = 32
    seed: int = 0
    """Of prompts, lengths and arrivals: the same seed gives the same requests."""
    out: str = ""
    """Absolute path of the folder for JSON, CSV and plot; empty for none."""


@dataclass(frozen=True)
class ServingSettings(BenchSettings):
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
class OfflineSettings(BenchSettings):
    """Nobody waits: all requests are there at the beginning."""

    models: tuple[str, ...] = (PUBLISHED, DEFAULT_MODEL)
    orders: tuple[str, ...] = ORDERS["both"]
    prompt_tokens: tuple[int, int] = (128, 512)
    """Least and most of a request; equally likely."""
    output_tokens: tuple[int, int] = (32, 96)


QUICK_SERVING = ServingSettings(caps=(1, 4), num_requests=6)
QUICK_OFFLINE = OfflineSettings(
    models=(PUBLISHED,), caps=(1, 4), num_requests=6, prompt_tokens=(32, 64), output_tokens=(8, 16)
)
"""Enough to see that everything works; the numbers mean little."""


def parse_caps(text: str) -> tuple[int, ...]:
    """Numbers between commas. Raises ``ConfigError``."""
    rule = f"whole numbers from 1 to {_MAX_CAP} between commas, such as 1,4,16"
    if len(text) > 200 or not all(part.strip().isdecimal() for part in text.split(",")):
        raise ConfigError(f"--caps is {text[:40]!r}; it must be {rule}")
    return tuple(int(part) for part in text.split(","))


def check(settings: BenchSettings) -> None:
    """Raises ``ConfigError`` for the first option that cannot be used."""
    caps = settings.caps
    is_valid = bool(caps) and all(1 <= cap <= _MAX_CAP for cap in caps) and len(set(caps)) == len(caps)
    _require("caps", ",".join(map(str, caps)), is_valid, f"different numbers from 1 to {_MAX_CAP}")
    num_requests = settings.num_requests
    _require("requests", num_requests, 1 <= num_requests <= _MAX_REQUESTS, f"1 to {_MAX_REQUESTS}")
    _require("seed", settings.seed, 0 <= settings.seed < 2**63, "0 or more, and below 2^63")
    if isinstance(settings, ServingSettings):
        rate, typed = settings.rate_per_s, settings.num_typed_tokens
        _require("rate", rate, 0.0 < rate < math.inf, "above 0 requests per second")
        _require("typed", typed, 1 <= typed <= _MAX_TYPED_TOKENS, f"1 to {_MAX_TYPED_TOKENS} tokens")


def make_folder(path: str) -> Path:
    """Make the folder for results. Raises ``ConfigError`` when nothing can be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"--out is {folder}: cannot write there: {error.strerror}; give another folder") from None
    return folder


def is_published_workload(settings: BenchSettings) -> bool:
    """Whether the published figures may stand beside: the requests are as many, as long and as frequent."""
    free: dict[str, Any] = {"models": (), "caps": (), "seed": 0, "out": ""}
    if isinstance(settings, OfflineSettings):
        free["orders"] = ()
    return replace(settings, **free) == replace(type(settings)(), **free)


def _require(option: str, value: object, is_valid: bool, rule: str) -> None:
    if not is_valid:
        raise ConfigError(f"--{option} is {value}; it must be {rule}")
