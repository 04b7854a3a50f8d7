"""The decoder of qwen2 and llama: the same layers; the configuration says which biases there are."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache.storage import SequenceCache
from engine.model.config import ModelConfig
from engine.model.layers import Rotary, attend, rms_norm
from engine.model.linear import Linear


class ForwardCancelled(Exception):  # not an error: the caller asked for it
    """The pass was given up between two layers; the cache is as it was before it."""


@dataclass(frozen=True)
class Layer:
    """One transformer block's parameters."""

    attn_norm: Tensor
    qkv: Linear
    output: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A causal language model over one sequence at a time."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: Linear,
        rotary: Rotary,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary

    @torch.inference_mode()
    def forward(
        self, token_ids: list[int], cache: SequenceCache, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Tensor:
        """Compute ``token_ids`` behind the cache's tokens and commit them.

        Returns the last hidden states after the final norm, ``[len(token_ids), hidden_size]``.
        ``is_cancelled`` is asked between layers; when it says yes, ``ForwardCancelled`` is raised and nothing
        has been committed.
        """
        start = len(cache.token_ids)
        x = F.embedding(torch.tensor(token_ids, device=self._embedding.device), self._embedding)
        for index, layer in enumerate(self._layers):
            if is_cancelled():
                raise ForwardCancelled
            x = x + self._attention(layer, index, rms_norm(x, layer.attn_norm, self.config.rms_eps), cache, start)
            gate, up = layer.gate_up(rms_norm(x, layer.ffn_norm, self.config.rms_eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        cache.commit(token_ids)
        return rms_norm(x, self._norm, self.config.rms_eps)

    def _attention(self, layer: Layer, index: int, x: Tensor, cache: SequenceCache, start: int) -> Tensor:
        config, rows = self.config, x.shape[0]
        heads = layer.qkv(x).view(rows, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        query, keys, values = torch.split(heads, sizes, dim=1)
        keys, values = cache.write(index, self._rotary(keys, start), values)
        return layer.output(attend(self._rotary(query, start), keys, values))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token after each of ``hidden`` ``[rows, hidden_size]``: float32 ``[rows, vocab_size]``."""
        return self._head(hidden).float()
