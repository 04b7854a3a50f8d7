"""A smaller model with the same vocabulary as a source of drafts."""

import time
from collections.abc import Callable
from collections.abc import Sequence as TokenList

from engine.cache.kv_cache import BlockTable, KVCache
from engine.cache.prefix_index import common_length
from engine.cache.storage import KVStorage
from engine.model.batch import Span
from engine.model.contract import AnyDecoder

_CHUNK_TOKENS = 128
_WEIGHT = 0.2


class DraftModel:
    """The smaller model, with a cache of its own; all sequences that draft with it share both."""

    def __init__(self, decoder: AnyDecoder, storage: KVStorage, cache: KVCache, num_tokens: int) -> None:
        """``num_tokens`` is the size of the vocabulary."""
        self.cache = cache
        self.decode_s = 0.0
        """Seconds that a draft token takes, as measured."""
        self.prefill_s = 0.0
        """Seconds that a token of catching up takes."""
        self._decoder = decoder
        self._storage = storage
        self._num_tokens = num_tokens
        self.is_wanted_elsewhere: Callable[[], bool] = lambda: False
        """Asked between two layers: whether something more urgent than drafting has come up."""

    def warm_up(self) -> None:
        """Measure what drafting costs."""
        source, token_ids = DraftModelSource(self, 2 * _CHUNK_TOKENS), [0] * _CHUNK_TOKENS
        source.propose(token_ids, 4)
        source.close()
        self.cache.clear()

    def run(self, table: BlockTable, token_ids: list[int], start: int) -> int | None:
        """Compute tokens at ``start`` of a sequence; returns the likeliest next one, or None when interrupted."""
        started = time.perf_counter()
        span = Span(token_ids, start, table.blocks)
        forward = self._decoder.start([span], self._storage)
        while not forward.is_done:
            if self.is_wanted_elsewhere():
                return None
            forward.advance()
        logits = self._decoder.logits(forward.hidden(span, 1))[0, : self._num_tokens]
        token = int(logits.argmax())
        self._measure(len(token_ids), time.perf_counter() - started)
        return token

    def _measure(self, num_rows: int, seconds: float) -> None:
        if num_rows == 1:
            self.decode_s += (_WEIGHT if self.decode_s else 1.0) * (seconds - self.decode_s)
        elif num_rows >= _CHUNK_TOKENS // 2:
            self.prefill_s += (_WEIGHT if self.prefill_s else 1.0) * (seconds / num_rows - self.prefill_s)


class DraftModelSource:
    """Drafts for one sequence. It follows the sequence lazily, and forgets what turned out wrong."""

    name = "model"

    def __init__(self, model: DraftModel, max_tokens: int) -> None:
        """``max_tokens`` is the most the sequence may have."""
        self._model = model
        self._max_tokens = max_tokens
        self._table: BlockTable | None = None
        self._computed: list[int] = []

    @property
    def cost_s(self) -> float:
        """Seconds that a draft token takes."""
        return self._model.decode_s

    def catch_up_s(self, token_ids: TokenList[int]) -> float:
        """Seconds until it can draft: what it has to compute of the sequence first."""
        return (len(token_ids) - self._num_known(list(token_ids))) * self._model.prefill_s

    def propose(self, token_ids: TokenList[int], max_tokens: int) -> list[int]:
        """Greedy continuation by the smaller model; empty when it was interrupted."""
        tokens = list(token_ids)
        if self._table is None:
            self._table = self._model.cache.reserve(tokens, max(self._max_tokens, len(tokens) + max_tokens))
            if self._table is None:
                return []
            self._computed = tokens[: self._table.num_cached_tokens]
        del self._computed[min(common_length(self._computed, tokens), len(tokens) - 1) :]
        drafts: list[int] = []
        while len(drafts) < max_tokens:
            known = len(self._computed)
            chunk = (tokens + drafts)[known : known + _CHUNK_TOKENS]
            token = self._model.run(self._table, chunk, known)
            if token is None:
                return []
            self._computed += chunk
            if len(self._computed) == len(tokens) + len(drafts):
                drafts.append(token)
        return drafts

    def close(self) -> None:
        """Give the blocks back; what is computed stays for the next sequence that begins alike."""
        if self._table is not None:
            self._model.cache.release(self._table, self._computed, len(self._computed))
            self._table = None

    def _num_known(self, tokens: list[int]) -> int:
        if self._table is not None:
            return common_length(self._computed, tokens)
        match = self._model.cache.index.match(self._model.cache.namespace, tokens[:-1])
        return len(match.nodes) * self._model.cache.pool.block_tokens + match.num_tail_tokens
