"""What Linux's control groups allow this process, of both versions. Light: reads a few small files.

A container sees all of its host's processors and memory; what it may use of them stands here alone.
"""

import math
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> float:
    """How many processors' time the process may use; infinite without a limit, or where this cannot be read."""
    quotas = [math.inf]
    for folder in _folders("cpu", root, membership):
        older = (*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us"))
        numbers = _numbers(folder / "cpu.max") or older
        if len(numbers) == 2 and min(numbers) > 0:  # the older version's quota is -1 without a limit
            quotas.append(numbers[0] / numbers[1])
    return min(quotas)


def free_memory_bytes(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> float:
    """Memory that the process's groups may still take; infinite without a limit, or where this cannot be read."""
    free = [math.inf]
    names = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for folder in _folders("memory", root, membership):
        for limit, used in ((_numbers(folder / limit), _numbers(folder / used)) for limit, used in names):
            if limit and used:
                free.append(max(0.0, limit[0] - used[0] + _page_cache_bytes(folder)))
    return min(free)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """The folder of the process's group and of all groups around it, as far as they can be seen from here."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        hierarchy = root / controllers if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (hierarchy.joinpath(*parts[:length]) for length in range(len(parts), -1, -1))


def _page_cache_bytes(folder: Path) -> float:
    """Files kept in memory count as used and are given up when it is needed."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return float(counts.get("inactive_file", 0))


def _numbers(path: Path) -> tuple[float, ...]:
    """The numbers in a file; ``max`` is infinite. Empty when it is not there or holds anything else."""
    try:
        words = path.read_text(encoding="utf-8").split()
        return tuple(math.inf if word == "max" else float(word) for word in words)
    except (OSError, ValueError):
        return ()
