"""Ceilings: computed from the model's shape and the measured rates."""

from engine.bench.roofline import MachineRates, ceiling, layer_weights
from engine.bench.workloads import Item
from engine.model.config import ModelConfig

_QWEN_05B = ModelConfig(
    architecture="qwen2",
    num_layers=24,
    hidden_size=896,
    ffn_size=4864,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=151936,
    context_tokens=32768,
    rms_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=None,
    has_qkv_bias=True,
    is_tied=True,
)


def test_the_default_model_takes_what_is_known_of_it() -> None:
    assert round(2 * layer_weights(_QWEN_05B) / 1e9, 2) == 0.72
    rates = MachineRates(read_gb_per_s=25.0, product_tops=0.8, product_kind="int8")
    best = ceiling(_QWEN_05B, [Item((0,) * 1000, 11), Item((0,) * 1000, 6)], 1, rates)
    assert best.num_steps == 15
    assert round(best.prefill_s, 3) == round(2000 * 0.71565 / 800, 3)
    assert round(best.decode_s / 15 * 1e3, 1) == 19.8  # 494 MB at 25 GB/s
    assert best.total_s == best.prefill_s + best.decode_s
    assert ceiling(_QWEN_05B, [Item((0,) * 1000, 11), Item((0,) * 1000, 6)], 2, rates).num_steps == 10


def test_a_step_of_many_rows_is_bound_by_products() -> None:
    rates = MachineRates(read_gb_per_s=25.0, product_tops=0.8, product_kind="int8")
    best = ceiling(_QWEN_05B, [Item((0,), 2)] * 64, 64, rates)
    assert best.num_steps == 1
    assert round(best.decode_s * 1e3) == round(64 * 2 * 494.0 / 800)
