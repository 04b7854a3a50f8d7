"""How much memory a model may take, and what to do when it wants more. Light: imports no torch."""

from collections.abc import Mapping

from engine.errors import ConfigError
from engine.machine.cgroup import free_memory_bytes

PRECISIONS = ("exact", "int8", "mixed", "int4")
"""From the largest to the smallest: what does not fit in one is tried in the next."""
_FREE_SHARE = 0.5


def available_bytes() -> int:
    """Memory that programs can still get, within this process's own limits."""
    import psutil  # comes with the engine; a mere client of somebody else's engine has none

    return int(min(psutil.virtual_memory().available, free_memory_bytes()))


def allowed_bytes(max_memory_mb: int, free_bytes: int) -> int:
    """What weights and cache may take together: the setting ``engine.max_memory_mb``, or half of what is free for 0."""
    return max_memory_mb * 2**20 if max_memory_mb else int(free_bytes * _FREE_SHARE)


def choose_precision(wanted: str, sizes_bytes: Mapping[str, int], allowed_bytes: int) -> tuple[str, str]:
    """The precision to load in, and one line that says so if it is not the wanted one (else empty).

    ``sizes_bytes`` are of weights and cache by precision, for those that can be had here; ``wanted`` is one of them.
    Raises ``ConfigError`` when even the smallest is too large.
    """
    for precision in (wanted, *PRECISIONS[PRECISIONS.index(wanted) + 1 :]):
        if precision in sizes_bytes and sizes_bytes[precision] <= allowed_bytes:
            if precision == wanted:
                return wanted, ""
            needs = f"engine.precision {wanted} needs {_gb(sizes_bytes[wanted])}, {_gb(allowed_bytes)} are allowed"
            return precision, f"{needs}: {precision} is used"
    least = min(sizes_bytes.values())
    raise ConfigError(
        f"the model needs {_gb(least)} of memory, {_gb(allowed_bytes)} are allowed (engine.max_memory_mb; by default "
        "half of what is free): end other programs, raise the setting, or choose a smaller model"
    )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
