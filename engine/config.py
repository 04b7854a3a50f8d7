"""Settings of the engine and its service: defaults, and what a value must be. Light: imports no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError

DEFAULT_MODEL = "qwen2.5-coder-0.5b"

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
MIN_CONTEXT_TOKENS = 256


@dataclass(frozen=True)
class EngineConfig:
    """What to load and how to compute with it."""

    model: str = DEFAULT_MODEL
    """Catalogue name, path to a ``.gguf``, Hugging Face folder, or ``hf:org/repo[/file]``."""
    dtype: str = "auto"
    """``bfloat16``, ``float32`` or ``auto`` (bfloat16)."""
    device: str = "auto"
    """``cpu``, ``cuda`` or ``auto`` (CUDA where torch finds it)."""
    num_threads: int = 0
    """Compute threads; 0 takes one per physical core."""
    max_context_tokens: int = 8192
    """Most tokens a prompt and its completion may hold together; bounds the KV memory."""
    fim_family: str = "auto"
    """Prompt format by name (see ``engine.fim.FAMILIES``), or ``auto`` to detect it from the vocabulary."""


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
    "engine.device": one_of("auto", "cpu", "cuda"),
    "engine.num_threads": (lambda value: 0 <= value <= MAX_THREADS, f"0 (automatic) to {MAX_THREADS}"),
    "engine.max_context_tokens": (lambda value: value >= MIN_CONTEXT_TOKENS, f"{MIN_CONTEXT_TOKENS} or more"),
    "engine.fim_family": one_of("auto", *PROMPT_FORMATS),
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
