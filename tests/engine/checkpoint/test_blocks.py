"""Every block format against ``gguf.dequantize``, over random blocks."""

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.checkpoint import blocks
from engine.checkpoint.blocks import FAST_TYPES, dequantize_into
from engine.errors import CheckpointError

_SLOW_TYPES = (GGMLQuantizationType.Q2_K, GGMLQuantizationType.Q3_K, GGMLQuantizationType.IQ4_NL)
# where the float16 scales of a block lie, in bytes
_SCALES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
}


def _random_blocks(block_type: GGMLQuantizationType, num_rows: int, row_blocks: int) -> npt.NDArray[np.uint8]:
    """Random bytes with sane scales, ``[rows, bytes]``; every bit pattern of the values occurs."""
    rng = np.random.default_rng(int(block_type))
    _, type_size = GGML_QUANT_SIZES[block_type]
    raw = rng.integers(0, 256, (num_rows * row_blocks, type_size), dtype=np.uint8)
    for start in _SCALES.get(block_type.name, (0,)):
        scales = rng.uniform(-2.0, 2.0, len(raw)).astype(np.float16)
        raw[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw.reshape(num_rows, -1)


@pytest.mark.parametrize("block_type", [*FAST_TYPES, *_SLOW_TYPES], ids=lambda t: t.name)
def test_blocks_equal_the_reference(block_type: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_CHUNK_VALUES", 1024)  # several pieces, the last one short
    raw = _random_blocks(block_type, num_rows=7, row_blocks=3)
    expected = gguf.dequantize(raw, block_type)
    out = torch.empty(expected.shape, dtype=torch.float32)
    dequantize_into(out, raw, block_type)
    assert np.array_equal(out.numpy(), expected)
    rounded = torch.empty(expected.shape, dtype=torch.bfloat16)
    dequantize_into(rounded, raw, block_type)
    assert torch.equal(rounded, out.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_tensors_are_copied(dtype: torch.dtype) -> None:
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    values = torch.randn(3, 40).to(dtype)
    raw = values.view(torch.uint8).numpy()
    out = torch.empty(3, 40)
    dequantize_into(out, raw, GGMLQuantizationType[names[dtype]])
    assert torch.equal(out, values.float())


def test_a_format_nobody_can_read_is_named_with_the_known_ones() -> None:
    block_type = GGMLQuantizationType.Q8_K
    raw = np.zeros((1, GGML_QUANT_SIZES[block_type][1]), dtype=np.uint8)
    with pytest.raises(CheckpointError, match=r"Q8_K is not supported; use .*Q4_K"):
        dequantize_into(torch.empty(1, 256), raw, block_type)
