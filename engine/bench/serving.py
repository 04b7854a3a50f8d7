"""The serving workload: requests come at their own times. Imports torch.

Open loop: a request is sent when it is due, whatever has become of those before, and its times count from when it was
due. An engine that falls behind cannot hide it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.async_engine import AsyncEngine
from engine.bench.published import SERVING_KV_MB
from engine.bench.report import percentile
from engine.bench.settings import PUBLISHED, ServingSettings
from engine.bench.subject import Subject, capped, request_of
from engine.bench.workloads import Item, serving_workload
from engine.engine import Engine
from engine.request import Finished, FinishReason, Lane

_LEAD_S = 0.05


@dataclass(frozen=True)
class ServingRow:
    """What one cap has given. Times are None when there is nothing to count."""

    cap: int
    ttft_p50_ms: float | None
    """From when a request was due to its first token."""
    ttft_p95_ms: float | None
    itl_p95_ms: float | None
    """Between two tokens of a request."""
    in_time_share: float
    """Of all submitted requests, those whose first token was not late."""
    output_tokens_per_s: float
    num_completed: int
    num_superseded: int
    cached_share: float
    """Of the prompt tokens, those that were computed already."""
    sent_late_p95_ms: float | None
    """From when a request was due to when it was sent: what the measuring itself costs."""


@dataclass
class _Trace:
    """What happened to one request; seconds count from when it was due."""

    item: Item
    sent_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    finished: Finished | None = None


def measure_serving(
    subject: Subject, settings: ServingSettings, say: Callable[[str], None]
) -> tuple[Engine, list[ServingRow]]:
    """One row per cap, and the engine that has been measured."""
    items = serving_workload(settings, subject.vocabulary)
    engine = subject.load(SERVING_KV_MB if subject.name == PUBLISHED else 0)
    rows = []
    for cap in settings.caps:
        say(f"{subject.name}: cap {cap}, {len(items)} requests in {items[-1].arrival_s:.1f} s or more")
        engine = capped(engine, "completion", Lane.INTERACTIVE, cap, subject.vocabulary)
        traces, wall_s = asyncio.run(_replay(engine, items, settings))
        rows.append(_row(cap, traces, wall_s, settings.target_ms))
        engine.loop.check_idle()
    return engine, rows


async def _replay(engine: Engine, items: list[Item], settings: ServingSettings) -> tuple[list[_Trace], float]:
    """Send everything when it is due; returns what happened and how long it took."""
    async_engine = AsyncEngine(engine)
    try:
        traces = [_Trace(item) for item in items]
        origin_s = time.monotonic() + _LEAD_S
        await asyncio.gather(
            *(_send(async_engine, trace, origin_s + trace.item.arrival_s, settings) for trace in traces)
        )
        return traces, time.monotonic() - origin_s
    finally:
        await async_engine.aclose()


async def _send(async_engine: AsyncEngine, trace: _Trace, due_s: float, settings: ServingSettings) -> None:
    await asyncio.sleep(due_s - time.monotonic())
    trace.sent_s = time.monotonic() - due_s
    session = trace.item.buffer if settings.is_superseding else ""
    async with aclosing(async_engine.stream(request_of(trace.item, Lane.INTERACTIVE, session))) as deltas:
        async for delta in deltas:
            trace.token_s += [time.monotonic() - due_s] * len(delta.token_ids)
            trace.finished = delta.finished or trace.finished


def _row(cap: int, traces: list[_Trace], wall_s: float, target_ms: float) -> ServingRow:
    ttft_ms = [trace.token_s[0] * 1000.0 for trace in traces if trace.token_s]
    ended = [trace.finished for trace in traces if trace.finished]
    reasons = [finished.reason for finished in ended]
    num_prompt_tokens = sum(finished.usage.prompt_tokens for finished in ended)
    return ServingRow(
        cap=cap,
        ttft_p50_ms=percentile(ttft_ms, 50),
        ttft_p95_ms=percentile(ttft_ms, 95),
        itl_p95_ms=percentile(list(_gaps_ms(traces)), 95),
        in_time_share=sum(ms <= target_ms for ms in ttft_ms) / len(traces),
        output_tokens_per_s=sum(len(trace.token_s) for trace in traces) / wall_s,
        num_completed=reasons.count(FinishReason.LENGTH),
        num_superseded=reasons.count(FinishReason.SUPERSEDED),
        cached_share=sum(finished.usage.cached_tokens for finished in ended) / max(1, num_prompt_tokens),
        sent_late_p95_ms=percentile([trace.sent_s * 1000.0 for trace in traces], 95),
    )


def _gaps_ms(traces: list[_Trace]) -> Iterator[float]:
    for trace in traces:
        for earlier, later in zip(trace.token_s, trace.token_s[1:], strict=False):
            yield (later - earlier) * 1000.0
