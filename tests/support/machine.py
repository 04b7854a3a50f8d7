"""Machines that were never measured, and models that are there for the store alone."""

import time
from dataclasses import asdict

from engine.checkpoint.catalogue import load_catalogue
from engine.checkpoint.record import Record, RecordedFile, write_json_atomically, write_record
from engine.config import EngineConfig
from engine.machine.predict import KernelRates, Rates
from engine.machine.record import Machine, lock_machine, machine_key, write_machine
from engine.paths import models_dir

SMALL, LARGE, EXPERIMENTAL = load_catalogue()


def rates(read_gb_per_s: float = 25.0, layer_us: float = 200.0, automatic: str = "int8") -> Rates:
    """Of a machine whose products are as fast as its memory. It has the compiled kernels if ``mixed`` is automatic."""
    weights = {"exact": 2.0, "int8": 1.0, "int4": 0.625}
    kernels = {
        precision: KernelRates((read_gb_per_s * 1e9 / num_bytes,) * 3, layer_us / 1e6)
        for precision, num_bytes in weights.items()
    }
    return Rates(read_gb_per_s * 1e9, kernels, automatic, "native" if automatic == "mixed" else "torch: no compiler")


SLOW, FAST = rates(), rates(100.0)
"""For the large model in int8."""


def keep_machine(known: Rates | None, config: EngineConfig | None = None, **facts: object) -> Machine:
    """Have this kept as what was measured."""
    given = {"free_bytes": 64 * 10**9, "measured_at_s": time.time(), **facts}
    machine, key = Machine(rates=known, **given), machine_key(config or EngineConfig())  # type: ignore[arg-type]
    with lock_machine(key, 5.0):
        write_machine(key, machine)
    return machine


def keep_model(name: str, content: bytes = b"GGUF") -> None:
    """A file that the store takes for a finished download."""
    models_dir().mkdir(parents=True, exist_ok=True)
    (models_dir() / f"{name}.gguf").write_bytes(content)
    files = (RecordedFile(f"{name}.gguf", len(content), "sha256:00"),)
    write_record(models_dir() / f"{name}.gguf.midline.json", Record(name, "hub org/repo", files))


def break_machine(content: object, config: EngineConfig | None = None) -> None:
    """Have something else lie in its place."""
    key = machine_key(config or EngineConfig())
    key.path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        key.path.write_bytes(content)
    else:
        write_json_atomically(key.path, {"key": asdict(key), "machine": content})
