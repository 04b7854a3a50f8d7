"""Two programs are measured in turn: one rests while the other computes. Light: imports no torch."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import psutil

T = TypeVar("T")

_REST_S = 0.1
"""In which threads that wait for more work give up and sleep."""


class Side(Protocol):
    """One of the programs."""

    name: str

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""


@dataclass(frozen=True)
class Turn(Generic[T]):
    """What a side does when its turn comes, by the number of the repetition."""

    side: Side
    work: Callable[[int], T]


class Turns:
    """Lets sides work one after the other, and watches that the others rest meanwhile."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._idle_cpu_s: dict[str, float] = {}
        self._idle_s: dict[str, float] = {}
        self._others_cpu_s = 0.0
        self._total_s = 0.0

    def take(self, *turns: Turn[T]) -> list[list[T]]:
        """All turns in order, ``count`` times over; returns for each turn what it has given."""
        sides = {turn.side.name: turn.side for turn in turns}
        results: list[list[T]] = [[] for _ in turns]
        for number in range(self.count):
            for turn, values in zip(turns, results, strict=True):
                time.sleep(_REST_S)
                with self._watching(turn.side, sides.values()):
                    values.append(turn.work(number))
        return results

    @property
    def idle_shares(self) -> dict[str, float]:
        """Share of a CPU that each side has used while another one worked."""
        return {name: self._idle_cpu_s[name] / seconds for name, seconds in self._idle_s.items()}

    @property
    def others_share(self) -> float:
        """CPUs that other programs have used meanwhile, on average, or that this machine was not given."""
        return max(0.0, self._others_cpu_s / self._total_s)

    @contextmanager
    def _watching(self, working: Side, sides: Iterable[Side]) -> Iterator[None]:
        before = [(side, side.cpu_s()) for side in sides]
        started, busy_s = time.perf_counter(), _busy_s()
        yield
        seconds, others_s = time.perf_counter() - started, _busy_s() - busy_s
        for side, cpu_s in before:
            used_s = side.cpu_s() - cpu_s
            others_s -= used_s
            if side is not working:
                self._idle_cpu_s[side.name] = self._idle_cpu_s.get(side.name, 0.0) + used_s
                self._idle_s[side.name] = self._idle_s.get(side.name, 0.0) + seconds
        self._others_cpu_s += others_s
        self._total_s += seconds


def _busy_s() -> float:
    """CPU seconds of all programs, and those that a virtual machine's host has kept for itself."""
    times = psutil.cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in busy))
