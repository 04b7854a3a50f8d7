"""What is computed while the user rests, so that the next key finds it done. All of it is bulk work: whoever asks goes
first, and the next key ends it.

Off means off: nothing here runs, and no timer is started, unless the settings allow it; it never starts an engine.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

from engine.errors import MidlineError
from engine.machine.power import is_on_battery
from engine.request import Lane, SamplingParams
from lsp_server.backends.base import Backend, BackendState
from lsp_server.completion.anchor import Anchor, anchored
from lsp_server.completion.answers import Answer
from lsp_server.completion.decide import ends_with_opener, refusal, shape_of
from lsp_server.completion.pipeline import Track, build_request
from lsp_server.completion.request import Situation
from lsp_server.config import MidlineConfig
from lsp_server.postprocess import Hole

_SHORT_REST_S = 0.3
"""Then the user is reading what was suggested."""
_LONG_REST_S = 1.0
_MIN_TYPED_CHARS = 400
"""Less is not worth computing the suffix again."""


def may_work(config: MidlineConfig) -> bool:
    """Whether the settings allow it, now."""
    mode = config.completion.idle_work
    return config.enabled and (mode == "always" or (mode == "on_power" and not is_on_battery()))


async def after_suggestion(
    situation: Situation, text: str, config: MidlineConfig, backend: Backend, track: Track
) -> None:
    """The user looks at a suggestion, or at none: compute what comes after it, later move the anchor here."""
    await asyncio.sleep(_SHORT_REST_S)
    if not _can_work(config, backend):
        return
    with contextlib.suppress(MidlineError):
        for following in _likely_next(situation, text):
            await _prepare(following, config, backend, track)
        await asyncio.sleep(_LONG_REST_S - _SHORT_REST_S)
        anchor = track.anchor
        if anchor is not None and len(situation.prefix) - len(anchor.before) >= _MIN_TYPED_CHARS:
            await _move_anchor(None, situation, config, backend, track)


async def after_move(situation: Situation, config: MidlineConfig, backend: Backend, track: Track) -> None:
    """The cursor has come to rest where nothing was asked yet: compute the prompt of that place."""
    if _can_work(config, backend) and refusal(situation, config) is None:
        with contextlib.suppress(MidlineError):
            await _move_anchor(track.anchor, situation, config, backend, track)


def _can_work(config: MidlineConfig, backend: Backend) -> bool:
    return may_work(config) and backend.status.state is BackendState.READY


def _likely_next(situation: Situation, text: str) -> Iterator[Situation]:
    """Where the cursor will be if the suggestion is accepted, and if Enter is pressed behind it."""
    if text:
        yield replace(situation, prefix=situation.prefix + text)
    accepted = situation.prefix + text
    line = accepted[accepted.rfind("\n") + 1 :]
    if line.strip() and not situation.line_suffix.strip():
        indent = line[: len(line) - len(line.lstrip())] + (_indent_unit(accepted) if ends_with_opener(line) else "")
        yield replace(situation, prefix=f"{accepted}\n{indent}")


def _indent_unit(text: str) -> str:
    """By how much this text is indented, as editors guess it."""
    depths = [line[: len(line) - len(line.lstrip())] for line in text.split("\n") if line.strip()]
    return min(filter(None, depths), key=len, default="    ")


async def _prepare(situation: Situation, config: MidlineConfig, backend: Backend, track: Track) -> None:
    """Have an answer ready for a text that may be there soon."""
    if refusal(situation, config) is not None or track.anchor is None:
        return
    hole = Hole(situation, shape_of(situation, config.completion.multiline))
    after = track.anchor.after
    if anchored(track.anchor, situation, config.context) is not track.anchor or track.answers.find(hole, after):
        return
    answer = Answer(situation.prefix, after, hole.shape, backend.status.model)
    request = replace(build_request(hole, config.completion, track), lane=Lane.BULK, session="")
    track.answers.add_beside(answer, backend, request)
    await answer.wait_for_rest(hole, after)


async def _move_anchor(
    former: Anchor | None, situation: Situation, config: MidlineConfig, backend: Backend, track: Track
) -> None:
    """Compute the prompt with an anchor at the cursor's line, and go on from that if nothing has happened meanwhile."""
    present, anchor = track.anchor, anchored(former, situation, config.context)
    if anchor is present:
        return
    warm_up = replace(anchor.request(situation.prefix, SamplingParams(max_tokens=0)), lane=Lane.BULK)
    async with aclosing(backend.stream(warm_up)) as deltas:
        async for _ in deltas:
            pass
    if track.anchor is present:
        track.anchor = anchor
