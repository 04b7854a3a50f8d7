"""Normalisation, rotary embedding and attention: the formulas of qwen2 and llama decoders."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.config import ModelConfig, RopeScaling


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension, computed in float32 (Zhang and Sennrich, 2019)."""
    return F.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype) * weight


def rope_frequencies(config: ModelConfig, factors: Tensor | None) -> Tensor:
    """Angular frequencies of the rotary pairs, float32 ``[head_dim / 2]``.

    ``factors`` divide them where the checkpoint carries such a table.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if factors is not None:
        return frequencies / factors
    if config.rope_scaling is None:
        return frequencies
    if config.rope_scaling.kind == "linear":
        return frequencies / config.rope_scaling.factor
    return _llama3_frequencies(frequencies, config.rope_scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: long wavelengths are stretched, short ones kept, those between blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


class Rotary:
    """Cosine and sine tables for positions ``0 .. num_positions - 1``."""

    def __init__(self, frequencies: Tensor, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), dim=1)
        self.cos = angles.cos().to(device, dtype)
        self.sin = angles.sin().to(device, dtype)

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Rotate ``x`` ``[rows, heads, head_dim]``, whose first row is at position ``start``.

        Pairs are a dimension of the first half and its partner in the second half.
        """
        rows, half = x.shape[0], x.shape[-1] // 2
        cos = self.cos[start : start + rows].unsqueeze(1)
        sin = self.sin[start : start + rows].unsqueeze(1)
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal grouped-query attention of the last rows of a sequence.

    ``query`` ``[rows, heads, head_dim]``; ``keys``, ``values`` ``[kv_heads, length, head_dim]``, where the last
    ``rows`` of ``length`` are the query's own positions. Returns ``[rows, heads * head_dim]``.
    """
    rows, num_heads, head_dim = query.shape
    if rows == 1:
        return _attend_one(query, keys, values)
    length, group = keys.shape[1], num_heads // keys.shape[0]
    q = query.transpose(0, 1).unsqueeze(0)
    k = keys.repeat_interleave(group, dim=0).unsqueeze(0)
    v = values.repeat_interleave(group, dim=0).unsqueeze(0)
    if rows == length:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        visible = torch.ones(rows, length, dtype=torch.bool, device=q.device).tril(length - rows)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return out.squeeze(0).transpose(0, 1).reshape(rows, num_heads * head_dim)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """``attend`` for one row: plain products, several times cheaper there than the fused operator on a CPU."""
    _, num_heads, head_dim = query.shape
    grouped = query.view(keys.shape[0], num_heads // keys.shape[0], head_dim)
    scores = torch.matmul(grouped, keys.transpose(1, 2)) * head_dim**-0.5
    weights = torch.softmax(scores.float(), dim=-1).to(values.dtype)
    return torch.matmul(weights, values).reshape(1, num_heads * head_dim)
