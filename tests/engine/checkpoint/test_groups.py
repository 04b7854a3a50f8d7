"""Four-bit groups: what a file has is what its blocks say, and what is rounded is near."""

from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.blocks import FAST_TYPES, dequantize_into, read_groups
from engine.checkpoint.groups import GROUP, Groups, round_to_groups, stacked
from engine.checkpoint.source import open_checkpoint
from tests.engine.checkpoint.test_blocks import _random_blocks
from tests.support.tiny_checkpoints import TinyShape, write_tiny_folder, write_tiny_gguf

_FOUR_BITS = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K)
_OTHERS = (*(t for t in FAST_TYPES if t not in _FOUR_BITS), GGMLQuantizationType.F16, GGMLQuantizationType.IQ4_NL)


def _is_sound(groups: Groups, rows: int, columns: int) -> bool:
    parts = (groups.values, groups.scales, groups.minima)
    return (
        [part.shape for part in parts] == [(rows, columns), (rows, columns // GROUP), (rows, columns // GROUP)]
        and [part.dtype for part in parts] == [torch.uint8, torch.float32, torch.float32]
        and all(part.is_contiguous() for part in parts)
        and int(groups.values.max()) <= 15
    )


@pytest.mark.parametrize("block_type", _FOUR_BITS, ids=lambda t: t.name)
def test_groups_are_what_the_blocks_say(block_type: GGMLQuantizationType) -> None:
    raw = _random_blocks(block_type, num_rows=7, row_blocks=3)
    groups = read_groups(raw, block_type)
    columns = 3 * (256 if block_type is GGMLQuantizationType.Q4_K else 32)
    assert groups is not None and _is_sound(groups, 7, columns)
    expected = torch.empty(7, columns)
    dequantize_into(expected, raw, block_type)
    if block_type is GGMLQuantizationType.Q4_0:  # (value - 8) * scale there, value * scale - 8 * scale here
        assert torch.allclose(groups.dequantised(), expected, rtol=0, atol=1e-5)
    else:
        assert torch.equal(groups.dequantised(), expected)


@pytest.mark.parametrize("block_type", _OTHERS, ids=lambda t: t.name)
def test_other_blocks_have_none(block_type: GGMLQuantizationType) -> None:
    raw = _random_blocks(block_type, 2, 2) if block_type in FAST_TYPES else torch.zeros(2, 18).to(torch.uint8).numpy()
    assert read_groups(raw, block_type) is None


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_groups_of_a_file_are_its_parameters(tmp_path: Path, architecture: str) -> None:
    """Stacked in the same order, and with the rows of llama's heads put right in the same way."""
    shape = TinyShape(architecture, num_heads=4, num_kv_heads=1, own_head_dim=32)
    path = write_tiny_gguf(tmp_path / "a.gguf", shape, block_type=GGMLQuantizationType.Q4_1)
    checkpoint = open_checkpoint(path)
    products = [name for name, size in checkpoint.parameter_shapes().items() if len(size) == 2]
    assert len(products) == 2 + 2 * 4
    for name in products:
        expected = torch.empty(checkpoint.parameter_shapes()[name])
        checkpoint.read_into(name, expected)
        groups = checkpoint.groups(name)
        assert groups is not None and _is_sound(groups, *expected.shape)
        assert torch.equal(groups.dequantised(), expected)
        assert len(expected.unique(dim=0)) == len(expected)  # so that an order can be wrong


def test_one_part_with_other_blocks_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in files that have values in six bits, queries and keys in four."""
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "a.gguf", block_type=GGMLQuantizationType.Q4_0))
    file = checkpoint._file  # type: ignore[attr-defined]
    info = file.tensors["blk.0.attn_v.weight"]
    object.__setattr__(info, "block_type", GGMLQuantizationType.Q8_0)
    assert checkpoint.groups("layers.0.qkv.weight") is None
    assert checkpoint.groups("layers.1.qkv.weight") is not None
    assert checkpoint.groups("layers.0.output.weight") is not None


def test_files_of_floats_have_none(tmp_path: Path) -> None:
    for path in (write_tiny_gguf(tmp_path / "a.gguf"), write_tiny_folder(tmp_path / "b")):
        assert open_checkpoint(path).groups("layers.0.qkv.weight") is None


def test_stacking() -> None:
    parts = [round_to_groups(torch.randn(rows, 64)) for rows in (3, 1, 5)]
    whole = stacked(parts)
    assert _is_sound(whole, 9, 64)
    assert torch.equal(whole.dequantised(), torch.cat([part.dequantised() for part in parts]))


@settings(max_examples=50, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1e-6, 1.0, 1e4]), offset=st.sampled_from([0.0, 1.0, -50.0]))
def test_rounding_is_off_by_half_a_step_at_most(seed: int, size: float, offset: float) -> None:
    weight = (torch.randn(6, 96, generator=torch.Generator().manual_seed(seed)) + offset) * size
    groups = round_to_groups(weight)
    assert _is_sound(groups, 6, 96)
    grouped = weight.view(6, 3, GROUP)
    step = (grouped.amax(2) - grouped.amin(2)) / 15
    error = (groups.dequantised() - weight).abs().view(6, 3, GROUP).amax(2)
    assert (error <= step * 0.501 + 1e-6 * weight.abs().max()).all()
    assert error.max() > step.max() * 0.3
    assert (groups.values.view(6, 3, GROUP).amax(2) == 15).all() and (
        groups.values.view(6, 3, GROUP).amin(2) == 0
    ).all()


def test_groups_of_one_value_and_of_sixteen_are_exact() -> None:
    for weight in (torch.zeros(1, 32), torch.full((2, 64), -3.5), torch.arange(32).view(1, 32) % 16 * 0.25 - 1.0):
        assert torch.equal(round_to_groups(weight).dequantised(), weight)
