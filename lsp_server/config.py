"""All settings of the server and the command line, with their defaults, in one tree.

The README's settings table and the VS Code extension's ``package.json`` are compared with this file by tests.
Order of precedence: defaults < user's config file < editor's settings < command-line options.
"""

from dataclasses import dataclass, field

from engine.config import EngineConfig


@dataclass(frozen=True)
class CompletionConfig:
    """When to ask and how much."""

    debounce_ms: int = 60
    """Wait at most this long after an automatic trigger for the next keystroke: less, down to nothing, the faster the
    engine answers for how fast is typed; 0 when asked explicitly."""
    multiline: str = "auto"
    """``auto`` offers blocks where one can begin, ``never`` offers one line at most."""
    max_line_tokens: int = 32
    """Most tokens generated for a single-line suggestion."""
    max_block_tokens: int = 96
    """Most tokens generated for a block."""
    block_time_limit_ms: int = 2500
    """A block ends at the first line end after this time; a line is never cut."""
    idle_work: str = "on_power"
    """``on_power`` computes ahead while the user rests, except on battery; ``always`` on battery too; ``off`` never."""


@dataclass(frozen=True)
class ContextConfig:
    """How much of the file the model sees. Windows begin and end at line borders."""

    max_prefix_chars: int = 4000
    """Text before the cursor."""
    max_suffix_chars: int = 1000
    """Text after the cursor."""


@dataclass(frozen=True)
class ServiceSettings:
    """The shared engine process."""

    idle_exit_s: float = 1800.0
    """The engine exits after this many seconds without a request; 0 means never."""


@dataclass(frozen=True)
class MidlineConfig:
    """The root of the settings tree."""

    enabled: bool = True
    """False: no request, no engine process, no CPU."""
    completion: CompletionConfig = field(default_factory=CompletionConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    service: ServiceSettings = field(default_factory=ServiceSettings)
