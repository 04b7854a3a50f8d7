"""How long a suggestion really takes, measured once per machine and model, beside what is predicted. Light.

It runs in the lane of those who do not wait, so that it gives way to whoever types already. The text is a file of
ours: source code, as the drafts of the n-grams need it.
"""

import asyncio
import logging
import statistics
from importlib.resources import files

from engine.checkpoint.catalogue import load_catalogue
from engine.config import EngineConfig
from engine.errors import MidlineError
from engine.machine.memory import PRECISIONS
from engine.machine.predict import SUGGESTION_TOKENS
from engine.machine.record import machine_key, read_machine, record_suggestion, timing_name
from engine.request import CompletionRequest, Finished, Lane, SamplingParams
from engine.service.runtime import LoadedEngine, ServingEngine

_logger = logging.getLogger(__name__)
_PLACES = (0.4, 0.6, 0.8)
"""How far into the text."""
_MAX_PREFIX_CHARS, _MAX_SUFFIX_CHARS = 2000, 600
_TYPED_CHARS = 9  # about three tokens


async def measured_suggestion(config: EngineConfig, loaded: LoadedEngine) -> float | None:
    """Milliseconds from a keystroke to the end of its suggestion, which are also kept for ``midline doctor``.

    None when they are known already, the model is not of the catalogue, or somebody else uses the engine.
    """
    precision = loaded.info.dtype if loaded.info.dtype in PRECISIONS else PRECISIONS[0]
    key = await asyncio.to_thread(machine_key, config)
    machine = await asyncio.to_thread(read_machine, key)
    is_known = machine is not None and timing_name(config.model, precision) in machine.suggestion_ms
    if is_known or config.model not in load_catalogue():
        return None
    text = files("engine").joinpath("config.py").read_text(encoding="utf-8")
    try:
        times = [await _suggestion_ms(loaded.engine, text, int(len(text) * place)) for place in _PLACES]
        took_ms = statistics.median(time for time in times if time is not None)
        await asyncio.to_thread(record_suggestion, key, config.model, precision, took_ms)
    except statistics.StatisticsError:
        return None
    except (MidlineError, OSError) as error:
        _logger.warning("the time of a suggestion was not recorded: %s", error)
        return None
    return took_ms


async def _suggestion_ms(engine: ServingEngine, text: str, place: int) -> float | None:
    """At the middle of the first long line from ``place`` on; None when somebody else's work disturbs it."""
    start = next(i for i in range(place, len(text)) if text[i - 1] == "\n" and len(text[i:].partition("\n")[0]) > 40)
    end = text.index("\n", start)
    cursor = (start + end) // 2
    suffix = text[end : end + _MAX_SUFFIX_CHARS]
    if engine.num_running or engine.num_waiting:
        return None
    await _finished(engine, text[:cursor][-_MAX_PREFIX_CHARS:], suffix, max_tokens=1)
    prefix = text[: cursor + _TYPED_CHARS][-_MAX_PREFIX_CHARS - _TYPED_CHARS :]
    done = await _finished(engine, prefix, suffix, SUGGESTION_TOKENS)
    return None if engine.num_running or engine.num_waiting else done.timing.total_ms


async def _finished(engine: ServingEngine, prefix: str, suffix: str, max_tokens: int) -> Finished:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    deltas = [delta async for delta in engine.stream(CompletionRequest(prefix, suffix, sampling, lane=Lane.BULK))]
    finished = deltas[-1].finished
    assert finished is not None
    return finished
