"""The container reader against ``gguf.GGUFReader``, and what it says about files that are not right."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.checkpoint.gguf import GGUFFile
from engine.errors import CheckpointError
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf


@pytest.mark.parametrize("block_type", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0])
def test_reads_what_the_reference_reader_reads(tmp_path: Path, block_type: GGMLQuantizationType) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", block_type=block_type)
    ours, reference = GGUFFile(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert set(ours.tensors) == {tensor.name for tensor in reference.tensors}
    for tensor in reference.tensors:
        info = ours.tensors[tensor.name]
        assert info.block_type == tensor.tensor_type
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert np.array_equal(ours.raw(tensor.name).reshape(-1), tensor.data.view(np.uint8).reshape(-1))


def test_releasing_a_tensor_leaves_it_readable(tmp_path: Path) -> None:
    file = GGUFFile(write_tiny_gguf(tmp_path / "tiny.gguf"))
    before = file.raw("token_embd.weight").copy()
    file.release("token_embd.weight")
    assert np.array_equal(file.raw("token_embd.weight"), before)


def test_every_truncation_is_an_error_that_says_so(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1)).read_bytes()
    cut = tmp_path / "cut.gguf"
    # inside the header, inside the key-values, at the tensor table, and in the last tensor
    for size in (10, 30, 2_000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"truncated.*download it again"):
            GGUFFile(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 99), "unknown type"),
        (b"GGUF", "truncated"),
    ],
)
def test_foreign_files_are_named_as_such(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_block_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    row = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 32, 250, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + row + bytes(64))
    with pytest.raises(CheckpointError, match="unknown block type 250"):
        GGUFFile(path)
