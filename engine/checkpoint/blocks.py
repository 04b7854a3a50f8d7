"""Block-quantised tensors to plain ones. Each format is one function over ``[n, bytes per block]``.

Formats: ggml's ``block_q*`` structs, as ``gguf.quants`` reads them. ``gguf.dequantize`` is the slow twin of
every function here, and the way for formats that have none.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as reference_dequantize
from torch import Tensor

from engine.checkpoint.groups import Groups
from engine.errors import CheckpointError

_CHUNK_VALUES = 1 << 18  # values converted at a time: 1 MB of float32, which stays in the CPU's cache
_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte ``start`` of each block, as float32 ``[n, 1]``."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """``[n, k]`` bytes to ``[n, 2k]`` values: all low halves, then all high halves."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """``[n, 4]`` bytes to ``[n, 32]`` values, each the bit worth 16."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (packed.unsqueeze(2) >> shifts) & 1
    return bits.reshape(packed.shape[0], 32) << 4


def _q4_0_groups(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, -8 * scales


def _q4_1_groups(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q4_k_groups(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
    values = torch.cat((packed & 0x0F, packed >> 4), dim=2)
    scales, minima = _k_scales(blocks[:, 4:16])
    return values, _half(blocks, 0) * scales.squeeze(2), -_half(blocks, 2) * minima.squeeze(2)


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).to(torch.int8) - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (values.to(torch.int8) - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * values + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8)


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Twelve bytes to eight 6-bit scales and eight 6-bit minima, ``[n, 8, 1]`` each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)), dim=1)
    minima = torch.cat((middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)), dim=1)
    return scales.unsqueeze(2).float(), minima.unsqueeze(2).float()


def _k_affine(blocks: Tensor, values: Tensor) -> Tensor:
    """``d * scale * q - dmin * minimum`` per group of 32; ``values`` is ``[n, 8, 32]``."""
    scales, minima = _k_scales(blocks[:, 4:16])
    step, floor = _half(blocks, 0).unsqueeze(2) * scales, _half(blocks, 2).unsqueeze(2) * minima
    return (step * values - floor).reshape(-1, 256)


def _q4_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
    values = torch.cat((packed & 0x0F, packed >> 4), dim=2).reshape(-1, 8, 32)
    return _k_affine(blocks, values)


def _q5_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 48:].reshape(-1, 4, 1, 32)
    low = torch.cat((packed & 0x0F, packed >> 4), dim=2).reshape(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8).reshape(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    return _k_affine(blocks, low | (high << 4))


def _q6_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((packed & 0x0F, packed >> 4), dim=2).reshape(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).reshape(1, 1, 4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)
    values = ((low | (high << 4)).to(torch.int8) - 32).reshape(-1, 16, 16)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return (scales.unsqueeze(2) * values).reshape(-1, 256)


_UNPACK: dict[GGMLQuantizationType, Callable[[Tensor], Tensor]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}
FAST_TYPES = tuple(_UNPACK)
_GROUPS: dict[GGMLQuantizationType, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    GGMLQuantizationType.Q4_0: _q4_0_groups,
    GGMLQuantizationType.Q4_1: _q4_1_groups,
    GGMLQuantizationType.Q4_K: _q4_k_groups,
}
"""Formats whose weights are four bits with a scale and a minimum for each 32: these, group by group."""


def dequantize_into(out: Tensor, raw: npt.NDArray[np.uint8], block_type: GGMLQuantizationType) -> None:
    """Convert blocks of a tensor into ``out``, whose dtype and shape decide the result's.

    ``raw`` is ``[rows, bytes per row]``. Values are computed in float32 and rounded once. Works in pieces, so
    the peak beyond ``out`` is a few megabytes. Raises ``CheckpointError`` for a format nobody can read.
    """
    plain = _PLAIN.get(block_type)
    flat = out.view(-1)
    block_size, type_size = (1, plain.itemsize) if plain else GGML_QUANT_SIZES[block_type]
    blocks = raw.reshape(-1, type_size)
    step = max(1, _CHUNK_VALUES // block_size)
    for start in range(0, blocks.shape[0], step):
        # copy: the mapped file is read-only, which torch refuses to wrap
        piece = torch.from_numpy(blocks[start : start + step].copy())
        if plain:
            values = piece.view(plain)
        elif unpack := _UNPACK.get(block_type):
            values = unpack(piece)
        else:
            values = _unpack_slowly(blocks[start : start + step], block_type)
        flat[start * block_size : (start + piece.shape[0]) * block_size].copy_(values.reshape(-1))


def has_groups(block_type: GGMLQuantizationType) -> bool:
    """Whether ``read_groups`` has an answer for a format."""
    return block_type in _GROUPS


def read_groups(raw: npt.NDArray[np.uint8], block_type: GGMLQuantizationType) -> Groups | None:
    """The four-bit weights of a tensor as they are stored, ``raw`` as above; None for other formats."""
    unpack = _GROUPS.get(block_type)
    if unpack is None:
        return None
    _, type_size = GGML_QUANT_SIZES[block_type]
    values, scales, minima = unpack(torch.from_numpy(raw.reshape(-1, type_size).copy()))
    rows = len(raw)
    return Groups(values.reshape(rows, -1), scales.reshape(rows, -1), minima.reshape(rows, -1))


def _unpack_slowly(blocks: npt.NDArray[np.uint8], block_type: GGMLQuantizationType) -> Tensor:
    try:
        return torch.from_numpy(reference_dequantize(blocks, block_type))
    except NotImplementedError:
        known = ", ".join(t.name for t in (*_PLAIN, *FAST_TYPES))
        raise CheckpointError(
            f"block type {block_type.name} is not supported; use a file quantised as one of {known}"
        ) from None
