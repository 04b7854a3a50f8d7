"""Settings of the engine and its service, with their defaults. Light: imports no torch."""

from dataclasses import dataclass, field

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
