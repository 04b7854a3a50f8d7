"""Int8 and int4 products against the float product, and that no row knows of another."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from engine.cache.storage import KVStorage
from engine.checkpoint.groups import Groups, round_to_groups
from engine.checkpoint.source import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.model.batch import Span
from engine.model.linear import _FEW_ROWS, Int4Linear, Int8Linear, can_int4, can_int8, can_prepack
from engine.model.load import load_decoder
from engine.request import CompletionRequest, SamplingParams
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

needs_int8 = pytest.mark.skipif(not can_int8(), reason="no int8 products on this CPU")


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needs_int8
@pytest.mark.parametrize("rows", [1, 2, 8, 127, 128, 129, 300])
def test_int8_is_close_to_the_float_product(rows: int) -> None:
    weight, bias, x = _random(1, 200, 320), _random(2, 200), _random(3, rows, 320)
    expected = x.float() @ weight.float().T + bias.float()
    error = (Int8Linear(weight, bias)(x).float() - expected).norm() / expected.norm()
    assert 0 < error < 0.02  # of rounding to 8 bits twice


@needs_int8
@pytest.mark.parametrize("rows", [_FEW_ROWS, 300])
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(rows: int) -> None:
    linear, x = Int8Linear(_random(1, 96, 320)), _random(2, rows, 320)
    expected = linear(x)[0]
    for factor in (1e6, 1e-6, 0.0):
        wild = x.clone()
        wild[1:] *= factor
        assert torch.equal(linear(wild)[0], expected)


@needs_int8
def test_products_for_few_and_for_many_rows_differ_only_in_rounding() -> None:
    """Same integers, but rounded to bfloat16 (8 bits) once or twice."""
    weight, x = _random(1, 96, 320), _random(2, 300, 320)
    many = Int8Linear(weight)(x)
    few = Int8Linear(weight, has_many_rows=False)(x)
    assert torch.equal(few[:5], torch.cat([Int8Linear(weight)(row.unsqueeze(0)) for row in x[:5]]))
    scale = many.abs().amax(dim=-1, keepdim=True)
    assert ((many - few).abs() / scale).max() <= 2**-7
    assert (many != few).float().mean() < 0.5


@needs_int8
@pytest.mark.parametrize("rows", [2, 100])
def test_rows_of_zeros_and_of_one_sign(rows: int) -> None:
    linear = Int8Linear(torch.ones(4, 8, dtype=torch.bfloat16))
    for value in (0.0, 3.0, -3.0):
        assert torch.allclose(
            linear(torch.full((rows, 8), value).bfloat16()).float(), torch.tensor(8 * value), rtol=0.01
        )


needs_int4 = pytest.mark.skipif(not can_prepack(), reason="no bfloat16 products on this CPU")


def test_int4_products_want_whole_groups(tmp_path: Path) -> None:
    shape = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(own_head_dim=64))).config
    assert can_int4(shape)
    assert not can_int4(replace(shape, ffn_size=shape.ffn_size + 16))
    assert not can_int4(replace(shape, hidden_size=shape.hidden_size + 8))


@needs_int4
@pytest.mark.parametrize("rows", [1, 2, 8, 129])
@pytest.mark.parametrize("has_bias", [False, True])
def test_int4_is_close_to_the_product_with_its_groups(rows: int, has_bias: bool) -> None:
    groups, x = round_to_groups(_random(1, 96, 320)), _random(3, rows, 320)
    bias = _random(2, 96) if has_bias else None
    expected = x.float() @ groups.dequantised().T + (0.0 if bias is None else bias.float())
    linear = Int4Linear(groups, bias)
    assert linear.num_bytes == 96 * 320 // 2 + 96 * 320 // 32 * 4
    error = (linear(x).float() - expected).norm() / expected.norm()
    assert 0 < error < 0.01  # of scales in bfloat16


@needs_int4
def test_int4_of_every_value_in_every_place() -> None:
    values = (torch.arange(32 * 128, dtype=torch.int32) % 251 % 16).to(torch.uint8).view(32, 128)
    steps = torch.arange(32 * 4).view(32, 4).float()
    groups = Groups(values, steps - 100.0, 8.0 * (32 - steps))  # exact in bfloat16
    expected = groups.dequantised().T
    found = Int4Linear(groups)(torch.eye(128).bfloat16())
    assert torch.equal(found, expected.bfloat16())


@needs_int4
@pytest.mark.parametrize("block_type", [GGMLQuantizationType.F32, GGMLQuantizationType.Q4_0])
def test_an_int4_model_without_compiled_kernels(tmp_path: Path, block_type: GGMLQuantizationType) -> None:
    """Close to the float32 model where the file has four bits, farther where it is rounded."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(), block_type=block_type)
    checkpoint, cpu, ids = open_checkpoint(path), torch.device("cpu"), [7, 8, 9, 7]
    logits = []
    for dtype, precision in ((torch.float32, "exact"), (torch.bfloat16, "int4")):
        decoder, _ = load_decoder(checkpoint, dtype, cpu, 16, precision)
        storage = KVStorage(checkpoint.config, 3, 16, dtype, cpu)
        storage.clear([1])
        span = Span(ids, 0, [1])
        forward = decoder.start([span], storage)
        while not forward.is_done:
            forward.advance()
        logits.append(decoder.logits(forward.hidden(span, 4)))
    error = float((logits[1] - logits[0]).norm() / logits[0].norm())
    assert error < 0.05 if block_type == GGMLQuantizationType.Q4_0 else 0.05 < error < 0.4
    layers = sum(layer.qkv.num_bytes + layer.down.num_bytes for layer in decoder.layers)
    assert layers == 2 * (128 * 64 + 64 * 128) * 20 // 32
    engine = Engine.load(EngineConfig(model=str(path), precision="int4", kernels="torch"))
    assert (engine.info.dtype, engine.info.kernels) == ("int4", "torch: engine.kernels is 'torch'")
    request = CompletionRequest("def f(x):\n    ", "\n", SamplingParams(max_tokens=8, ignore_eos=True))
    assert len(engine.complete_all([request])[0].token_ids) >= 8


@needs_int8
def test_auto_is_int8_where_the_cpu_is_made_for_it(tmp_path: Path) -> None:
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    engines = {
        name: Engine.load(EngineConfig(model=path, precision=name, kernels="torch"))
        for name in ("exact", "int8", "auto")
    }
    assert [engine.info.dtype for engine in engines.values()] == ["bfloat16", "int8", "int8"]
    request = CompletionRequest("def f(x):\n    ", "\n", SamplingParams(max_tokens=8, ignore_eos=True))
    (one,) = engines["int8"].complete_all([request])
    many = engines["int8"].complete_all([request, CompletionRequest("x"), request])
    assert many[0].token_ids == many[2].token_ids == one.token_ids


def test_without_vnni_auto_is_exact_and_int8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu._is_vnni_supported", lambda: False)
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert Engine.load(EngineConfig(model=path)).info.dtype == "bfloat16"
    with pytest.raises(
        ConfigError, match=r"precision is 'int8', which cannot be had here .*; it must be one of auto, exact"
    ):
        Engine.load(EngineConfig(model=path, precision="int8"))


def test_float32_is_never_int8(tmp_path: Path) -> None:
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert Engine.load(EngineConfig(model=path, dtype="float32")).info.dtype == "float32"
