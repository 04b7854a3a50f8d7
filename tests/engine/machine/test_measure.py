"""The real measurement on this machine, whatever it is: its numbers are bounds of one another, not of the machine."""

import pytest

from engine.checkpoint.catalogue import load_catalogue
from engine.config import EngineConfig
from engine.machine.auto import measured_machine, verdicts
from engine.machine.predict import ROWS, resolve_precision
from engine.machine.record import machine_key, read_machine


@pytest.mark.timeout(120)
def test_this_machine() -> None:
    config = EngineConfig(num_threads=1, device="cpu")
    machine = measured_machine(config)
    assert machine.error == "" and machine.rates is not None
    rates = machine.rates
    assert read_machine(machine_key(config)) == machine
    assert "exact" in rates.kernels and resolve_precision("auto", rates) == rates.automatic
    assert rates.is_native or rates.automatic in rates.kernels
    assert 1e8 < rates.read_bytes_per_s < 1e13
    assert machine.free_bytes > 2**20 and machine.num_busy_cores >= 0.0
    for kernel in rates.kernels.values():
        assert 1e-6 < kernel.layer_s < 1.0
        few, _, many = (rate * rows for rate, rows in zip(kernel.weights_per_s, ROWS, strict=True))
        assert many > few  # reading a weight once serves all rows
    for verdict in verdicts(load_catalogue().values(), config, machine):
        assert verdict.predicted_ms is not None and 1.0 < verdict.predicted_ms < 1e6
