"""What one forward pass costs by the number of its rows, and where the time goes. Imports torch.

A pass over few rows is bound by reading the weights, one over many by multiplying. Everything is measured in turn, a
round after the other, so that what disturbs the machine disturbs all alike, and no operator finds its weights in the
caches because it was the one before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from engine.bench.anatomy import ATTENTION, Anatomy, StepCost
from engine.bench.parts import PRODUCTS
from engine.bench.report import Bar
from engine.bench.roofline import PRODUCT_OPS, READ_BYTES, MachineRates, fastest_product, fastest_read
from engine.bench.settings import StepSettings
from engine.bench.subject import Subject
from engine.errors import ConfigError
from engine.info import EngineInfo

_FEW_ROWS = 8
_MOST_FOR_FEW = 1.25
_LEAST_READ_SHARE = 0.8
_MOST_BESIDE_PRODUCTS = 0.25

_STEP, _READ, _PRODUCT = "step", "read", "product"
Work = tuple[int, str]
"""Number of rows, and the step, an operator, or what the machine does beside them: reading memory, a large product."""


@dataclass(frozen=True)
class StepRates(MachineRates):
    """Medians of the rounds in which the steps were measured."""

    best_read_gb_per_s: float


@dataclass(frozen=True)
class StepRow:
    """A pass over so many rows; medians, where nothing else is said."""

    num_rows: int
    median_ms: float
    least_ms: float
    read_bytes: int
    """Weights, keys and values, each once."""
    gb_per_s: float
    read_share: float
    """Of the read bandwidth."""
    num_ops: int
    """Multiplications and additions."""
    gop_per_s: float
    products_gb_per_s: float
    """Bytes of the weights by the time of the products alone."""
    products_read_share: float
    """Of the read bandwidth."""
    shares: dict[str, float]
    """Operator -> share of the time. ``rest`` makes it 1; it is below 0 where the operators alone took longer."""

    def flat(self) -> dict[str, Any]:
        """For a table: the shares are values of the row, ``qkv_share`` and so on."""
        row = asdict(self)
        return row | {f"{name}_share": share for name, share in row.pop("shares").items()}


def measure_step(
    subject: Subject, settings: StepSettings, say: Callable[[str], None]
) -> tuple[EngineInfo, list[StepRow], StepRates]:
    """The engine's facts, a row per number of rows, and the machine's rates. Raises ``ConfigError``, ``ModelError``."""
    anatomy, info = _load(subject, settings, say)
    kind, product = fastest_product()
    machine = {_READ: fastest_read(), _PRODUCT: product}
    say(f"{subject.name}: {settings.num_rounds} rounds over {', '.join(map(str, settings.rows))} rows")
    seconds = measure_in_turn(_works(anatomy, settings.rows, machine), settings.num_rounds)
    rates = _rates(kind, seconds)
    rows = []
    for num_rows in settings.rows:
        own = {name: times for (count, name), times in seconds.items() if count == num_rows}
        rows.append(step_row(num_rows, anatomy.cost(num_rows), own, rates.read_gb_per_s))
    return info, rows, rates


def _load(subject: Subject, settings: StepSettings, say: Callable[[str], None]) -> tuple[Anatomy, EngineInfo]:
    num_cached, max_rows = settings.num_cached_tokens, max(settings.rows)
    most = subject.shape.context_tokens
    if num_cached + max_rows > most:
        raise ConfigError(
            f"--context is {num_cached} and the most of --rows {max_rows}; "
            f"{subject.name} holds {most} tokens: give less"
        )
    config = replace(
        subject.config,
        precision=settings.precision,
        device="cpu",  # whose memory and products the rates are of
        max_context_tokens=max(subject.config.max_context_tokens, num_cached + max_rows),
    )
    say(f"{subject.name}: loading, and computing {num_cached} tokens of context")
    engine = replace(subject, config=config).load(kv_cache_mb=0)
    return Anatomy(engine, num_cached, max_rows, subject.vocabulary), engine.info


def _works(
    anatomy: Anatomy, rows: Sequence[int], machine: Mapping[str, Callable[[], object]]
) -> dict[Work, Callable[[], object]]:
    works: dict[Work, Callable[[], object]] = {}
    for num_rows in rows:
        own: dict[str, Callable[[], object]] = {
            **machine,
            _STEP: partial(anatomy.step, num_rows),
            **anatomy.operators(num_rows),
        }
        works |= {(num_rows, name): work for name, work in own.items()}
    return works


def _rates(product_kind: str, seconds: Mapping[Work, Sequence[float]]) -> StepRates:
    read_s, product_s = (
        [s for (_, n), times in seconds.items() if n == name for s in times] for name in (_READ, _PRODUCT)
    )
    return StepRates(
        read_gb_per_s=READ_BYTES / median(read_s) / 1e9,
        product_tops=PRODUCT_OPS / median(product_s) / 1e12,
        product_kind=product_kind,
        best_read_gb_per_s=READ_BYTES / min(read_s) / 1e9,
    )


def measure_in_turn(works: Mapping[Work, Callable[[], object]], num_rounds: int) -> dict[Work, list[float]]:
    """Seconds of each work in each round; a round before these warms up."""
    seconds: dict[Work, list[float]] = {key: [] for key in works}
    for _ in range(1 + num_rounds):
        for key, work in works.items():
            started = time.perf_counter()
            work()
            seconds[key].append(time.perf_counter() - started)
    return {key: times[1:] for key, times in seconds.items()}


def step_row(num_rows: int, cost: StepCost, seconds: Mapping[str, Sequence[float]], read_gb_per_s: float) -> StepRow:
    """From the seconds of ``step`` and of every operator."""
    step_s = median(seconds[_STEP])
    operators = {name: median(seconds[name]) for name in (*PRODUCTS, ATTENTION)}
    shares = {name: operator_s / step_s for name, operator_s in operators.items()}
    read_bytes = cost.weight_bytes + cost.kv_bytes
    gb_per_s = read_bytes / step_s / 1e9
    products_gb_per_s = cost.weight_bytes / sum(operators[name] for name in PRODUCTS) / 1e9
    return StepRow(
        num_rows=num_rows,
        median_ms=step_s * 1e3,
        least_ms=min(seconds[_STEP]) * 1e3,
        read_bytes=read_bytes,
        gb_per_s=gb_per_s,
        read_share=gb_per_s / read_gb_per_s,
        num_ops=cost.num_ops,
        gop_per_s=cost.num_ops / step_s / 1e9,
        products_gb_per_s=products_gb_per_s,
        products_read_share=products_gb_per_s / read_gb_per_s,
        shares=shares | {"rest": 1.0 - sum(shares.values())},
    )


def bars(rows: Sequence[StepRow]) -> list[Bar]:
    """What is asked of a step; without the rows that it is asked of, it is left out."""
    by_rows = {row.num_rows: row for row in rows}
    one, few = by_rows.get(1), by_rows.get(_FEW_ROWS)
    if one is None:
        return []
    beside = one.shares[ATTENTION] + one.shares["rest"]
    found = [
        Bar.at_least("1 row, products: GB/s by the read bandwidth", one.products_read_share, _LEAST_READ_SHARE),
        Bar.at_most("1 row, all but the products: share of the time", beside, _MOST_BESIDE_PRODUCTS),
    ]
    if few is not None:
        ratio = few.median_ms / one.median_ms
        found.append(Bar.at_most(f"{_FEW_ROWS} rows: time by that of 1 row", ratio, _MOST_FOR_FEW))
    return found
