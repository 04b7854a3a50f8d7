"""How much memory a model may take, and what to do when it wants more. Light: imports no torch."""

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from engine.machine.cgroup import free_memory_bytes

PRECISIONS = ("exact", "int8", "mixed", "int4")
"""From the largest to the smallest: what does not fit in one is tried in the next."""
_FREE_SHARE = 0.5
_STATUS = Path("/proc/self/status")
_SLACK_BYTES = 16 * 2**20  # the same process takes a little more another time
WORK_BYTES = 144 * 2**20
"""What passes and requests take besides. Measured in bulk: 50 to 104 MiB, with 0.5 and 1.5 billion parameters.

The pages of libraries count as the process's. Linux maps those in larger pieces that were just written: torch's takes
97 MiB after its installation and 49 after a restart, a part of it only when passes first touch it.
"""
PROCESS_BYTES = 336 * 2**20 + WORK_BYTES
"""What the engine's process takes besides weights and cache, as measured on a CPU: Python, torch, the vocabulary."""


def available_bytes() -> int:
    """Memory that programs can still get, within this process's own limits."""
    import psutil  # comes with the engine; a mere client of somebody else's engine has none

    return int(min(psutil.virtual_memory().available, free_memory_bytes()))


def resident_bytes() -> int:
    """Memory that this process has."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most memory that this process has ever had."""
    if os.name == "nt":
        import psutil

        return int(psutil.Process().memory_info()._asdict()["peak_wset"])
    if _STATUS.exists():  # Linux; getrusage would begin with the peak of whoever has started us
        return int(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def give_back_unused() -> None:
    """Memory that was freed and that the C library keeps back for later: hundreds of MB after weights were packed."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others give back at once
        if trim is not None:
            trim(0)


def allowed_bytes(max_memory_mb: int, free_bytes: int) -> int:
    """What the engine's process may take: the setting ``engine.max_memory_mb``, or half of what is free for 0."""
    return max_memory_mb * 2**20 if max_memory_mb else int(free_bytes * _FREE_SHARE)


@dataclass(frozen=True)
class Budget:
    """Of a process that is about to load a model."""

    allowed_bytes: int
    """What it may take in all."""
    other_bytes: int
    """What it takes besides this model's weights and cache."""

    @property
    def room_bytes(self) -> int:
        """For weights and cache."""
        return max(0, self.allowed_bytes - self.other_bytes)


def budget(max_memory_mb: int, free_bytes: int, taken_bytes: int, reserved_bytes: int = 0) -> Budget:
    """For a process that has ``taken_bytes`` already; ``reserved_bytes`` are spoken for, but not touched yet."""
    allowed = allowed_bytes(max_memory_mb, free_bytes + taken_bytes)
    return Budget(allowed, taken_bytes + WORK_BYTES + reserved_bytes)


def choose_precision(wanted: str, sizes_bytes: Mapping[str, int], allowed_bytes: int) -> tuple[str, str]:
    """The precision to load in, and one line that says so if it is not the wanted one (else empty).

    ``sizes_bytes`` are of the whole process by precision, for those that can be had here; ``wanted`` is one of them.
    Raises ``ConfigError`` when even the smallest is too large.
    """
    for precision in (wanted, *PRECISIONS[PRECISIONS.index(wanted) + 1 :]):
        if precision in sizes_bytes and sizes_bytes[precision] <= allowed_bytes:
            if precision == wanted:
                return wanted, ""
            needs = f"engine.precision {wanted} needs {_gb(sizes_bytes[wanted])}, {_gb(allowed_bytes)} are allowed"
            return precision, f"{needs}: {precision} is used"
    least = min(sizes_bytes.values())
    enough_mb = -(-(least + _SLACK_BYTES) // (50 * 2**20)) * 50
    raise ConfigError(
        f"the model needs {_gb(least)} of memory, {_gb(allowed_bytes)} are allowed (engine.max_memory_mb; by default "
        f"half of what is free): end other programs, set it to {enough_mb}, or choose a smaller model"
    )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
