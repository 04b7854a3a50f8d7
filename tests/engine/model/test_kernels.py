"""Which operators and which precision each setting leads to on each machine."""

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model import kernels
from engine.model.config import ModelConfig
from engine.model.kernels import Kernels, choose_kernels
from engine.model.native.library import NoNativeKernels
from tests.support.native import native_config

_FIT, _ODD = native_config(), native_config(hidden_size=96)
_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")
_BF16, _F32 = torch.bfloat16, torch.float32


@pytest.fixture(params=["native", "int8", "int4", "plain"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What it can do: everything, torch's int8 and int4, torch's int4, or neither."""
    name: str = request.param

    def load() -> None:
        if name != "native":
            raise NoNativeKernels("no C++ compiler")

    monkeypatch.setattr(kernels, "load_library", load)
    monkeypatch.setattr(kernels, "can_int8", lambda: name in ("native", "int8"))
    monkeypatch.setattr(kernels, "can_int4", lambda _: name != "plain")
    return name


def _choose(
    precision: str = "auto",
    setting: str = "auto",
    shape: ModelConfig = _FIT,
    dtype: torch.dtype = _BF16,
    device: torch.device = _CPU,
) -> Kernels:
    return choose_kernels(EngineConfig(precision=precision, kernels=setting), shape, dtype, device)


_TORCH = {"native": ("exact", "int8", "int4"), "int8": ("exact", "int8", "int4"), "int4": ("exact", "int4")}
_EVERY = ("exact", "int8", "mixed", "int4")


def test_auto_is_the_fastest_there_is(machine: str) -> None:
    chosen = _choose()
    assert (chosen.precision, chosen.is_native) == {
        "native": ("mixed", True),
        "int8": ("int8", False),
        "int4": ("exact", False),  # torch's four bits are no faster
        "plain": ("exact", False),
    }[machine]
    assert chosen.name == ("native" if machine == "native" else "torch: no C++ compiler")


@pytest.mark.parametrize("precision", _EVERY)
def test_a_precision_that_is_asked_for(machine: str, precision: str) -> None:
    possible = _EVERY if machine == "native" and precision != "exact" else _TORCH.get(machine, ("exact",))
    if precision not in possible:
        message = (
            rf"engine.precision is '{precision}', which cannot be had here \(no C\+\+ compiler\); it must be one of"
        )
        with pytest.raises(ConfigError, match=f"{message} auto, {', '.join(possible)}$"):
            _choose(precision)
        return
    chosen = _choose(precision)
    assert (chosen.precision, chosen.possible) == (precision, possible)
    assert chosen.is_native == (machine == "native" and precision != "exact")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"setting": "torch"}, "engine.kernels is 'torch'"),
        ({"shape": _ODD}, "the compiled kernels are not made for this model's shape"),
    ],
)
def test_without_compiled_kernels_torch_does_what_it_can(machine: str, change: dict[str, object], note: str) -> None:
    chosen = _choose(**change)  # type: ignore[arg-type]
    automatic = "int8" if machine in ("native", "int8") else "exact"
    assert chosen == Kernels(automatic, _TORCH.get(machine, ("exact",)), False, note)
    assert chosen.name == f"torch: {note}"
    with pytest.raises(ConfigError, match="'mixed', which cannot be had here"):
        _choose("mixed", **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "device"), [(_F32, _CPU), (_BF16, _CUDA), (_F32, _CUDA)])
def test_other_numbers_and_devices_are_exact(machine: str, dtype: torch.dtype, device: torch.device) -> None:
    for precision in ("auto", "exact"):
        chosen = _choose(precision, dtype=dtype, device=device)
        assert (chosen.precision, chosen.possible, chosen.is_native) == ("exact", ("exact",), False)
    for precision in ("int8", "mixed", "int4"):
        with pytest.raises(ConfigError, match=r"are for the CPU and bfloat16, not for .* must be one of auto, exact"):
            _choose(precision, dtype=dtype, device=device)


@pytest.mark.parametrize(
    "change", [{"precision": "exact"}, {"setting": "torch"}, {"shape": _ODD}, {"dtype": _F32}, {"device": _CUDA}]
)
def test_nothing_is_compiled_for_nobody(monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    monkeypatch.setattr(kernels, "load_library", lambda: 1 // 0)
    assert not _choose(**change).is_native  # type: ignore[arg-type]
