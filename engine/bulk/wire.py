"""What the bulk engine's process is told and what it says: one JSON object a line each way. Light: imports no torch.

In: first a ``Start``, then any number of ``Item``, at any time; the end of the input means that no more will come.
Out: one ``Ready``, then ``Result`` as they are done, in any order, and ``Progress`` now and then; at the end one
``Summary``. A ``Failure`` without an id ends the process.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import cattrs

from engine.config import EngineConfig
from engine.errors import ServiceError
from engine.request import CompletionRequest, Usage

AUTO_BATCH = 0
"""Stands for the batch size that is measured to be best."""


@dataclass(frozen=True)
class Start:
    """How to compute."""

    engine: EngineConfig
    max_batch: int = AUTO_BATCH
    """Most requests that run together."""
    is_sorted: bool = True
    """False: in the order of arrival; for measuring."""


@dataclass(frozen=True)
class Item:
    """One request."""

    id: int
    request: CompletionRequest


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    model: str
    precision: str
    fim_family: str
    context_tokens: int
    memory_bytes: int
    """Weights and cache."""
    max_batch: int
    """Requests that run together, as chosen."""
    load_s: float


@dataclass(frozen=True)
class Result:
    """An answer; ``error`` is one line if there is none."""

    id: int
    text: str = ""
    reason: str = ""
    """``FinishReason``"""
    usage: Usage = field(default_factory=Usage)
    mean_logprob: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Progress:
    """How it goes; counts are of the whole run."""

    seconds: float
    """Since ``Ready``."""
    num_done: int
    num_running: int
    num_waiting: int
    num_computed_tokens: int
    num_cached_tokens: int
    """Of prompts: not computed, since they were there."""
    num_generated_tokens: int
    padding_share: float
    """Of the keys that attention has read, those that no request wanted."""
    kv_used_share: float
    """Of the cache's blocks, those that running requests hold."""
    num_preemptions: int = 0
    peak_memory_bytes: int = 0
    """Of the process so far."""


@dataclass(frozen=True)
class Summary:
    """The last word."""

    progress: Progress
    max_kv_used_share: float
    max_running: int
    decode_seconds: float
    """Spent in passes in which every row was a token of an answer."""
    decode_tokens: int
    """Answer tokens from those passes."""
    num_operations: float
    """Multiplications and additions that had to be computed (two a weight and row, and attention's)."""
    operations_per_s: float | None = None
    """The machine's measured rate of products; None where it was not measured."""


@dataclass(frozen=True)
class Failure:
    """Nothing can be computed: one line for the user."""

    message: str


Told = Start | Item
Said = Ready | Result | Progress | Summary | Failure
_KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Start, Item, Ready, Result, Progress, Summary, Failure)
}
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


def encode(message: Told | Said) -> bytes:
    """One line with its end."""
    return json.dumps({"kind": type(message).__name__.lower(), **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Any:
    """What ``encode`` was given. Raises ``ServiceError`` for anything else."""
    try:
        data = json.loads(line)
        kind = _KINDS[data.pop("kind")]
        return _CONVERTER.structure(data, kind)
    except (ValueError, KeyError, TypeError, AttributeError, cattrs.BaseValidationError) as error:
        raise ServiceError(f"the bulk engine's wire broke ({type(error).__name__})") from None
