"""The offline workload: everything is there at the beginning, and nobody waits. Imports torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.bench.published import OFFLINE_KV_MB
from engine.bench.roofline import MachineRates, ceiling, measure_rates
from engine.bench.settings import PUBLISHED, SORTED, OfflineSettings
from engine.bench.subject import Subject, capped, request_of
from engine.bench.workloads import Item, longest_first, offline_workload
from engine.engine import Engine
from engine.machine.synthetic import CONTEXT_TOKENS
from engine.model.config import ModelConfig
from engine.request import Finished, Lane

_BYTES_PER_VALUE = 2  # of a key or value in bfloat16
_ROUNDING_TOKENS = 32  # a request takes whole blocks


@dataclass(frozen=True)
class OfflineRow:
    """What one cap and order have given."""

    cap: int
    order: str
    wall_s: float
    output_tokens_per_s: float
    kv_peak_share: float
    """Of all blocks, those that were reserved at the worst moment."""
    recomputed_tokens: int
    """Tokens that were computed a second time, as after a preemption."""
    cached_tokens: int
    padding_share: float
    """Of the keys that attention reads, those that no request wants."""
    ceiling_s: float | None
    """The least time that the machine's rates allow; None where it is not known."""
    times_ceiling: float | None


class _Tally:
    """Counts what the loop computes."""

    def __init__(self, engine: Engine) -> None:
        self._cache = engine.cache
        self.num_rows = 0
        self.num_wanted_keys = 0
        self.num_read_keys = 0
        self.peak_blocks = 0

    def on_pass(self, lane: Lane, num_rows: int, seconds: float, num_keys: tuple[int, int]) -> None:
        """A pass is complete."""
        self.num_rows += num_rows
        self.num_wanted_keys += num_keys[0]
        self.num_read_keys += num_keys[1]
        self.peak_blocks = max(self.peak_blocks, self._cache.num_used)

    def on_end(self, lane: Lane, finished: Finished) -> None:
        """A request has ended."""

    def on_waste(self, lane: Lane, num_tokens: int) -> None:
        """Nothing is cancelled here."""


def measure_offline(
    subject: Subject, settings: OfflineSettings, say: Callable[[str], None]
) -> tuple[Engine, list[OfflineRow], MachineRates | None]:
    """One row per cap and order, the engine that has been measured, and the rates behind the ceilings."""
    submitted = offline_workload(settings, subject.vocabulary)
    is_published = subject.name == PUBLISHED
    kv_cache_mb = OFFLINE_KV_MB if is_published else _kv_cache_mb(subject.shape, submitted, max(settings.caps))
    engine = subject.load(kv_cache_mb)
    rates = None
    if not is_published and engine.info.device == "cpu":
        say("measuring how fast this machine reads and multiplies")
        rates = measure_rates()
    rows = []
    for cap in settings.caps:
        for order in settings.orders:
            say(f"{subject.name}: cap {cap}, {len(submitted)} requests {order}")
            engine = capped(engine, "batch", Lane.BULK, cap, subject.vocabulary)
            items = longest_first(submitted) if order == SORTED else submitted
            best_s = ceiling(subject.shape, items, cap, rates).total_s if rates else None
            rows.append(_measure(engine, items, cap, order, best_s))
    return engine, rows, rates


def _kv_cache_mb(shape: ModelConfig, items: list[Item], cap: int) -> int:
    """Enough for the ``cap`` largest requests together, so that it is the cap that limits the batch."""
    token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * _BYTES_PER_VALUE
    num_tokens = sum(item.num_tokens + _ROUNDING_TOKENS for item in longest_first(items)[:cap])
    return -(-max(num_tokens, CONTEXT_TOKENS + _ROUNDING_TOKENS) * token_bytes // 2**20)


def _measure(engine: Engine, items: list[Item], cap: int, order: str, best_s: float | None) -> OfflineRow:
    engine.loop.observer = tally = _Tally(engine)
    requests = [request_of(item, Lane.BULK) for item in items]
    started = time.perf_counter()
    answers = engine.complete_all(requests)
    wall_s = time.perf_counter() - started
    engine.loop.observer = None
    engine.loop.check_idle()
    num_output = sum(len(answer.token_ids) for answer in answers)
    num_cached = sum(answer.finished.usage.cached_tokens for answer in answers)
    # the last token of an answer is chosen, but never fed
    num_needed = sum(len(item.prompt_ids) for item in items) - num_cached + num_output - len(items)
    return OfflineRow(
        cap=cap,
        order=order,
        wall_s=wall_s,
        output_tokens_per_s=num_output / wall_s,
        kv_peak_share=tally.peak_blocks / engine.cache.pool.num_blocks,
        recomputed_tokens=tally.num_rows - num_needed,
        cached_tokens=num_cached,
        padding_share=1.0 - tally.num_wanted_keys / tally.num_read_keys,
        ceiling_s=best_s,
        times_ceiling=wall_s / best_s if best_s else None,
    )
