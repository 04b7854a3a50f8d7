"""From a cursor to a suggestion: reuse, decide, wait, choose the context, generate, clean. One readable function.

It knows no editor, no document store and no process; whoever calls it may cancel it at any point.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field, replace

from engine.errors import MidlineError, ServiceError
from engine.request import CompletionRequest, SamplingParams, Timing
from lsp_server.backends.base import Backend, BackendState, BackendStatus
from lsp_server.completion.ablation import is_off
from lsp_server.completion.anchor import Anchor, anchored
from lsp_server.completion.answers import Answer, Answers
from lsp_server.completion.decide import Shape, refusal, shape_of
from lsp_server.completion.request import EmptyReason, Situation, Source, Suggestion
from lsp_server.completion.rhythm import Rhythm
from lsp_server.config import CompletionConfig, MidlineConfig
from lsp_server.postprocess import Hole, postprocess

_logger = logging.getLogger(__name__)

_REASON_OF_STATE = {
    BackendState.STOPPED: EmptyReason.SERVICE_UNAVAILABLE,
    BackendState.STARTING: EmptyReason.MODEL_LOADING,
    BackendState.LOADING: EmptyReason.MODEL_LOADING,
    BackendState.MODEL_MISSING: EmptyReason.MODEL_MISSING,
    BackendState.FAILED: EmptyReason.SERVICE_UNAVAILABLE,
}
_PASSING_STATES = (BackendState.STARTING, BackendState.LOADING)
_LOADING_POLL_S = 0.1
_MAX_APPENDED_TOKENS = 16
"""More than a key appends to a prompt that is cached."""


@dataclass
class Track:
    """What is remembered of one document from keystroke to keystroke."""

    session: str = ""
    rhythm: Rhythm = field(default_factory=Rhythm)
    """The user's: all documents share it."""
    anchor: Anchor | None = None
    answers: Answers = field(default_factory=Answers)
    _last_prefix: str = ""

    def advance(self, prefix: str) -> str:
        """Go on to a cursor; returns what was deleted before it since the last one."""
        last, self._last_prefix = self._last_prefix, prefix
        return last[len(prefix) :] if last.startswith(prefix) else ""


async def complete(
    situation: Situation,
    config: MidlineConfig,
    backend: Backend,
    budget_ms: float | None = None,
    track: Track | None = None,
) -> Suggestion:
    """The suggestion for a cursor, or the reason why there is none. Errors of the backend become reasons.

    After ``budget_ms`` the whole lines that exist by then are taken. Without a budget, a model that is still loading
    is waited for. ``track`` is the document's; what it remembers makes this faster and changes no text.
    """
    track = Track() if track is None else track
    track.rhythm.key(time.monotonic())
    if (reason := refusal(situation, config)) is not None:
        track.answers.stop()
        return Suggestion("", reason)
    hole = Hole(situation, shape_of(situation, config.completion.multiline))
    former, track.anchor = track.anchor, anchored(track.anchor, situation, config.context)
    deleted = track.advance(situation.prefix)
    after = track.anchor.after
    if (answer := track.answers.find(hole, after)) is not None:
        source = Source.TYPED if answer.covers(hole, after) else Source.RUNNING
        with contextlib.suppress(MidlineError):  # of a request before this one; this one has attempts of its own
            if suggestion := await _from_answer(answer, hole, after, budget_ms, source):
                return suggestion
    track.answers.stop_wrong(situation.prefix, after)
    # a prompt that has to be computed anew is begun at once: the next key's request takes over what is done of it
    if not situation.is_explicit and former is track.anchor:
        await asyncio.sleep(track.rhythm.wait_ms(config.completion.debounce_ms) / 1000)
    request = build_request(hole, config.completion, track, deleted)
    suggestion = await _ask(backend, request, hole, track, budget_ms)
    return replace(suggestion, is_reanchored=former is not None and former is not track.anchor)


async def _ask(
    backend: Backend, request: CompletionRequest, hole: Hole, track: Track, budget_ms: float | None
) -> Suggestion:
    """A new answer of the model."""
    assert track.anchor is not None
    after = track.anchor.after
    for is_last_attempt in (False, True):
        status = await _until_ready(backend, can_wait=budget_ms is None)
        if status.state is not BackendState.READY:
            return Suggestion("", _REASON_OF_STATE[status.state], status.model)
        answer = Answer(hole.situation.prefix, after, hole.shape, status.model)
        track.answers.add(answer, backend, request)
        try:
            suggestion = await _from_answer(answer, hole, after, budget_ms, Source.MODEL)
            if answer.usage.prompt_tokens - answer.usage.cached_tokens <= _MAX_APPENDED_TOKENS:
                track.rhythm.answered(answer.elapsed_ms())
            return suggestion or Suggestion("", EmptyReason.SUPERSEDED, status.model)  # by a stop from elsewhere
        except MidlineError as error:
            # an engine that has died is started again, once, without another keystroke
            if is_last_attempt or answer.text or not isinstance(error, ServiceError):
                _logger.warning("no completion: %s", error)
                break
    return Suggestion("", EmptyReason.SERVICE_UNAVAILABLE, status.model)


async def _from_answer(
    answer: Answer, hole: Hole, after: str, budget_ms: float | None, source: Source
) -> Suggestion | None:
    """The suggestion from an answer that may still be running; None if it turns out to say something else."""
    try:
        rest = await asyncio.wait_for(answer.wait_for_rest(hole, after), _seconds(budget_ms))
    except asyncio.TimeoutError:
        rest = answer.rest(hole.situation.prefix, after) or ""
        rest = rest[: rest.rfind("\n") + 1]
    if rest is None:
        return None
    cleaned = postprocess(rest, hole)
    if source is Source.TYPED:
        return Suggestion(cleaned.text, cleaned.reason, answer.model, overlay=cleaned.overlay, source=source)
    timing = Timing(first_token_ms=answer.first_token_ms, total_ms=answer.elapsed_ms())
    return Suggestion(cleaned.text, cleaned.reason, answer.model, answer.usage, timing, cleaned.overlay, source)


async def _until_ready(backend: Backend, can_wait: bool) -> BackendStatus:
    """Whoever asks while the model loads gets an answer once it has; the next keystroke ends this wait."""
    status = await backend.ensure_ready()
    while can_wait and status.state in _PASSING_STATES:
        await asyncio.sleep(_LOADING_POLL_S)
        status = await backend.ensure_ready()
    return status


def build_request(hole: Hole, config: CompletionConfig, track: Track, deleted: str = "") -> CompletionRequest:
    """The request for the engine: windows as they were at the anchor, what was typed since, and where to stop."""
    anchor, prefix = track.anchor, hole.situation.prefix
    assert anchor is not None
    return replace(
        anchor.request(prefix, _sampling(hole.shape, config)),
        session="" if is_off("cancel") else track.session,
        draft=track.answers.draft(prefix, anchor.after) or deleted,
        corpus=(*hole.situation.other_texts, *anchor.beyond),
        use_cache=not is_off("cache"),
        heal=not is_off("heal"),
        use_drafts=not is_off("spec"),
    )


def _sampling(shape: Shape, config: CompletionConfig) -> SamplingParams:
    if not shape.is_block:
        return SamplingParams(max_tokens=config.max_line_tokens, stop=("\n",))
    return SamplingParams(
        max_tokens=config.max_block_tokens,
        time_limit_ms=config.block_time_limit_ms,
        min_indent=shape.min_indent,
    )


def _seconds(budget_ms: float | None) -> float | None:
    return None if budget_ms is None else budget_ms / 1000
