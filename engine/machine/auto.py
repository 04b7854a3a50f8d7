"""What the model name ``auto`` stands for on this machine. Light: torch is used in a process of its own.

``auto`` takes, of the models that are here, the one that fits best, so that it never waits for a download; what should
be downloaded is another question. Both are decided by what was measured once. Whoever starts something with a model
settles the name first, once: everything behind that knows real names only.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import engine
from engine.checkpoint.catalogue import CatalogueEntry, load_catalogue
from engine.checkpoint.store import resolve_model
from engine.config import AUTO_MODEL, EngineConfig
from engine.errors import ModelError
from engine.machine.choice import Verdict, choose, judge
from engine.machine.record import (
    Machine,
    MachineKey,
    lock_machine,
    machine_key,
    parse_machine,
    read_machine,
    write_machine,
)

_logger = logging.getLogger(__name__)
_MEASURE_TIMEOUT_S = 120.0
_NOT_INSTALLED = "the engine is not installed; in Midline's folder run: pip install '.[local]'"

MachineOf = Callable[[EngineConfig], Machine]
"""``known_machine`` or ``measured_machine``."""


def settled(config: EngineConfig) -> EngineConfig:
    """The same settings with a real model in place of ``auto``; unchanged when none is on this machine.

    Costs a few ``stat`` calls when no more than one is there; else this may measure, which takes seconds, once.
    """
    return replace(config, model=model_here(config, measured_machine) or config.model)


def model_here(config: EngineConfig, machine_of: MachineOf) -> str | None:
    """The model to use of those on this machine; None when ``auto`` finds none."""
    if config.model != AUTO_MODEL:
        return config.model
    here = [entry for entry in load_catalogue().values() if not entry.is_experimental and is_here(entry)]
    if len(here) <= 1:
        return here[0].name if here else None
    return choose(verdicts(here, config, machine_of(config))).entry.name


def model_to_pull(config: EngineConfig, machine_of: MachineOf) -> Verdict:
    """The model of the whole catalogue that fits this machine best."""
    return choose(verdicts(load_catalogue().values(), config, machine_of(config)))


def verdicts(entries: Iterable[CatalogueEntry], config: EngineConfig, machine: Machine) -> list[Verdict]:
    """What is thought of each."""
    return [judge(entry, config, machine.rates, machine.free_bytes) for entry in entries]


def is_here(entry: CatalogueEntry) -> bool:
    """Whether a model of the catalogue is on this machine, undamaged."""
    try:
        resolve_model(entry.name)
    except ModelError:
        return False
    return True


def known_machine(config: EngineConfig) -> Machine:
    """What has been measured already; without rates if nothing has."""
    return read_machine(machine_key(config)) or Machine(rates=None, error="this machine was not measured yet")


def measured_machine(config: EngineConfig, is_anew: bool = False) -> Machine:
    """What has been measured, now if it has not been before or ``is_anew``; never raises, see ``Machine.error``.

    Several callers at once wait for the first and share what it found. A failure is kept as well.
    """
    key, asked_at_s = machine_key(config), time.time()
    if not key.torch:
        return Machine(rates=None, error=_NOT_INSTALLED)
    oldest_s = asked_at_s if is_anew else 0.0
    if machine := _kept(key, oldest_s):
        return machine
    try:
        with lock_machine(key, _MEASURE_TIMEOUT_S):
            if machine := _kept(key, oldest_s):
                return machine
            former = None if is_anew else read_machine(key)
            machine = replace(_measure(key), suggestion_ms=former.suggestion_ms if former else {})
            write_machine(key, machine)
    except OSError as error:
        remedy = "set MIDLINE_CACHE_DIR to another folder"
        problem = f"{key.path.parent} cannot be used ({error.strerror or error}); {remedy}"
        return Machine(rates=None, error=f"this machine was not measured: {problem}")
    if machine.error:
        _logger.warning("%s", machine.error)
    return machine


def _kept(key: MachineKey, oldest_s: float) -> Machine | None:
    machine = read_machine(key)
    if machine is None or not (machine.rates or machine.error) or machine.measured_at_s < oldest_s:
        return None
    return machine if machine.is_lasting(time.time()) else None


def _measure(key: MachineKey) -> Machine:
    device, dtype, kernels = key.settings
    command = [sys.executable, "-m", "engine.machine.measure", "--threads", str(key.num_threads)]
    try:
        done = subprocess.run(
            [*command, "--device", device, "--dtype", dtype, "--kernels", kernels],
            cwd=Path(engine.__file__).parents[1],  # never the user's folder: -m imports from it
            env={"GOMP_SPINCOUNT": "1000", **os.environ},  # as the service has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MEASURE_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return parse_machine(json.loads(done.stdout))
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"it ended with code {done.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"it took more than {_MEASURE_TIMEOUT_S:.0f} s"
    except (OSError, ValueError) as error:
        reason = str(error)
    return Machine(rates=None, error=f"this machine could not be measured: {reason}", measured_at_s=time.time())
