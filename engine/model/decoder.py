"""The decoder of qwen2 and llama: the same layers; the configuration says which biases there are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.batch import Batch, Span, build_batch
from engine.model.best import Best, best_of, joined
from engine.model.config import ModelConfig
from engine.model.layers import Rotary, attend, rms_norm, rotate
from engine.model.linear import Int4Linear, Int8Linear, Linear

AnyLinear = Linear | Int8Linear | Int4Linear
_SCORED_ROWS = 32


@dataclass(frozen=True)
class Layer:
    """One transformer block's parameters."""

    attn_norm: Tensor
    qkv: AnyLinear
    output: AnyLinear
    ffn_norm: Tensor
    gate_up: AnyLinear
    down: AnyLinear


class Decoder:
    """A causal language model over sequences whose keys and values lie in blocks."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: AnyLinear,
        rotary: Rotary,
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self._norm = norm
        self._head = head
        self.rotary = rotary

    def start(self, spans: list[Span], storage: KVStorage) -> "ForwardPass":
        """A forward pass over ``spans`` that has computed nothing yet."""
        return ForwardPass(self, spans, storage)

    def layer(self, index: int, x: Tensor, batch: Batch, tables: tuple[Tensor, Tensor], storage: KVStorage) -> Tensor:
        """One block: ``x`` and the result are ``[rows, hidden_size]``; writes the rows' keys and values."""
        layer, eps = self.layers[index], self.config.rms_eps
        x = x + self._attention(index, rms_norm(x, layer.attn_norm, eps), batch, tables, storage)
        gate, up = layer.gate_up(rms_norm(x, layer.ffn_norm, eps)).chunk(2, dim=-1)
        down: Tensor = layer.down(F.silu(gate) * up)
        return x + down

    def _attention(
        self, index: int, x: Tensor, batch: Batch, tables: tuple[Tensor, Tensor], storage: KVStorage
    ) -> Tensor:
        config, layer = self.config, self.layers[index]
        num_rotated = config.num_heads + config.num_kv_heads
        heads = layer.qkv(x).view(x.shape[0], num_rotated + config.num_kv_heads, config.head_dim)
        rotated = rotate(heads[:, :num_rotated], *tables)
        query, keys, values = rotated[:, : config.num_heads], rotated[:, config.num_heads :], heads[:, num_rotated:]
        storage.write(index, batch.storage_rows, keys, values)
        parts = [attend(query, group, *storage.read(index, group.blocks)) for group in batch.groups]
        return layer.output(parts[0] if len(parts) == 1 else torch.cat(parts))

    @torch.inference_mode()
    def logits(self, hidden: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Scores of every token after each of ``hidden`` ``[rows, hidden_size]``: float32 ``[rows, vocab_size]``.

        ``token_ids`` are those that are wanted, where not all are: a packed product computes all the same.
        """
        return self._head(rms_norm(hidden, self._norm, self.config.rms_eps)).float()

    @torch.inference_mode()
    def best(self, hidden: Tensor, num_tokens: int, kept: Sequence[int] = ()) -> Best:
        """The likeliest of the first ``num_tokens`` tokens after each of ``hidden``; never has all logits in memory,
        but for those of the rows ``kept``.
        """
        parts: list[Best] = []
        logits: dict[int, Tensor] = {}
        for first in range(0, len(hidden), _SCORED_ROWS):
            scored = self.logits(hidden[first : first + _SCORED_ROWS])[:, :num_tokens]
            parts.append(best_of(scored))
            logits |= {row: scored[row - first].clone() for row in kept if first <= row < first + _SCORED_ROWS}
        return replace(joined(parts), logits=logits)


class ForwardPass:
    """A pass through the layers, one at a time: between two it can wait, lose some of its sequences, or be given up.

    It writes only behind the tokens that are computed. What it has written counts when it is done, and not before.
    """

    def __init__(self, decoder: Decoder, spans: list[Span], storage: KVStorage) -> None:
        self._decoder = decoder
        self._storage = storage
        self._index = 0
        self._set_batch(spans)
        with torch.inference_mode():
            self._x = F.embedding(self.batch.token_ids, decoder.embedding)

    @property
    def is_done(self) -> bool:
        """Every layer has been computed."""
        return self._index == len(self._decoder.layers)

    @property
    def num_rows(self) -> int:
        """Tokens that are computed."""
        return len(self._x)

    @property
    def num_keys(self) -> tuple[int, int]:
        """Keys that are wanted by a row of attention, and keys that are read with padding; for measuring."""
        return self.batch.num_keys

    @torch.inference_mode()
    def advance(self) -> None:
        """Compute one layer."""
        self._x = self._decoder.layer(self._index, self._x, self.batch, self._tables, self._storage)
        self._index += 1

    def keep(self, spans: list[Span]) -> None:
        """Go on with some of the spans alone; the rows of the others are not computed further."""
        first_rows = self._first_rows()
        self._set_batch(spans)
        rows = [
            row for span in self.batch.spans for row in range(first_rows[span], first_rows[span] + len(span.token_ids))
        ]
        with torch.inference_mode():
            self._x = self._x[torch.tensor(rows, device=self._x.device)]

    def hidden(self, span: Span, num_rows: int) -> Tensor:
        """The last layer's output for the last ``num_rows`` of a span, ``[num_rows, hidden_size]``."""
        end = self._first_rows()[span] + len(span.token_ids)
        return self._x[end - num_rows : end]

    def _first_rows(self) -> dict[Span, int]:
        counts = (len(span.token_ids) for span in self.batch.spans)
        return dict(zip(self.batch.spans, accumulate(counts, initial=0), strict=False))

    def _set_batch(self, spans: list[Span]) -> None:
        decoder, config = self._decoder, self._decoder.config
        heads_per_kv = config.num_heads // config.num_kv_heads
        storage = self._storage
        self.batch = build_batch(spans, storage.block_tokens, heads_per_kv, storage.dtype, storage.device)
        self._tables = decoder.rotary.tables(self.batch.positions)
