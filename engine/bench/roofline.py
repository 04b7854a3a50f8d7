"""What this machine could do at best: measured rates, and the time a workload takes at them. Imports torch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.bench.workloads import Item, decode_rows
from engine.machine.predict import layer_weights
from engine.model.config import ModelConfig

READ_BYTES = 2**29
_NUM_TRIES = 10
_ROWS, _INNER, _OUTER = 512, 2048, 4096
PRODUCT_OPS = 2 * _ROWS * _INNER * _OUTER


@dataclass(frozen=True)
class MachineRates:
    """The best of several tries with all compute threads."""

    read_gb_per_s: float
    """From memory, far beyond the caches."""
    product_tops: float
    """10^12 multiplications and additions per second in a large matrix product."""
    product_kind: str
    """``int8`` or ``bfloat16``, whichever is faster here."""


@dataclass(frozen=True)
class Ceiling:
    """The least time for a workload with int8 weights: at the product rate, and no step faster than they are read."""

    prefill_s: float
    decode_s: float
    num_steps: int

    @property
    def total_s(self) -> float:
        """Both, one after the other."""
        return self.prefill_s + self.decode_s


def measure_rates() -> MachineRates:
    """Takes a second or two."""
    kind, tops = measure_product()
    return MachineRates(READ_BYTES / _best_s(fastest_read()) / 1e9, tops, kind)


def measure_product() -> tuple[str, float]:
    """``MachineRates.product_kind`` and ``product_tops``; takes less than a second."""
    kind, product = fastest_product()
    return kind, PRODUCT_OPS / _best_s(product) / 1e12


def fastest_read() -> Callable[[], object]:
    """Reads ``READ_BYTES`` from memory, far beyond the caches, in whichever way is faster here."""
    buffer = torch.ones(READ_BYTES // 4)
    ways: tuple[Callable[[], object], ...] = (buffer.sum, buffer.amax)
    return min(ways, key=_best_s)


def fastest_product() -> tuple[str, Callable[[], object]]:
    """``MachineRates.product_kind``, and a product of that kind with ``PRODUCT_OPS`` operations."""
    return min(_products().items(), key=lambda item: _best_s(item[1]))


def ceiling(shape: ModelConfig, items: Sequence[Item], cap: int, rates: MachineRates) -> Ceiling:
    """The least time for ``items`` in this order, ``cap`` at once. Attention is left out: it only adds to it."""
    weights = layer_weights(shape)
    num_prompt_tokens = sum(len(item.prompt_ids) for item in items)
    rows_of_steps = decode_rows(items, cap)
    step_bytes = weights + shape.vocab_size * shape.hidden_size  # an int8 weight is a byte, and two operations a row
    read_s, row_s = step_bytes / (rates.read_gb_per_s * 1e9), 2 * step_bytes / (rates.product_tops * 1e12)
    return Ceiling(
        prefill_s=num_prompt_tokens * 2 * weights / (rates.product_tops * 1e12),
        decode_s=sum(max(read_s, rows * row_s) for rows in rows_of_steps),
        num_steps=len(rows_of_steps),
    )


def _products() -> dict[str, Callable[[], object]]:
    x = torch.randn(_ROWS, _INNER, dtype=torch.bfloat16)
    weight = torch.randn(_INNER, _OUTER, dtype=torch.bfloat16)
    products: dict[str, Callable[[], object]] = {"bfloat16": lambda: x @ weight}
    try:
        products["int8"] = _int8_product()
    except (AttributeError, RuntimeError):  # this build of torch, or this CPU, has none
        return products
    return products


def _int8_product() -> Callable[[], object]:
    """oneDNN's product of packed int8 weights. Raises ``AttributeError`` or ``RuntimeError`` where there is none."""
    x = torch.randint(0, 255, (_ROWS, _INNER), dtype=torch.uint8)
    weight = torch.randint(-127, 127, (_OUTER, _INNER), dtype=torch.int8)
    ops = torch.ops.onednn
    packed = ops.qlinear_prepack(weight, [_ROWS, _INNER])
    scales, zeros = torch.full((_OUTER,), 0.01), torch.zeros(_OUTER, dtype=torch.int64)

    def product() -> object:
        return ops.qlinear_pointwise(
            *(x, 0.01, 128, packed, scales, zeros), *(None, 1.0, 0, torch.bfloat16, "none", [], "")
        )

    product()
    return product


def _best_s(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(_NUM_TRIES):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
