"""Which model fits this machine: the largest that is quick enough and has room. Light: a pure decision."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.checkpoint.catalogue import CatalogueEntry
from engine.config import EngineConfig
from engine.machine.memory import allowed_bytes
from engine.machine.predict import Rates, memory_bytes, resolve_precision, suggestion_ms

MAX_SUGGESTION_MS = 500.0
"""A suggestion that takes longer comes when the person has typed on."""


@dataclass(frozen=True)
class Verdict:
    """What ``auto`` thinks of a model on this machine."""

    entry: CatalogueEntry
    precision: str
    """The one it would be loaded in."""
    predicted_ms: float | None
    """Of the suggestion that ``engine.machine.predict`` describes; None if nothing could be measured."""
    memory_bytes: dict[str, int]
    """Weights and cache, by precision; of those that can be had here, as far as that is known."""
    reason: str
    """Why it does not fit, in one clause; empty if it does."""


def judge(entry: CatalogueEntry, config: EngineConfig, rates: Rates | None, free_bytes: int) -> Verdict:
    """The verdict on one model of the catalogue under these settings."""
    context_tokens = min(config.max_context_tokens, entry.context_tokens)
    sizes = memory_bytes(entry.size, context_tokens, config.kv_cache_mb, rates is not None and rates.is_native)
    if rates is None:
        return Verdict(entry, config.precision, None, sizes, "this machine could not be measured")
    sizes = {name: size for name, size in sizes.items() if resolve_precision(name, rates) == name}
    precision = resolve_precision(config.precision, rates)
    predicted_ms = suggestion_ms(entry.size, precision, rates)
    allowed = allowed_bytes(config.max_memory_mb, free_bytes)
    reason = ""
    if entry.is_experimental:
        reason = "experimental"
    elif sizes[precision] > allowed:  # squeezed into a smaller precision it would not be what was asked for
        reason = f"needs {sizes[precision] / 1e9:.1f} GB of memory, {allowed / 1e9:.1f} GB are allowed"
    elif predicted_ms > MAX_SUGGESTION_MS:
        reason = f"slower than {MAX_SUGGESTION_MS:.0f} ms"
    return Verdict(entry, precision, predicted_ms, sizes, reason)


def choose(verdicts: Sequence[Verdict]) -> Verdict:
    """The largest that fits; the smallest that is not experimental when none does. There must be one of these."""
    fitting = [verdict for verdict in verdicts if not verdict.reason]
    if fitting:
        return max(fitting, key=lambda verdict: verdict.entry.num_parameters)
    return min(
        (verdict for verdict in verdicts if not verdict.entry.is_experimental),
        key=lambda verdict: verdict.entry.num_parameters,
    )
