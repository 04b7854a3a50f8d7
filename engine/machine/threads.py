"""How many threads compute: one per physical core that this process may use. Light: imports no torch.

Two threads on one core share its arithmetic units and only get in each other's way.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from engine.machine.cgroup import cpu_quota

OMP_VARIABLE = "OMP_NUM_THREADS"
_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class ThreadCount:
    """How many threads compute, and why so many."""

    num_threads: int
    source: str


def count_threads(setting: int = 0) -> ThreadCount:
    """The threads for the setting ``engine.num_threads``: that many, or automatic for 0."""
    if setting:
        return ThreadCount(setting, "engine.num_threads")
    given = os.environ.get(OMP_VARIABLE, "")
    if given.isascii() and given.isdigit() and int(given):
        return ThreadCount(int(given), OMP_VARIABLE)
    return automatic_threads(_usable_cpus(), _physical_cores(), cpu_quota())


def automatic_threads(usable: frozenset[int], num_cores: int, quota: float, topology: Path = _TOPOLOGY) -> ThreadCount:
    """One per physical core among the ``usable`` logical processors, and no more than ``quota`` pays for.

    ``num_cores`` is of the whole machine, 0 if unknown; it serves where ``topology`` does not tell the cores apart.
    """
    siblings = [_siblings(cpu, topology) for cpu in usable]
    if all(siblings):
        num_threads, source = len(set(siblings)), "physical cores"
    else:
        num_threads, source = min(len(usable), num_cores or len(usable)), "physical cores"
    if num_threads < num_cores:
        source = "physical cores that this process may use"
    if quota < num_threads:
        return ThreadCount(max(1, math.floor(quota)), f"a CPU quota of {quota:.2g}")
    return ThreadCount(max(1, num_threads), source)


def _usable_cpus() -> frozenset[int]:
    """Numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    import psutil  # comes with the engine; a mere client of somebody else's engine has none

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # Windows
        return frozenset(process.cpu_affinity() or ())
    return frozenset(range(os.cpu_count() or 1))


def _physical_cores() -> int:
    import psutil

    return psutil.cpu_count(logical=False) or 0


def _siblings(cpu: int, topology: Path) -> str:
    """Which logical processors share this one's core; empty where the system does not tell."""
    try:
        return (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
