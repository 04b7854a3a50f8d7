"""What a loaded engine says about itself. Light: imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineInfo:
    """Facts about a loaded model, for ``/health``, ``midline doctor`` and logs."""

    model: str
    architecture: str
    fim_family: str
    context_tokens: int
    """Most tokens a prompt and its completion may hold together."""
    dtype: str
    """``int8``, ``mixed``, ``int4``, or the number format of exact weights."""
    device: str
    num_threads: int
    num_parameters: int
    memory_bytes: int
    """Weights and key-value cache as allocated."""
    load_s: float
    kernels: str = "torch"
    """``native``, or ``torch`` and why not native."""
    self_test: str = "skipped"
    """``passed``, ``failed`` or ``skipped``: whether the model filled a known hole."""
