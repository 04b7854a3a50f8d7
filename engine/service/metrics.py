"""Counts and times of the service for ``/metrics``, in Prometheus' text format. Light.

Labels are routes and outcomes, never anything a user wrote.
"""

import time
from collections.abc import AsyncGenerator, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from engine.request import Delta, Finished, FinishReason, Lane

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_PASS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_GAUGES = {
    "requests_running": "Requests being computed",
    "requests_waiting": "Requests waiting for their turn",
    "kv_blocks_used": "Blocks of keys and values that running requests hold",
    "kv_blocks_cached": "Blocks that are kept because they may be wanted again",
    "kv_blocks": "Blocks there are",
}

KvUse = Callable[[], tuple[int, int, int]]
"""Blocks in use, blocks kept, and all blocks."""


class ServiceMetrics:
    """The metrics of one service, in a registry of their own. As an ``Observer`` it counts what the engine does."""

    def __init__(self, num_running: Callable[[], int], num_waiting: Callable[[], int], kv_use: KvUse) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "midline_requests", "Requests by how they ended", ["route", "outcome"], registry=registry
        )
        self.request_s = Histogram(
            "midline_request_seconds", "From a request's arrival to its end", buckets=_SECONDS, registry=registry
        )
        self._completions = self._counter("completions", "Completions by lane and by why they ended", "reason")
        self._tokens = {
            name: self._counter(f"{name}_tokens", help_text)
            for name, help_text in {
                "prompt": "Tokens of prompts",
                "cached": "Tokens of prompts that were in the cache",
                "computed": "Rows of forward passes: prompts, generated tokens and drafts",
                "generated": "Tokens generated",
                "drafted": "Tokens computed on the guess that they would come",
                "accepted": "Drafted tokens that did come",
                "wasted": "Tokens computed for requests that have been cancelled, or superseded by others",
            }.items()
        }
        self._pass_s = self._histogram("pass_seconds", "One forward pass, with the choice of its tokens", _PASS_SECONDS)
        self._first_token_s = self._histogram("first_token_seconds", "From arrival to the first token", _SECONDS)
        self._queue_s = self._histogram("queue_seconds", "From arrival to the begin of computing", _SECONDS)
        for name, function in {
            "requests_running": num_running,
            "requests_waiting": num_waiting,
            "kv_blocks_used": lambda: kv_use()[0],
            "kv_blocks_cached": lambda: kv_use()[1],
            "kv_blocks": lambda: kv_use()[2],
        }.items():
            Gauge(f"midline_{name}", _GAUGES[name], registry=registry).set_function(function)
        ProcessCollector(registry=registry)

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)

    def on_pass(self, lane: Lane, num_rows: int, seconds: float, num_keys: tuple[int, int]) -> None:
        """Count a forward pass."""
        self._tokens["computed"].labels(lane.value).inc(num_rows)
        self._pass_s.labels(lane.value).observe(seconds)

    def on_end(self, lane: Lane, finished: Finished) -> None:
        """Count a completion that has ended."""
        usage, timing = finished.usage, finished.timing
        self._completions.labels(lane.value, finished.reason.value).inc()
        counts = {
            "prompt": usage.prompt_tokens,
            "cached": usage.cached_tokens,
            "generated": usage.generated_tokens,
            "drafted": usage.drafted_tokens,
            "accepted": usage.accepted_tokens,
        }
        for name, count in counts.items():
            self._tokens[name].labels(lane.value).inc(count)
        self._queue_s.labels(lane.value).observe(timing.queue_ms / 1000.0)
        if timing.first_token_ms is not None:
            self._first_token_s.labels(lane.value).observe(timing.first_token_ms / 1000.0)

    def on_waste(self, lane: Lane, num_tokens: int) -> None:
        """Count what was computed for nobody."""
        self._tokens["wasted"].labels(lane.value).inc(num_tokens)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"midline_{name}", help_text, ["lane", *labels], registry=self._registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"midline_{name}", help_text, ["lane"], buckets=buckets, registry=self._registry)


class RequestRecord:
    """Measures one request from its arrival on; ``close`` counts it once."""

    def __init__(self, metrics: ServiceMetrics, route: str) -> None:
        self.outcome = "cancelled"
        """``finished``, ``refused`` or ``failed`` once known; what never gets so far was cancelled."""
        self._metrics = metrics
        self._route = route
        self._start_s = time.perf_counter()

    async def watch(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Pass the deltas on, and note whether the last one came."""
        async for delta in deltas:
            if delta.finished is not None and delta.finished.reason is not FinishReason.CANCELLED:
                self.outcome = "finished"
            yield delta

    def close(self) -> None:
        """Count the request with its outcome."""
        self._metrics.requests.labels(route=self._route, outcome=self.outcome).inc()
        self._metrics.request_s.observe(time.perf_counter() - self._start_s)
