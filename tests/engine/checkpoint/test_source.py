"""Checkpoints: nothing missing, nothing left over, and one line for what cannot be used."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from engine.checkpoint.source import open_checkpoint
from engine.errors import CheckpointError
from engine.model.load import load_decoder
from tests.support.tiny_checkpoints import TinyShape, write_tiny_folder, write_tiny_gguf

_CPU = torch.device("cpu")


def _all_parameters(path: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(path)
    values = {}
    for name, shape in checkpoint.parameter_shapes().items():
        values[name] = torch.empty(shape)
        checkpoint.read_into(name, values[name])
    return values


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_both_containers_hold_the_same_parameters(tmp_path: Path, architecture: str, is_tied: bool) -> None:
    shape = TinyShape(architecture, is_tied=is_tied)
    from_gguf = _all_parameters(write_tiny_gguf(tmp_path / "a.gguf", shape))
    from_folder = _all_parameters(write_tiny_folder(tmp_path / "b", shape))
    assert from_gguf.keys() == from_folder.keys()
    assert all(torch.equal(from_gguf[name], from_folder[name]) for name in from_gguf)
    assert open_checkpoint(tmp_path / "a.gguf").config == open_checkpoint(tmp_path / "b").config


def _edit_folder(folder: Path, edit: "dict[str, np.ndarray | None]") -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in edit.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"model.norm.weight": None}, "lacks 1 tensors, such as model.norm.weight"),
        ({"model.layers.0.self_attn.k_proj.bias": None}, "lacks 1 tensors"),
        ({"model.layers.7.extra.weight": np.zeros(3, np.float32)}, r"unexpected 1 tensors, such as model.layers.7"),
        ({"model.norm.weight": np.zeros(63, np.float32)}, "norm has shape"),
    ],
)
def test_missing_left_over_and_misshapen_tensors(
    tmp_path: Path, edit: "dict[str, np.ndarray | None]", message: str
) -> None:
    folder = write_tiny_folder(tmp_path / "hf")
    _edit_folder(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        load_decoder(open_checkpoint(folder), torch.float32, _CPU, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt_neox"}, r"architecture 'gpt_neox'; qwen2 and llama are supported"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope scaling 'yarn'"),
        ({"hidden_size": "absent"}, "lacks the key hidden_size"),
        ({"hidden_size": None}, "unusable configuration"),
        ({"num_attention_heads": 0, "head_dim": None}, "unusable configuration"),
        ({"num_key_value_heads": 3}, "4 heads, 3 key-value heads"),
        ({"rope_scaling": "linear"}, "unusable configuration"),
        ({"hidden_act": "gelu"}, "activation 'gelu'; silu is supported"),
        ({"num_hidden_layers": 3_000_000_000}, "claims 3000000000 layers, but has 27 tensors"),
        ({"num_hidden_layers": 0}, "claims 0 layers"),
    ],
)
def test_unsupported_configurations(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = write_tiny_folder(tmp_path / "hf")
    config = {**json.loads((folder / "config.json").read_text()), **change}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_unsupported_architecture_in_gguf(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "odd.gguf", TinyShape("starcoder2"))
    with pytest.raises(CheckpointError, match="architecture 'starcoder2'"):
        open_checkpoint(path)


def test_one_damaged_byte_is_a_clear_error_or_harmless(tmp_path: Path) -> None:
    """No traceback, no memory filled: whatever byte of the header is wrong."""
    whole = write_tiny_gguf(tmp_path / "whole.gguf", TinyShape(num_layers=1)).read_bytes()
    random_bytes = random.Random(5)
    header = whole.index(b"token_embd.weight") + 200
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[random_bytes.randrange(4, min(header, len(whole)))] = random_bytes.randrange(256)
        path = tmp_path / "damaged.gguf"
        path.unlink(missing_ok=True)  # the last one may still be mapped
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
            checkpoint.load_tokenizer()
            checkpoint.parameter_shapes()
            outcomes["loaded"] += 1
        except CheckpointError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*config.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_checkpoint(tmp_path)


def test_truncated_safetensors(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "hf")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"cannot read .*model.safetensors.*download it again"):
        open_checkpoint(folder)


_MEASURE = """
import resource, sys
from pathlib import Path
import torch
from engine.checkpoint.source import open_checkpoint
from engine.model.load import load_decoder
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_, num_bytes = load_decoder(open_checkpoint(Path(sys.argv[1])), torch.bfloat16, torch.device("cpu"), 16)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024, num_bytes)
"""


def test_peak_memory_while_loading_is_at_most_twice_the_loaded_size(tmp_path: Path) -> None:
    shape = TinyShape(num_layers=6, hidden_size=1024, ffn_size=4096, num_heads=16, num_kv_heads=4)
    path = write_tiny_gguf(tmp_path / "big.gguf", shape, block_type=GGMLQuantizationType.Q8_0)
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True)
    peak_bytes, loaded_bytes = map(int, done.stdout.split())
    assert loaded_bytes > 150 << 20
    assert peak_bytes <= 2 * loaded_bytes
