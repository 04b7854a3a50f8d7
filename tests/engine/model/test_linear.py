"""Int8 products against the float product, and that no row knows of another."""

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.model.linear import _FEW_ROWS, Int8Linear, can_int8
from engine.request import CompletionRequest, SamplingParams
from tests.support.tiny_checkpoints import write_tiny_gguf

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


@needs_int8
def test_auto_is_int8_where_the_cpu_is_made_for_it(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    engines = {name: Engine.load(EngineConfig(model=str(path), precision=name)) for name in ("exact", "int8", "auto")}
    assert [engine.info.dtype for engine in engines.values()] == ["bfloat16", "int8", "int8"]
    request = CompletionRequest("def f(x):\n    ", "\n", SamplingParams(max_tokens=8, ignore_eos=True))
    (one,) = engines["int8"].complete_all([request])
    many = engines["int8"].complete_all([request, CompletionRequest("x"), request])
    assert many[0].token_ids == many[2].token_ids == one.token_ids


def test_without_vnni_auto_is_exact_and_int8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu._is_vnni_supported", lambda: False)
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert Engine.load(EngineConfig(model=path)).info.dtype == "bfloat16"
    with pytest.raises(ConfigError, match="precision is 'int8'; that needs a CPU with VNNI"):
        Engine.load(EngineConfig(model=path, precision="int8"))


def test_float32_is_never_int8(tmp_path: Path) -> None:
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert Engine.load(EngineConfig(model=path, dtype="float32")).info.dtype == "float32"
