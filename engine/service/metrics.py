"""Counts and times of the service for ``/metrics``, in Prometheus' text format. Light.

Labels are routes and outcomes, never anything a user wrote.
"""

import time
from collections.abc import AsyncGenerator, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from engine.request import Delta, FinishReason

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class ServiceMetrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self, num_running: Callable[[], int], num_waiting: Callable[[], int]) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "midline_requests", "Requests by how they ended", ["route", "outcome"], registry=registry
        )
        self.prompt_tokens = Counter("midline_prompt_tokens", "Tokens of prompts", registry=registry)
        self.cached_tokens = Counter(
            "midline_cached_tokens", "Tokens of prompts that were in the cache", registry=registry
        )
        self.generated_tokens = Counter("midline_generated_tokens", "Tokens generated", registry=registry)
        self.first_token_s = Histogram(
            "midline_first_token_seconds",
            "From a request's arrival to its first text",
            buckets=_SECONDS,
            registry=registry,
        )
        self.request_s = Histogram(
            "midline_request_seconds",
            "From a request's arrival to its end",
            buckets=_SECONDS,
            registry=registry,
        )
        running = Gauge("midline_requests_running", "Requests being computed", registry=registry)
        running.set_function(num_running)
        waiting = Gauge("midline_requests_waiting", "Requests waiting for their turn", registry=registry)
        waiting.set_function(num_waiting)
        ProcessCollector(registry=registry)

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)


class RequestRecord:
    """Measures one request from its arrival on; ``close`` counts it once."""

    def __init__(self, metrics: ServiceMetrics, route: str) -> None:
        self.outcome = "cancelled"
        """``finished``, ``refused`` or ``failed`` once known; what never gets so far was cancelled."""
        self._metrics = metrics
        self._route = route
        self._start_s = time.perf_counter()
        self._has_text = False

    async def watch(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Pass the deltas on, counting what they say."""
        async for delta in deltas:
            if delta.text and not self._has_text:
                self._has_text = True
                self._metrics.first_token_s.observe(time.perf_counter() - self._start_s)
            self._metrics.generated_tokens.inc(len(delta.token_ids))
            if delta.finished is not None:
                if delta.finished.reason is not FinishReason.CANCELLED:
                    self.outcome = "finished"
                self._metrics.prompt_tokens.inc(delta.finished.usage.prompt_tokens)
                self._metrics.cached_tokens.inc(delta.finished.usage.cached_tokens)
            yield delta

    def close(self) -> None:
        """Count the request with its outcome."""
        self._metrics.requests.labels(route=self._route, outcome=self.outcome).inc()
        self._metrics.request_s.observe(time.perf_counter() - self._start_s)
