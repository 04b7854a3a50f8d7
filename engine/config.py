"""Settings of the engine and its service: defaults, and what a value must be. Light: imports no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError

AUTO_MODEL = "auto"
"""Stands for the best model that fits this machine; see ``engine.machine.auto``."""

DEFAULT_MODEL = "qwen2.5-coder-0.5b"
"""Of benchmarks, which must not depend on what fits."""

PROMPT_FORMATS = (
    "qwen",
    "deepseek",
    "codellama",
    "seed-coder",
    "mellum",
    "codeqwen",
    "starcoder",
    "codestral",
    "aixcoder",
    "left-to-right",
)
"""Names of the prompt formats in ``engine.fim``, for those who cannot import a tokenizer."""

MAX_THREADS = 256
MAX_NICENESS = 19
MIN_CONTEXT_TOKENS = 256


@dataclass(frozen=True)
class LaneLimits:
    """How much of a lane is computed at once."""

    max_sequences: int
    """Requests that may run together."""
    max_batch_tokens: int
    """Tokens in one forward pass: a longer prompt is computed in pieces."""
    prompts_first: bool = False
    """Answers that have begun do not go on before all prompts that there is room for are computed, so that they then go
    on together, as many as possible."""


@dataclass(frozen=True)
class Profile:
    """How the engine divides its time."""

    interactive: LaneLimits
    bulk: LaneLimits
    bulk_share: float
    """Share of the time that bulk work gets even while somebody waits."""
    max_drafts: int
    """Most draft tokens of one sequence in one pass; how many are worth their rows is measured."""


# What a cancelled prefill has finished is kept piece by piece, and one layer of a piece is what a keystroke waits for:
# 402 tokens take 0.98 s in one piece, 1.02 s in pieces of 128, 1.13 s in pieces of 64.
PROFILES = {
    "completion": Profile(LaneLimits(16, 128), LaneLimits(32, 256), bulk_share=0.1, max_drafts=7),
    "batch": Profile(LaneLimits(16, 128), LaneLimits(64, 512, prompts_first=True), bulk_share=0.5, max_drafts=7),
}
"""``completion``: somebody may be waiting. ``batch``: nobody is."""


@dataclass(frozen=True)
class EngineConfig:
    """What to load and how to compute with it."""

    model: str = AUTO_MODEL
    """Catalogue name, path to a ``.gguf``, Hugging Face folder, ``hf:org/repo[/file]``, or ``auto`` (the best that is
    on this machine and quick enough)."""
    dtype: str = "auto"
    """``bfloat16``, ``float32`` or ``auto`` (bfloat16)."""
    precision: str = "auto"
    """``exact`` computes in ``dtype``, ``int8`` with int8 weights, ``mixed`` with those of four bits that the file has,
    ``int4`` with four-bit weights throughout; ``auto`` is mixed, int8 or exact: the first that can be had."""
    kernels: str = "auto"
    """``auto`` compiles the layers with the machine's C++ compiler where that makes them faster; ``torch`` never."""
    device: str = "auto"
    """``cpu``, ``cuda`` or ``auto`` (CUDA where torch finds it)."""
    num_threads: int = 0
    """Compute threads; 0 takes one per physical core that the process may use."""
    niceness: int = 0
    """How willingly the service gives way to other programs, 0 to 19; a suggestion then takes longer beside them."""
    max_memory_mb: int = 0
    """Most MiB of the process that holds the model, all of it; 0 is half of what is free. What needs more is loaded in
    a smaller precision."""
    max_context_tokens: int = 8192
    """Most tokens a prompt and its completion may hold together; bounds the KV memory."""
    fim_family: str = "auto"
    """Prompt format by name (see ``engine.fim.FAMILIES``), or ``auto`` to detect it from the vocabulary."""
    profile: str = "completion"
    """``completion`` or ``batch``: whether anybody may be waiting."""
    kv_cache_mb: int = 0
    """Memory for keys and values in MiB; 0 takes 256, or one full context if that is more."""
    draft_model: str = ""
    """A smaller model with the same vocabulary that drafts for this one; empty for none."""


@dataclass(frozen=True)
class ServiceConfig:
    """The HTTP service around one engine."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    idle_exit_s: float = 1800.0
    """The service exits after this many seconds without a request; 0 means never."""
    max_queued_requests: int = 64
    """A request beyond this many waiting ones is refused (HTTP 503)."""


Rule = tuple[Callable[[Any], bool], str]
"""Whether a value of the right type is allowed, and what to tell a user whose value is not."""


def one_of(*values: str) -> Rule:
    """A rule that lists all values."""
    return (lambda value: value in values, "one of " + ", ".join(values))


SERVICE_RULES: dict[str, Rule] = {
    "engine.model": (bool, "a model's name or path"),
    "engine.dtype": one_of("auto", "bfloat16", "float32"),
    "engine.precision": one_of("auto", "exact", "int8", "mixed", "int4"),
    "engine.kernels": one_of("auto", "torch"),
    "engine.device": one_of("auto", "cpu", "cuda"),
    "engine.num_threads": (lambda value: 0 <= value <= MAX_THREADS, f"0 (automatic) to {MAX_THREADS}"),
    "engine.niceness": (lambda value: 0 <= value <= MAX_NICENESS, f"0 (as it was started) to {MAX_NICENESS}"),
    "engine.max_memory_mb": (lambda value: value >= 0, "0 (automatic) or more MiB"),
    "engine.max_context_tokens": (lambda value: value >= MIN_CONTEXT_TOKENS, f"{MIN_CONTEXT_TOKENS} or more"),
    "engine.fim_family": one_of("auto", *PROMPT_FORMATS),
    "engine.profile": one_of(*PROFILES),
    "engine.kv_cache_mb": (lambda value: value >= 0, "0 (automatic) or more MiB"),
    "idle_exit_s": (lambda value: 0 <= value < math.inf, "0 or more seconds"),
    "max_queued_requests": (lambda value: value >= 0, "0 or more"),
}
"""Dotted path in a ``ServiceConfig`` -> rule."""


def check(config: ServiceConfig) -> None:
    """Raises ``ConfigError`` for the first value that breaks its rule."""
    for path, (is_valid, rule) in SERVICE_RULES.items():
        owner, name = (config.engine, path[len("engine.") :]) if path.startswith("engine.") else (config, path)
        value = getattr(owner, name)
        if not is_valid(value):
            raise ConfigError(f"{path} is {value!r}; it must be {rule}")
