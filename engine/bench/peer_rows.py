"""What a comparison with a peer has given, and what is asked of it. Light: imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.report import Bar, Column, percentile

TOKENS_PER_S, MS = "tok/s", "ms"

PEER_COLUMNS = (
    Column("", "metric"),
    Column("", "unit"),
    Column("Midline", "midline", num_decimals=1),
    Column("llama.cpp", "peer", num_decimals=1),
    Column("by its clock", "peer_own", num_decimals=1),
    Column("ratio", "ratio", num_decimals=2),
    Column("asked", "asked", num_decimals=1),
)

BARS = {
    "qwen2.5-coder-0.5b": {"prefill 512": 2.2, "decode": 1.0, "decode code, drafting": 1.6, "decode 32-way": 2.0},
    "qwen2.5-coder-1.5b": {"prefill 512": 2.2, "decode": 0.7, "decode code, drafting": 1.4, "decode 32-way": 2.0},
}
"""The least ratio by model and metric."""


@dataclass(frozen=True)
class PeerRow:
    """One metric of both sides: medians or other percentiles of what each repetition has given."""

    metric: str
    unit: str
    midline: float
    peer: float
    peer_own: float | None
    """By the peer's own clock, without HTTP."""
    ratio: float
    """Above 1 Midline is faster."""
    asked: float | None
    midline_values: list[float]
    peer_values: list[float]


def compared(
    metric: tuple[str, str],
    midline: Sequence[float],
    peer: Sequence[float],
    peer_own: Sequence[float] = (),
    percent: float = 50.0,
    asked: float | None = None,
) -> PeerRow:
    """A row from the values of both sides; ``metric`` is its name and its unit."""
    name, unit = metric
    ours, theirs = percentile(midline, percent), percentile(peer, percent)
    assert ours and theirs, "nothing takes no time"
    return PeerRow(
        metric=name,
        unit=unit,
        midline=ours,
        peer=theirs,
        peer_own=percentile(peer_own, percent),
        ratio=ours / theirs if unit == TOKENS_PER_S else theirs / ours,
        asked=asked,
        midline_values=list(midline),
        peer_values=list(peer),
    )


def peer_bars(rows: Sequence[PeerRow]) -> list[Bar]:
    """What is asked of the ratios."""
    return [Bar.at_least(row.metric, row.ratio, row.asked) for row in rows if row.asked is not None]
