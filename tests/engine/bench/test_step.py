"""A step taken apart: what is run, what is counted, and what is concluded from the times."""

import math
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.bench import anatomy as anatomy_module
from engine.bench import parts as parts_module
from engine.bench import step as step_module
from engine.bench.anatomy import ATTENTION, Anatomy, StepCost
from engine.bench.parts import PRODUCTS
from engine.bench.report import STEP_COLUMNS, STEP_SHARES
from engine.bench.roofline import PRODUCT_OPS, READ_BYTES
from engine.bench.settings import PUBLISHED, StepSettings
from engine.bench.step import StepRates, StepRow, bars, measure_in_turn, measure_step, step_row
from engine.bench.subject import open_subject
from engine.cache.storage import KVStorage
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.linear import can_int8
from engine.model.native.decoder import NativeDecoder
from tests.support.kv import small_engine
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

_NUM_CACHED = 21
_VOCABULARY = range(7, 60)
_COST = StepCost(weight_bytes=80_000_000, kv_bytes=20_000_000, num_ops=50_000_000)


class _Recorded:
    """A product that notes how many rows it gets."""

    def __init__(self, linear: Any, name: str, log: list[tuple[str, int]]) -> None:
        self.in_features, self.out_features, self.num_bytes = linear.in_features, linear.out_features, linear.num_bytes
        self._linear, self._name, self._log = linear, name, log

    def __call__(self, x: Tensor) -> Tensor:
        self._log.append((self._name, len(x)))
        product: Tensor = self._linear(x)
        return product


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return small_engine(tmp_path, monkeypatch, num_blocks=40)


@pytest.fixture
def log(engine: Engine) -> list[tuple[str, int]]:
    """Every product of the engine's model from now on: its name and rows."""
    calls: list[tuple[str, int]] = []
    decoder = engine.model.decoder
    for index, layer in enumerate(decoder.layers):
        own = {name: _Recorded(getattr(layer, name), f"{name} {index}", calls) for name in PRODUCTS if name != "head"}
        decoder.layers[index] = replace(layer, **own)  # type: ignore[arg-type]
    decoder._head = _Recorded(decoder._head, "head", calls)  # type: ignore[assignment]
    return calls


def _num_weights(shape: ModelConfig) -> tuple[int, int]:
    """Of all layers, and of the head."""
    attention = shape.num_heads * shape.head_dim
    qkv = attention + 2 * shape.num_kv_heads * shape.head_dim
    layer = shape.hidden_size * (qkv + attention + 2 * shape.ffn_size + shape.ffn_size)
    return shape.num_layers * layer, shape.vocab_size * shape.hidden_size


def _row(num_rows: int, **seconds: float) -> StepRow:
    """Whose operators take 10 ms each, or what is given."""
    times = {name: [0.01] for name in ("step", *PRODUCTS, ATTENTION)} | {k: [s] for k, s in seconds.items()}
    return step_row(num_rows, _COST, times, read_gb_per_s=20.0)


def test_a_step_is_a_whole_pass_behind_the_context(engine: Engine, log: list[tuple[str, int]]) -> None:
    subject = Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY)
    assert [call for call in log if call[0] == "qkv 0"] == [("qkv 0", _NUM_CACHED)]
    log.clear()
    subject.step(3)
    in_layers = [(f"{name} {index}", 3) for index in range(2) for name in ("qkv", "output", "gate_up", "down")]
    assert log == [*in_layers, ("head", 1)]


def test_a_long_context_is_computed_in_pieces(
    engine: Engine, log: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anatomy_module, "_CHUNK_TOKENS", 8)
    Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY)
    assert [rows for name, rows in log if name == "down 1"] == [8, 8, 5]


def test_operators_are_those_of_the_step(engine: Engine, log: list[tuple[str, int]]) -> None:
    subject = Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY)
    log.clear()
    subject.step(5)
    in_step = Counter(log)
    log.clear()
    operators = subject.operators(5)
    assert set(operators) == {*PRODUCTS, ATTENTION}
    for name, work in operators.items():
        before = len(log)
        work()
        calls = log[before:]
        assert [call for call, _ in calls] == sorted(call for call, _ in calls if call.startswith(name))
    assert Counter(log) == in_step


def test_attention_alone_is_that_of_the_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY)
    subject.step(8)
    seen = []

    def attend(query: Tensor, group: Any, keys: Tensor, values: Tensor) -> Tensor:
        seen.append((query.shape, keys, values, group.mask.shape))
        return query

    monkeypatch.setattr(parts_module, "attend", attend)
    subject.operators(8)[ATTENTION]()
    config, storage = engine.model.decoder.config, engine.model.storage
    assert len(seen) == config.num_layers
    for index, (shape, keys, values, mask_shape) in enumerate(seen):
        assert shape == (8, config.num_heads, config.head_dim)
        assert keys.shape[2] == mask_shape[-1] == 32  # 29 tokens in blocks of 4
        stored = storage.read(index, torch.tensor([subject._blocks[:8]]))
        assert torch.equal(keys, stored[0]) and torch.equal(values, stored[1])
        assert keys[0, 0, : _NUM_CACHED + 8].abs().sum(-1).min() > 0.0  # all have been computed
    assert not torch.equal(seen[0][1], seen[1][1])


@pytest.mark.parametrize("num_rows", [1, 6])
def test_bytes_and_operations(engine: Engine, num_rows: int) -> None:
    shape = engine.model.decoder.config
    cost = Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY).cost(num_rows)
    in_layers, head = _num_weights(shape)
    assert cost.weight_bytes == 4 * (in_layers + head)
    assert cost.kv_bytes == (_NUM_CACHED + num_rows) * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4
    num_pairs = sum(_NUM_CACHED + row + 1 for row in range(num_rows))  # of a row and a token it sees
    scores_and_sums = 2 * num_pairs * shape.num_heads * shape.head_dim * shape.num_layers
    assert cost.num_ops == 2 * (in_layers * num_rows + head + scores_and_sums)


@pytest.mark.skipif(not can_int8(), reason="needs a CPU with VNNI instructions")
def test_an_int8_weight_is_one_byte_however_often_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, seed=1)
    engine = Engine.load(EngineConfig(model=str(path), precision="int8", max_context_tokens=96))
    shape = engine.model.decoder.config
    cost = Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY).cost(1)
    assert cost.weight_bytes == sum(_num_weights(shape))
    assert cost.kv_bytes == 22 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 2


@pytest.mark.skipif(not can_int8(), reason="needs a CPU with VNNI instructions")
def test_a_compiled_model_is_taken_apart_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    shape = TinyShape(hidden_size=128, ffn_size=192, num_heads=2, num_kv_heads=1, own_head_dim=64)
    write_tiny_gguf(path, seed=1, shape=shape)
    engine = Engine.load(EngineConfig(model=str(path), precision="int8", max_context_tokens=96))
    decoder, storage = engine.model.decoder, engine.model.storage
    if not isinstance(decoder, NativeDecoder):
        pytest.skip("the compiled kernels cannot be had here")
    subject = Anatomy(engine, _NUM_CACHED, 8, _VOCABULARY)
    in_layers, _ = _num_weights(decoder.config)
    head = decoder.weights.head
    scales = sum(form.outputs for layer in decoder.weights.layers for form in layer.products) + head.outputs
    assert subject.cost(1).weight_bytes == in_layers + head.outputs * head.inputs + 4 * scales

    def logits() -> Tensor:
        forward = decoder.start([span := subject._new_span(5)], storage)
        while not forward.is_done:
            forward.advance()
        return decoder.logits(forward.hidden(span, 5))

    before = logits()
    layers: list[int] = []
    addresses = KVStorage.addresses
    monkeypatch.setattr(KVStorage, "addresses", lambda own, layer: (layers.append(layer), addresses(own, layer))[1])
    for work in subject.operators(5).values():
        work()
        work()
    assert layers == [0, 1] * 2  # of attention alone, twice
    assert torch.equal(logits(), before)  # the pass reads nothing that the operators alone have left


def test_everything_is_measured_in_turn_after_a_round_to_warm_up() -> None:
    log: list[str] = []
    works = {(1, "step"): lambda: log.append("a"), (1, "qkv"): lambda: log.append("b")}
    seconds = measure_in_turn(works, 3)
    assert log == ["a", "b"] * 4
    assert {key: len(times) for key, times in seconds.items()} == {(1, "step"): 3, (1, "qkv"): 3}
    assert all(0.0 <= s < 1.0 for times in seconds.values() for s in times)


def test_a_row_is_computed_from_medians() -> None:
    operators = {name: [9.0, 0.01, 0.001] for name in (*PRODUCTS, ATTENTION)}
    row = step_row(4, _COST, {"step": [0.1, 0.08, 5.0], **operators}, read_gb_per_s=20.0)
    assert (row.num_rows, row.median_ms, row.least_ms) == (4, 100.0, 80.0)
    assert (row.read_bytes, row.num_ops) == (100_000_000, 50_000_000)
    assert math.isclose(row.gb_per_s, 1.0) and math.isclose(row.read_share, 0.05)
    assert math.isclose(row.gop_per_s, 0.5)
    assert math.isclose(row.products_gb_per_s, 1.6) and math.isclose(row.products_read_share, 0.08)
    assert list(row.shares) == [*PRODUCTS, ATTENTION, "rest"]
    assert math.isclose(row.shares["qkv"], 0.1) and math.isclose(row.shares["rest"], 0.4)
    assert math.isclose(sum(row.shares.values()), 1.0)


def test_the_rest_may_be_negative_but_shares_are_one() -> None:
    row = _row(1, step=0.05)
    assert math.isclose(row.shares["rest"], -0.2) and math.isclose(sum(row.shares.values()), 1.0)


def test_bars_compare_the_right_rows() -> None:
    rows = [_row(2, step=7.0), _row(8, step=0.12), _row(1, step=0.1), _row(16, step=9.0)]
    products, beside, ratio = bars(rows)
    assert math.isclose(products.value, 0.08) and (products.limit, products.is_least) == (0.8, True)
    assert math.isclose(beside.value, 0.5) and (beside.limit, beside.is_least) == (0.25, False)
    assert math.isclose(ratio.value, 1.2) and (ratio.limit, ratio.is_least) == (1.25, False)
    assert [bar.is_met for bar in (products, beside, ratio)] == [False, False, True]


def test_bars_are_met_at_their_limits() -> None:
    one = replace(_row(1), products_read_share=0.8, median_ms=100.0, shares={ATTENTION: 0.125, "rest": 0.125})
    eight = replace(one, num_rows=8, median_ms=125.0)
    assert [bar.is_met for bar in bars([one, eight])] == [True, True, True]
    missed = replace(one, products_read_share=0.79, shares={ATTENTION: 0.13, "rest": 0.125})
    assert [bar.is_met for bar in bars([missed, replace(eight, median_ms=126.0)])] == [False, False, False]


def test_without_the_rows_there_is_no_bar() -> None:
    assert bars([_row(2), _row(8)]) == []
    assert [bar.name[:5] for bar in bars([_row(1), _row(2)])] == ["1 row", "1 row"]


def test_every_column_is_a_value_of_a_row() -> None:
    flat = _row(1).flat()
    assert {column.name for column in (*STEP_COLUMNS, *STEP_SHARES)} <= set(flat)
    assert {field.name for field in fields(StepRow)} - {"shares"} <= set(flat)
    assert all(isinstance(value, int | float) for value in flat.values())


def test_more_than_the_model_holds_is_refused_before_it_is_loaded() -> None:
    settings = StepSettings(num_cached_tokens=2000, rows=(1, 49))
    with open_subject(PUBLISHED) as subject, pytest.raises(ConfigError) as error:
        measure_step(subject, settings, pytest.fail)
    assert str(error.value) == "--context is 2000 and the most of --rows 49; published holds 2048 tokens: give less"


def test_each_row_has_its_own_times_and_all_have_the_rates_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = StepSettings(num_cached_tokens=5, rows=(1, 8), num_rounds=3)

    def in_turn(works: dict[tuple[int, str], Any], num_rounds: int) -> dict[tuple[int, str], list[float]]:
        assert num_rounds == 3
        assert set(works) == {(n, name) for n in (1, 8) for name in ("read", "product", "step", *PRODUCTS, ATTENTION)}
        for work in works.values():
            work()
        read_s, product_s = READ_BYTES / 1e9, PRODUCT_OPS / 1e12
        machine = {"read": [read_s / 20, read_s / 25, read_s / 10], "product": [product_s / x for x in (1, 2, 4)]}
        return {(num_rows, name): machine.get(name, [float(num_rows)] * 3) for num_rows, name in works}

    monkeypatch.setattr(step_module, "fastest_read", lambda: int)
    monkeypatch.setattr(step_module, "fastest_product", lambda: ("int8", int))
    monkeypatch.setattr(step_module, "measure_in_turn", in_turn)
    with open_subject(PUBLISHED) as subject:
        info, rows, rates = measure_step(subject, settings, lambda _: None)
    assert (info.device, info.dtype) == ("cpu", "float32")
    assert [(row.num_rows, row.median_ms) for row in rows] == [(1, 1e3), (8, 8e3)]
    assert rows[0].num_ops < rows[1].num_ops
    assert rates == StepRates(pytest.approx(20.0), pytest.approx(2.0), "int8", best_read_gb_per_s=pytest.approx(25.0))
    assert [row.read_share for row in rows] == [pytest.approx(row.gb_per_s / 20.0) for row in rows]
