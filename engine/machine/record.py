"""What was measured on this machine, kept in a file of the cache folder. Light: imports no torch.

There is one file for each combination of processor, versions, threads and some settings: another measures anew. A
file that cannot be understood counts as none. Whoever writes holds the file's lock.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import cattrs
import filelock

from engine import __version__
from engine.checkpoint.record import write_json_atomically
from engine.config import EngineConfig
from engine.machine.predict import ROWS, Rates
from engine.machine.threads import count_threads
from engine.paths import cache_dir

_SCHEMA = 2
_MAX_BUSY_CORES = 0.5
_DISTURBED_FOR_S = 3600.0
_PLAUSIBLE = (1e-9, 1e18)


@dataclass(frozen=True)
class MachineKey:
    """What the measured rates depend on."""

    cpu: str
    torch: str
    """Its version; empty where it is not installed."""
    midline: str
    num_threads: int
    settings: tuple[str, ...]
    """Those of the engine that choose what computes."""
    schema: int = _SCHEMA

    @property
    def path(self) -> Path:
        """The file."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]
        return cache_dir() / "machine" / f"{digest}.json"


@dataclass(frozen=True)
class Machine:
    """What is known of this machine."""

    rates: Rates | None
    """None when they could not be measured."""
    error: str = ""
    """Why not, in one line."""
    free_bytes: int = 0
    """Memory that was free for models at that time."""
    num_busy_cores: float = 0.0
    """What other programs used meanwhile."""
    measured_at_s: float = 0.0
    """Unix time."""
    suggestion_ms: Mapping[str, float] = field(default_factory=dict)
    """Measured times of the suggestion that ``engine.machine.predict`` predicts; see ``timing_name``."""

    def is_lasting(self, now_s: float) -> bool:
        """False when it should be measured anew: other programs have disturbed it, and that was a while ago."""
        return self.num_busy_cores <= _MAX_BUSY_CORES or 0.0 <= now_s - self.measured_at_s < _DISTURBED_FOR_S


def timing_name(model: str, precision: str) -> str:
    """Under which a model's measured time is kept."""
    return f"{model} {precision}"


def machine_key(config: EngineConfig) -> MachineKey:
    """The key for these settings, found in milliseconds."""
    settings = (config.device, config.dtype, config.kernels)
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return MachineKey(cpu_name(), "", __version__, 0, settings)
    num_threads = count_threads(config.num_threads).num_threads
    return MachineKey(cpu_name(), torch_version, __version__, num_threads, settings)


def cpu_name() -> str:
    """The processor's name as its maker gives it, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def read_machine(key: MachineKey) -> Machine | None:
    """What is kept for ``key``; None if nothing is, or nothing that can be understood."""
    try:
        content = json.loads(key.path.read_text(encoding="utf-8"))
        is_ours = content["key"] == json.loads(json.dumps(asdict(key)))
        return parse_machine(content["machine"]) if is_ours else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def parse_machine(content: Any) -> Machine:
    """A machine from what ``asdict`` made of it, by way of JSON. Raises ``ValueError``."""
    try:
        machine = cattrs.Converter(forbid_extra_keys=True).structure(content, Machine)
    except (cattrs.BaseValidationError, TypeError, AttributeError) as error:
        raise ValueError("not the rates of a machine") from error
    if not _is_plausible(machine):
        raise ValueError("impossible numbers")
    return machine


def write_machine(key: MachineKey, machine: Machine) -> None:
    """Replace what is kept. Call it in ``lock_machine``. Raises ``OSError``."""
    write_json_atomically(key.path, {"key": asdict(key), "machine": asdict(machine)})


@contextlib.contextmanager
def lock_machine(key: MachineKey, timeout_s: float) -> Iterator[None]:
    """While inside, nobody else measures or writes. Raises ``OSError``, of which ``filelock.Timeout`` is a kind."""
    key.path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(key.path.with_suffix(".lock"), timeout=timeout_s):
        yield


def record_suggestion(key: MachineKey, model: str, precision: str, took_ms: float) -> None:
    """Keep a measured time beside the rates, if there are any. Raises ``OSError``."""
    with lock_machine(key, timeout_s=1.0):
        machine = read_machine(key) or Machine(rates=None)
        timings = {**machine.suggestion_ms, timing_name(model, precision): round(took_ms, 1)}
        write_machine(key, replace(machine, suggestion_ms=timings))


def _is_plausible(machine: Machine) -> bool:
    numbers = [1.0 + machine.free_bytes, 1.0 + machine.num_busy_cores, *machine.suggestion_ms.values()]
    if (rates := machine.rates) is not None:
        kernels = rates.kernels
        is_known = rates.automatic in kernels or (rates.automatic == "mixed" and {"int8", "int4"} <= kernels.keys())
        if not is_known or any(len(kernel.weights_per_s) != len(ROWS) for kernel in kernels.values()):
            return False
        numbers += [rates.read_bytes_per_s, *(kernel.layer_s for kernel in kernels.values())]
        numbers += [rate for kernel in kernels.values() for rate in kernel.weights_per_s]
    least, most = _PLAUSIBLE
    return all(math.isfinite(number) and least <= number <= most for number in numbers)
