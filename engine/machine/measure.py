"""Measures this machine with the engine itself: ``python -m engine.machine.measure``. Imports torch.

Two models with random weights are loaded as any other. In a step of the thin one the weights hardly matter, so it
tells what a layer costs besides; what a step of the thick one takes longer is its weights, too many for the caches.
So whatever the engine does to be fast is measured, in each precision that it can compute in here.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import psutil
import torch

from engine.checkpoint.source import open_checkpoint
from engine.config import PROFILES, EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.fim import LEFT_TO_RIGHT
from engine.machine.memory import PRECISIONS, available_bytes
from engine.machine.predict import ROWS, KernelRates, Rates, size_of
from engine.machine.record import Machine
from engine.machine.synthetic import CONTEXT_TOKENS, SyntheticShape, write_synthetic_model
from engine.request import CompletionRequest, SamplingParams

# Alike but for their weights, so that the difference of two steps is the weights' alone; deep enough that a step's
# fixed costs count per layer little more than in the models of the catalogue, and as wide as the least of them: the
# smaller a product, the less of the memory's speed it gets.
_THIN = SyntheticShape(num_layers=8, hidden_size=128, ffn_size=128, num_heads=14, num_kv_heads=2, head_dim=64)
_THICK = replace(_THIN, hidden_size=896, ffn_size=4864)
_PROMPT_TOKENS = 400
_MIN_TRIES = 4
_TRIES_S = 0.15
_READ_BYTES = 2**28
_BYTES = 256  # ids below stand for bytes


def measure(config: EngineConfig) -> Rates:
    """All rates under these settings. Takes a few seconds."""
    config = replace(config, precision="auto", fim_family=LEFT_TO_RIGHT.name, max_context_tokens=CONTEXT_TOKENS)
    config = replace(config, kv_cache_mb=0, draft_model="", profile="completion")
    with tempfile.TemporaryDirectory(prefix="midline-measure-") as folder:
        thin = str(write_synthetic_model(Path(folder, "thin"), _THIN, is_repeating=True))
        thick = str(write_synthetic_model(Path(folder, "thick"), _THICK, is_repeating=True))
        engine = Engine.load(replace(config, model=thin))
        device, automatic = torch.device(engine.info.device), _precision(engine)
        kernels = {}
        for precision in (name for name in PRECISIONS if name != "mixed"):  # which is made of two others
            kernel = _kernel_rates(replace(config, precision=precision), thin, thick)
            if kernel is not None:
                kernels[precision] = kernel
    return Rates(_read_bytes_per_s(device), kernels, automatic, engine.info.kernels)


def free_bytes(device: str) -> int:
    """Memory for models: the GPU's where the model will be there."""
    if device != "cpu" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    return available_bytes()


def _precision(engine: Engine) -> str:
    return engine.info.dtype if engine.info.dtype in PRECISIONS else PRECISIONS[0]


def _kernel_rates(config: EngineConfig, thin: str, thick: str) -> KernelRates | None:
    """None where the engine cannot compute in ``config.precision``."""
    try:
        engine = Engine.load(replace(config, model=thin))
    except ConfigError:
        return None
    if _precision(engine) != config.precision:
        return None
    thin_s, thick_s = _step_times(engine), _step_times(Engine.load(replace(config, model=thick)))
    num_weights = _num_weights(thick) - _num_weights(thin)
    rates = (num_weights / max(both - besides, 0.1 * both) for both, besides in zip(thick_s, thin_s, strict=True))
    return KernelRates(tuple(rates), layer_s=thin_s[0] / _THIN.num_layers)


def _num_weights(model: str) -> int:
    size = size_of(open_checkpoint(Path(model)).config)
    return size.layer_weights + size.head_weights


def _step_times(engine: Engine) -> list[float]:
    """Seconds of a pass of each number in ``ROWS``, after a prompt that is cached."""
    engine = engine.with_profile(replace(PROFILES["completion"], max_drafts=0))
    generator = torch.Generator().manual_seed(0)
    prompt = _random_ids(_PROMPT_TOKENS, generator)
    _first_token_s(engine, prompt)

    def step_s(num_rows: int) -> float:
        return _first_token_s(engine, prompt + _random_ids(num_rows, generator))

    return [_best_s(partial(step_s, num_rows)) for num_rows in ROWS]


def _random_ids(count: int, generator: torch.Generator) -> tuple[int, ...]:
    return tuple(torch.randint(_BYTES, (count,), generator=generator).tolist())


def _first_token_s(engine: Engine, token_ids: tuple[int, ...]) -> float:
    request = CompletionRequest("", prompt_ids=token_ids, sampling=SamplingParams(max_tokens=1, ignore_eos=True))
    *_, last = engine.generate(request)
    assert last.finished is not None
    return last.finished.timing.total_ms / 1000.0


def _read_bytes_per_s(device: torch.device) -> float:
    buffer = torch.ones(_READ_BYTES // 4, device=device)

    def timed(read: Callable[[], object]) -> float:
        started = time.perf_counter()
        read()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return _READ_BYTES / min(_best_s(lambda: timed(buffer.sum)), _best_s(lambda: timed(buffer.amax)))


def _best_s(work: Callable[[], float]) -> float:
    """The least of several measured times: whatever disturbs makes them longer. The first warms up."""
    work()
    seconds: list[float] = []
    while len(seconds) < _MIN_TRIES or sum(seconds) < _TRIES_S:
        seconds.append(work())
    return min(seconds)


class _Others:
    """How much of the processors other programs use, since this was made."""

    def __init__(self) -> None:
        self._started = self._times()

    def num_cores(self) -> float:
        """On average."""
        wall_s, busy_s, own_s = (after - before for before, after in zip(self._started, self._times(), strict=True))
        return max(0.0, busy_s - own_s) / wall_s

    @staticmethod
    def _times() -> tuple[float, float, float]:
        everything, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle_s = everything.idle + getattr(everything, "iowait", 0.0) + getattr(everything, "steal", 0.0)
        total_s = sum(everything) - getattr(everything, "guest", 0.0) - getattr(everything, "guest_nice", 0.0)
        return time.monotonic(), total_s - idle_s, own.user + own.system


def main() -> None:
    """Print a ``Machine`` as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m engine.machine.measure", description="Measures this machine.")
    parser.add_argument("--threads", type=int, required=True)
    for setting in ("--device", "--dtype", "--kernels"):
        parser.add_argument(setting, default="auto", help="as in EngineConfig")
    values = parser.parse_args()
    others, free = _Others(), free_bytes(values.device)
    settings = {"device": values.device, "dtype": values.dtype, "kernels": values.kernels}
    rates = measure(EngineConfig(model="", num_threads=values.threads, **settings))
    answer = Machine(rates, free_bytes=free, num_busy_cores=round(others.num_cores(), 2), measured_at_s=time.time())
    sys.stdout.write(json.dumps(asdict(answer)) + "\n")


if __name__ == "__main__":
    main()
