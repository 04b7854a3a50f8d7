"""A loaded model whose passes are measured, whole and in parts, and what they have to do at least. Imports torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.bench.parts import HEAD, PRODUCTS, parts_of
from engine.engine import Engine
from engine.model.batch import Span

ATTENTION = "attention"

_CHUNK_TOKENS = 256


@dataclass(frozen=True)
class StepCost:
    """What a pass has to do at least."""

    weight_bytes: int
    """Of all products, each read once."""
    kv_bytes: int
    """Keys and values of the context and of the new tokens, each read once."""
    num_ops: int
    """Multiplications and additions of the products and of attention."""


class Anatomy:
    """Passes run over new tokens of one sequence, behind tokens that are computed already.

    The engine is good for nothing else afterwards: the sequence keeps its place in the cache.
    """

    def __init__(self, engine: Engine, num_cached_tokens: int, max_rows: int, vocabulary: Sequence[int]) -> None:
        """Compute the context. ``vocabulary`` are the ids that it and the new tokens may be made of."""
        model = engine.model
        self._decoder, self._storage = model.decoder, model.storage
        self._parts = parts_of(model.decoder, model.storage)
        self._num_cached_tokens = num_cached_tokens
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(len(vocabulary), (num_cached_tokens + max_rows,), generator=generator)
        self._token_ids = [vocabulary[i] for i in drawn.tolist()]
        table = engine.cache.reserve(self._token_ids, len(self._token_ids))
        assert table is not None, "the cache of an idle engine holds a whole context"
        self._blocks = table.blocks
        for start in range(0, num_cached_tokens, _CHUNK_TOKENS):
            self._run(self._span(start, min(start + _CHUNK_TOKENS, num_cached_tokens)))

    def step(self, num_rows: int) -> None:
        """A whole pass over so many new tokens, to the logits of the last."""
        self._run(self._new_span(num_rows))

    def operators(self, num_rows: int) -> dict[str, Callable[[], None]]:
        """The same pass's operators one by one, each in all layers in order."""
        works = {kind: self._parts.product(kind, _num_product_rows(kind, num_rows)) for kind in PRODUCTS}
        return works | {ATTENTION: self._parts.attention(self._new_span(num_rows))}

    def cost(self, num_rows: int) -> StepCost:
        """What a pass over so many new tokens has to do."""
        config = self._decoder.config
        weights = {kind: self._parts.weights(kind) for kind in PRODUCTS}
        num_keys = self._num_cached_tokens + num_rows
        # a row sees the context, the rows before and itself
        num_seen = num_rows * self._num_cached_tokens + num_rows * (num_rows + 1) // 2
        products = sum(count * _num_product_rows(kind, num_rows) for kind, (count, _) in weights.items())
        # a number of a key is multiplied with the query's and added, one of a value with its weight
        attention = 2 * num_seen * config.num_layers * config.num_heads * config.head_dim
        key_numbers = num_keys * config.num_layers * config.num_kv_heads * config.head_dim
        return StepCost(
            weight_bytes=sum(num_bytes for _, num_bytes in weights.values()),
            kv_bytes=2 * key_numbers * self._storage.dtype.itemsize,
            num_ops=2 * (products + attention),
        )

    def _run(self, span: Span) -> None:
        forward = self._decoder.start([span], self._storage)
        while not forward.is_done:
            forward.advance()
        self._decoder.logits(forward.hidden(span, 1))

    def _new_span(self, num_rows: int) -> Span:
        return self._span(self._num_cached_tokens, self._num_cached_tokens + num_rows)

    def _span(self, start: int, end: int) -> Span:
        return Span(self._token_ids[start:end], start, self._blocks)


def _num_product_rows(kind: str, num_rows: int) -> int:
    return 1 if kind == HEAD else num_rows
