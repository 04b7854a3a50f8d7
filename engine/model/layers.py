"""Normalisation, rotary embedding and attention: the formulas of qwen2 and llama decoders."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.batch import AttentionGroup
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

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for rows at ``positions`` ``[rows]``: each ``[rows, 1, head_dim]``."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` ``[rows, heads, head_dim]``: a dimension of the first half and its partner in the second."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def attend(query: Tensor, group: AttentionGroup, keys: Tensor, values: Tensor) -> Tensor:
    """Causal grouped-query attention of one group's rows.

    ``query`` ``[rows of the batch, heads, head_dim]``; ``keys``, ``values`` ``[sequences, kv_heads, tokens,
    head_dim]``. Returns ``[rows of the group, heads * head_dim]``. The heads that share keys are taken for rows of
    one head, so that nothing is repeated: measured, 0.7 to 0.9 times the time.
    """
    num_heads, head_dim = query.shape[1:]
    sequences, num_kv_heads = keys.shape[:2]
    own = query[group.first_row : group.first_row + group.num_rows]
    padded = own if group.padded_rows is None else own[group.padded_rows]
    rows = padded.shape[0] // sequences
    grouped = padded.view(sequences, rows, num_kv_heads, num_heads // num_kv_heads, head_dim).transpose(1, 2)
    flat = grouped.reshape(sequences, num_kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(flat, keys, values, attn_mask=group.mask)
    out = out.view(sequences, num_kv_heads, rows, -1, head_dim).transpose(1, 2)
    out = out.reshape(sequences * rows, num_heads * head_dim)
    return out if group.kept_rows is None else out[group.kept_rows]
