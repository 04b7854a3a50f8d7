"""What ``midline doctor`` says of the machine: its threads and speed, and each model's time and memory here."""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace

from engine.checkpoint.catalogue import load_catalogue
from engine.config import AUTO_MODEL, EngineConfig
from engine.machine.auto import is_here, known_machine, measured_machine, model_here, model_to_pull, verdicts
from engine.machine.choice import Verdict
from engine.machine.predict import ROWS
from engine.machine.record import Machine, timing_name
from engine.machine.threads import count_threads
from lsp_server.commands.finding import Finding
from lsp_server.commands.settle import measuring_line

_MAX_BUSY_CORES = 0.5


def examine_machine(config: EngineConfig, is_anew: bool) -> Iterator[Finding]:
    """Threads, rates and models. Measures the machine unless that has been done, or ``is_anew``."""
    threads = count_threads(config.num_threads)
    yield Finding("machine", "threads", f"{threads.num_threads} ({threads.source})", data=asdict(threads))
    with measuring_line():
        # a failure is kept, so that no editor tries again and again; whoever asks the doctor wants to know
        machine = measured_machine(config, is_anew or bool(known_machine(config).error))
    yield from _rates(machine)
    yield from _models(config, machine)


def _rates(machine: Machine) -> Iterator[Finding]:
    rates = machine.rates
    if rates is None:
        has_failed = machine.measured_at_s > 0  # else it is another finding's problem: no torch, no folder
        yield Finding("machine", "speed", f"unknown: {machine.error}", machine.error if has_failed else "")
        return
    yield Finding("machine", "memory reads", f"{rates.read_bytes_per_s / 1e9:.1f} GB/s", data=rates.read_bytes_per_s)
    for precision, kernel in rates.kernels.items():
        billions = (f"{rate / 1e9:.1f}" for rate in kernel.weights_per_s)
        at_rows = ", ".join(f"{b} at {rows} row{'s'[: rows > 1]}" for b, rows in zip(billions, ROWS, strict=True))
        gops = 2 * kernel.weights_per_s[-1] * ROWS[-1] / 1e9
        value = f"10^9 weights/s: {at_rows} = {gops:.0f} GOP/s; {1000 * kernel.layer_s:.2f} ms a layer besides"
        yield Finding("machine", precision, value, data=asdict(kernel))
    yield Finding("machine", "precision", f"auto is {rates.automatic}", data=rates.automatic)
    yield Finding("machine", "kernels", rates.compute)
    minutes = (time.time() - machine.measured_at_s) / 60
    value = f"{minutes:.0f} min ago" if minutes < 120 else f"{minutes / 1440:.1f} days ago"
    if machine.num_busy_cores > _MAX_BUSY_CORES:
        value += f", while other programs used {machine.num_busy_cores:.1f} cores: too slow"
    yield Finding("machine", "measured", f"{value}; anew: midline doctor --measure", data=machine.measured_at_s)


def _models(config: EngineConfig, machine: Machine) -> Iterator[Finding]:
    config = replace(config, model=AUTO_MODEL)
    automatic = model_here(config, lambda _: machine)
    for verdict in verdicts(load_catalogue().values(), config, machine):
        yield _model(verdict, machine, is_taken=verdict.entry.name == automatic)
    best = model_to_pull(config, lambda _: machine).entry
    value = automatic or "no model is here yet"
    if automatic is None or best.num_parameters > load_catalogue()[automatic].num_parameters:
        value += f"; midline models pull {best.name} would give {'better ' if automatic else ''}suggestions"
    yield Finding("models", AUTO_MODEL, value, data={"here": automatic, "best": best.name})


def _model(verdict: Verdict, machine: Machine, is_taken: bool) -> Finding:
    entry, is_downloaded = verdict.entry, is_here(verdict.entry)
    measured_ms = machine.suggestion_ms.get(timing_name(entry.name, verdict.precision))
    parts = []
    if verdict.predicted_ms is not None:
        measured = "" if measured_ms is None else f", measured {measured_ms:.0f} ms"
        parts.append(f"predicted {verdict.predicted_ms:.0f} ms{measured} ({verdict.precision})")
    parts.append("memory " + ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in verdict.memory_bytes.items()))
    parts.append("here" if is_downloaded else "not here")
    parts.append("auto takes it" if is_taken else verdict.reason and f"not for auto: {verdict.reason}")
    data = {
        "predicted_ms": verdict.predicted_ms and round(verdict.predicted_ms, 1),
        "measured_ms": measured_ms,
        "precision": verdict.precision,
        "memory_bytes": verdict.memory_bytes,
        "is_here": is_downloaded,
        "is_auto": is_taken,
        "reason": verdict.reason,
    }
    return Finding("models", entry.name, "; ".join(filter(None, parts)), data=data)
