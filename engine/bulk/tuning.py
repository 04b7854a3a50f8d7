"""How many requests run together and how many rows a pass has: where more of them stop being faster. Imports torch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from engine.bulk.wire import AUTO_BATCH
from engine.cache.kv_cache import BlockTable
from engine.config import PROFILES, LaneLimits
from engine.engine import Engine
from engine.model.batch import Span

_BATCHES = (1, 4, 8, 16, 32, 64, 128)
_CHUNKS = (128, 256, 512)
_CONTEXT_TOKENS = 256
_AS_FAST = 0.97
"""Rates that differ by less are equal: so much the same pass differs from itself."""
_MEASURE_S = 0.8
_NUM_ROUNDS = 3


def tuned(engine: Engine, max_batch: int) -> tuple[Engine, LaneLimits]:
    """The engine under the ``batch`` profile with limits that suit this machine, and these.

    They are measured in a second or two, while nothing runs; what decides how much is drafted begins with the same.
    """
    profile = PROFILES["batch"]
    passes = _Passes(engine)
    decode_s = measured(_BATCHES, passes.decode_s)
    if max_batch == AUTO_BATCH:
        max_batch = knee(decode_s, profile.bulk.max_sequences)
    max_rows = knee(measured(_CHUNKS, passes.prefill_s), profile.bulk.max_batch_tokens)
    limits = replace(profile.bulk, max_sequences=max_batch, max_batch_tokens=max(max_rows, 2 * max_batch))
    engine = engine.with_profile(replace(profile, bulk=limits))
    for num_rows, seconds in decode_s.items():
        if seconds is not None:
            engine.loop.speculator.cost.record(num_rows, seconds)
    return engine, limits


def measured(counts: Sequence[int], seconds_of: Callable[[int], float | None]) -> dict[int, float | None]:
    """The least of a few times for each count, all in turn; None for those that there was no time or room for."""
    started = time.monotonic()
    seconds: dict[int, float | None] = dict.fromkeys(counts)
    for _ in range(_NUM_ROUNDS):
        for count in counts:
            if time.monotonic() - started > _MEASURE_S:
                return seconds
            former, now = seconds[count], seconds_of(count)
            seconds[count] = now if former is None or now is None else min(former, now)
    return seconds


def knee(seconds: Mapping[int, float | None], otherwise: int) -> int:
    """Of ascending counts of rows the last that is as fast, per row, as any: more rows than that are only slower.

    Where the largest that could be measured is the fastest, and others could not, the curve may go on to rise: then it
    is ``otherwise`` if that is more.
    """
    per_s = {count: count / pass_s for count, pass_s in seconds.items() if pass_s is not None}
    best = max((count for count in per_s if per_s[count] >= _AS_FAST * max(per_s.values())), default=0)
    is_cut = len(per_s) < len(seconds) and best == max(per_s, default=0)
    return max(best, otherwise) if is_cut else best


class _Passes:
    """Passes over tokens that mean nothing, in blocks that are free."""

    def __init__(self, engine: Engine) -> None:
        model = engine.model
        self._decoder, self._storage, self._cache = model.decoder, model.storage, model.cache
        self._num_tokens = model.num_tokens
        self._context_limit = model.context_tokens
        self._context_tokens = min(_CONTEXT_TOKENS, self._context_limit)

    def decode_s(self, num_sequences: int) -> float | None:
        """Of a pass in which so many requests get a token each; None where the cache does not hold them."""
        return self._seconds(num_sequences, self._context_tokens, 1)

    def prefill_s(self, num_rows: int) -> float | None:
        """Of a pass over prompts that have so many tokens together; None where the cache does not hold them.

        All are equally long, however many: one that is longer has more for attention to read, which would come in
        smaller pieces just as well.
        """
        num_tokens = min(_CHUNKS[0], self._context_limit)
        return self._seconds(num_rows // num_tokens, num_tokens, num_tokens)

    def _seconds(self, num_sequences: int, num_tokens: int, num_rows: int) -> float | None:
        token_ids = [0] * num_tokens
        tables: list[BlockTable] = []
        try:
            while len(tables) < num_sequences:
                table = self._cache.reserve(token_ids, num_tokens, is_private=True)
                if table is None:
                    return None
                tables.append(table)
            return self._timed([Span(token_ids[-num_rows:], num_tokens - num_rows, table.blocks) for table in tables])
        finally:
            for table in tables:
                self._cache.release(table, token_ids, 0)

    def _timed(self, spans: list[Span]) -> float:
        started = time.perf_counter()
        forward = self._decoder.start(spans, self._storage)
        while not forward.is_done:
            forward.advance()
        self._decoder.best(torch.cat([forward.hidden(span, 1) for span in spans]), self._num_tokens)
        return time.perf_counter() - started
