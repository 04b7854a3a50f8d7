"""Which operators compute a model here, and in which precision."""

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.linear import can_int4, can_int8
from engine.model.native.decoder import is_supported
from engine.model.native.library import NoNativeKernels, load_library


@dataclass(frozen=True)
class Kernels:
    """A choice."""

    precision: str
    """``exact``, ``int8``, ``mixed`` or ``int4``."""
    possible: tuple[str, ...]
    """All precisions that can be had."""
    is_native: bool
    """The compiled kernels compute whatever is not exact."""
    note: str
    """Why they do not, in one clause; empty if they do."""

    @property
    def name(self) -> str:
        """``native``, or ``torch`` and why."""
        return "native" if self.is_native else f"torch: {self.note}"


def choose_kernels(config: EngineConfig, shape: ModelConfig, dtype: torch.dtype, device: torch.device) -> Kernels:
    """The fastest way to compute a model of this shape here. Raises ``ConfigError`` if what is asked for is none."""
    note = _obstacle(config, shape, dtype, device)
    possible = ("exact", "int8", "mixed", "int4") if not note else _torch_precisions(shape, dtype, device)
    automatic = next(name for name in ("mixed", "int8", "exact") if name in possible)
    precision = automatic if config.precision == "auto" else config.precision
    if precision not in possible:
        raise ConfigError(
            f"engine.precision is {precision!r}, which cannot be had here ({note}); "
            f"it must be one of auto, {', '.join(possible)}"
        )
    return Kernels(precision, possible, not note, note)


def _obstacle(config: EngineConfig, shape: ModelConfig, dtype: torch.dtype, device: torch.device) -> str:
    """What is in the way of the compiled kernels; empty if nothing is."""
    if config.kernels == "torch":
        return "engine.kernels is 'torch'"
    if device.type != "cpu" or dtype != torch.bfloat16:
        return f"the compiled kernels are for the CPU and bfloat16, not for {device.type} and {dtype}"
    if config.precision == "exact":
        return "engine.precision is 'exact'"
    if not is_supported(shape):
        return "the compiled kernels are not made for this model's shape"
    try:
        load_library()
    except NoNativeKernels as error:
        return str(error)
    return ""


def _torch_precisions(shape: ModelConfig, dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
    if device.type != "cpu" or dtype != torch.bfloat16:
        return ("exact",)
    return ("exact", *(("int8",) if can_int8() else ()), *(("int4",) if can_int4(shape) else ()))
