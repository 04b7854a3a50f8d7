"""Our decoder against ``transformers``' Qwen2 and Llama: same checkpoint, same tokens, same logits."""

import json
from pathlib import Path

import pytest
import torch

from engine.checkpoint.source import open_checkpoint
from engine.model.layers import rope_frequencies
from tests.support.kv import Rig
from tests.support.tiny_checkpoints import TinyShape, write_tiny_folder, write_tiny_gguf

_MAX_DIFFERENCE = 1e-4
_TOKENS = [5, 17, 300, 42, 42, 7, 99, 250, 1, 0, 33, 128]


def _our_logits(path: Path, chunks: list[int]) -> torch.Tensor:
    """Logits of all positions, computed in pieces of the given sizes."""
    rig = Rig(path)
    table, parts, done = rig.table(_TOKENS, 64), [], 0
    for size in chunks:
        parts.append(rig.logits(rig.start((table, _TOKENS[done : done + size], done))))
        done += size
    return torch.cat(parts)


def _reference_logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([_TOKENS])).logits[0]
    return logits


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
@pytest.mark.parametrize(
    "shape",
    [
        TinyShape("qwen2"),
        TinyShape("qwen2", is_tied=True, rope_theta=1e6),
        TinyShape("llama"),
        TinyShape("llama", num_heads=8, num_kv_heads=8, is_tied=True),
        TinyShape("llama", has_bias=True),
        TinyShape("llama", own_head_dim=32),
        TinyShape("qwen2", num_padding_tokens=9),
    ],
    ids=["qwen2", "qwen2-tied", "llama", "llama-no-groups-tied", "llama-biases", "llama-wide-heads", "qwen2-padded"],
)
@pytest.mark.filterwarnings("default")  # the reference library's own
def test_logits_equal_the_reference(tmp_path: Path, shape: TinyShape, container: str) -> None:
    folder = write_tiny_folder(tmp_path / "hf", shape, seed=3)
    path = folder if container == "safetensors" else write_tiny_gguf(tmp_path / "tiny.gguf", shape, seed=3)
    reference = _reference_logits(folder)
    assert reference.abs().max() > 0.5  # a network whose output were all zero would prove nothing
    for chunks in ([12], [5, 7], [11, 1], [1] * 12):
        difference = (_our_logits(path, chunks) - reference).abs().max().item()
        assert difference <= _MAX_DIFFERENCE, f"{chunks}: {difference}"


_LINEAR = {"rope_type": "linear", "factor": 4.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _write_scaled(folder: Path, scaling: dict[str, object]) -> Path:
    write_tiny_folder(folder, TinyShape("llama"), seed=4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
    return folder


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("scaling", [_LINEAR, _LLAMA3], ids=["linear", "llama3"])
def test_scaled_rotary_frequencies_equal_the_reference(tmp_path: Path, scaling: dict[str, object]) -> None:
    folder = _write_scaled(tmp_path / "hf", scaling)
    difference = (_our_logits(folder, [12]) - _reference_logits(folder)).abs().max().item()
    assert difference <= _MAX_DIFFERENCE


@pytest.mark.filterwarnings("default")
def test_scaled_rotary_frequencies_in_gguf(tmp_path: Path) -> None:
    """Linear scaling is a key; llama 3.1 exports carry a table of divisors instead."""
    shape = TinyShape("llama")
    linear = write_tiny_gguf(
        tmp_path / "linear.gguf", shape, seed=4, rope={"scaling.type": "linear", "scaling.factor": 4.0}
    )
    reference = _reference_logits(_write_scaled(tmp_path / "linear", _LINEAR))
    assert (_our_logits(linear, [12]) - reference).abs().max().item() <= _MAX_DIFFERENCE

    plain = rope_frequencies(open_checkpoint(linear).config, torch.ones(shape.head_dim // 2))
    scaled = rope_frequencies(open_checkpoint(_write_scaled(tmp_path / "llama3", _LLAMA3)).config, None)
    factors = write_tiny_gguf(tmp_path / "llama3.gguf", shape, seed=4, rope_factors=(plain / scaled).numpy())
    reference = _reference_logits(tmp_path / "llama3")
    assert (_our_logits(factors, [12]) - reference).abs().max().item() <= _MAX_DIFFERENCE
