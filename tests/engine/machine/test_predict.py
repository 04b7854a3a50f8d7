from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.catalogue import load_catalogue
from engine.machine.memory import PRECISIONS, PROCESS_BYTES
from engine.machine.predict import (
    DEFAULT_CACHE_BYTES,
    KernelRates,
    ModelSize,
    Rates,
    cache_bytes,
    memory_bytes,
    resolve_precision,
    step_bytes,
    step_s,
    suggestion_ms,
)
from tests.support.machine import LARGE, SMALL, rates

SIZE = ModelSize(num_layers=10, layer_weights=900, head_weights=100, kv_width=4, four_bit_share=0.5)
KERNEL = KernelRates((500.0, 400.0, 50.0), layer_s=0.1)
RATES = Rates(read_bytes_per_s=1000.0, kernels={"exact": KERNEL, "int8": KERNEL}, automatic="int8")

speeds = st.floats(1e6, 1e12)
counts = st.integers(1, 10**9)
precisions = st.sampled_from(PRECISIONS)
sizes = st.builds(ModelSize, st.integers(1, 100), counts, counts, st.integers(1, 4096), st.floats(0.0, 1.0))
kernel_rates = st.builds(KernelRates, st.tuples(speeds, speeds, speeds), st.floats(1e-7, 1e-2))
measured = st.fixed_dictionaries(dict.fromkeys(("exact", "int8", "int4"), kernel_rates))  # mixed is made of two
machines = st.builds(Rates, speeds, measured, precisions)


def test_a_step_is_its_reading_or_its_products_and_its_layers() -> None:
    product_s = (1000 / 500 + 1000 / 400) / 2  # of one row and of eight
    assert step_s(SIZE, "exact", RATES) == pytest.approx(product_s + 10 * 0.1)
    fast = replace(RATES, kernels={"exact": KernelRates((1e9, 1e9, 1e9), 0.1)})
    assert step_s(SIZE, "exact", fast) == pytest.approx(2000 / 1000 + 10 * 0.1)
    assert suggestion_ms(SIZE, "exact", fast) == pytest.approx(1000 * 3.0 * (1 + 12 / 1.5))


def test_bytes_of_a_step() -> None:
    assert [step_bytes(SIZE, precision) for precision in ("exact", "int8", "mixed", "int4")] == [
        2000, 1000, 450 + 450 * 0.625 + 100, 900 * 0.625 + 100,
    ]  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_mixed_is_in_between_by_what_the_file_has_in_four_bits(share: float) -> None:
    known, size = rates(automatic="mixed"), replace(SIZE, four_bit_share=share)
    int8, int4 = (step_s(size, precision, known) for precision in ("int8", "int4"))
    assert step_s(size, "mixed", known) == pytest.approx(share * int4 + (1 - share) * int8)


def test_torch_keeps_int8_twice_and_the_compiled_kernels_once() -> None:
    torch, native = (memory_bytes(SIZE, 8192, 0, is_native) for is_native in (False, True))
    assert torch["int8"] - native["int8"] == 900
    assert torch["exact"] == native["exact"] == 2 * 900 + 4 * 100 + DEFAULT_CACHE_BYTES + PROCESS_BYTES


def test_a_setting_that_cannot_be_had_here_is_as_auto() -> None:
    wanted = ("auto", "exact", "int8", "mixed", "int4")
    assert [resolve_precision(name, RATES) for name in wanted] == ["int8", "exact", "int8", "int8", "int8"]
    native = rates(automatic="mixed")
    assert [resolve_precision(name, native) for name in wanted] == ["mixed", "exact", "int8", "mixed", "int4"]


def test_cache_is_the_setting_or_one_context_at_least() -> None:
    token_bytes = 2 * 10 * 4 * 2
    assert cache_bytes(SIZE, 8192) == DEFAULT_CACHE_BYTES
    assert cache_bytes(SIZE, 10**7) == 10**7 * token_bytes
    assert cache_bytes(SIZE, 10**7, kv_cache_mb=3) == 3 * 2**20


def test_the_catalogue_s_models_on_two_cores_of_a_server() -> None:
    """25 GB/s and 0.2 ms a layer: a token of the small model takes 26 ms there, its weights and cache 1,392 MB."""
    small, large, known = load_catalogue()[SMALL].size, load_catalogue()[LARGE].size, rates(25.0, layer_us=200.0)
    assert 1000 * step_s(small, "int8", known) == pytest.approx(26, rel=0.1)
    assert memory_bytes(small, 8192, 0, is_native=False)["int8"] - PROCESS_BYTES == pytest.approx(1.392e9, rel=0.001)
    assert suggestion_ms(large, "int8", known) > 500 > suggestion_ms(large, "int4", known)


def _each(known: Rates, change: Callable[[KernelRates], KernelRates]) -> Rates:
    return replace(known, kernels={precision: change(kernel) for precision, kernel in known.kernels.items()})


@given(sizes, machines, precisions, st.floats(1.0, 100.0))
@settings(derandomize=True, max_examples=200)
def test_a_faster_machine_never_takes_longer(size: ModelSize, known: Rates, precision: str, factor: float) -> None:
    took_ms = suggestion_ms(size, precision, known)
    faster = (
        replace(known, read_bytes_per_s=known.read_bytes_per_s * factor),
        _each(known, lambda kernel: replace(kernel, layer_s=kernel.layer_s / factor)),
        _each(known, lambda kernel: replace(kernel, weights_per_s=tuple(factor * x for x in kernel.weights_per_s))),
    )
    assert all(suggestion_ms(size, precision, machine) <= took_ms for machine in faster)


@given(sizes, machines, precisions, counts, st.booleans())
@settings(derandomize=True, max_examples=200)
def test_a_larger_model_never_takes_less(
    size: ModelSize, known: Rates, precision: str, more: int, is_native: bool
) -> None:
    took_ms, memory = suggestion_ms(size, precision, known), memory_bytes(size, 8192, 0, is_native)
    for name in ("num_layers", "layer_weights", "head_weights", "kv_width"):
        larger = replace(size, **{name: getattr(size, name) + more})
        assert suggestion_ms(larger, precision, known) >= took_ms
        assert all(memory_bytes(larger, 8192, 0, is_native)[name] >= memory[name] for name in PRECISIONS)


@given(sizes)
@settings(derandomize=True, max_examples=100)
def test_a_smaller_precision_never_takes_more_bytes(size: ModelSize) -> None:
    memory = memory_bytes(size, 8192, 0, is_native=True)
    assert [memory[name] for name in PRECISIONS] == sorted(memory.values(), reverse=True)
    steps = [step_bytes(size, precision) for precision in PRECISIONS]
    assert steps == pytest.approx(sorted(steps, reverse=True))
