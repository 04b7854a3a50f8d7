"""From a cursor to a suggestion: decide, wait, choose the context, generate, clean. One readable function.

It knows no editor, no document store and no process; whoever calls it may cancel it at any point, which closes the
backend's stream.
"""

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.errors import MidlineError, ServiceError
from engine.request import CompletionRequest, SamplingParams, Timing, Usage
from lsp_server.backends.base import Backend, BackendState, BackendStatus
from lsp_server.completion.decide import Shape, has_closers_only, refusal, shape_of
from lsp_server.completion.request import EmptyReason, Situation, Suggestion
from lsp_server.config import CompletionConfig, MidlineConfig
from lsp_server.context.window import window_after, window_before
from lsp_server.postprocess import Hole, block_end, postprocess

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


@dataclass
class Generated:
    """What a stream has brought so far; of use also when the stream is cut."""

    text: str = ""
    usage: Usage = field(default_factory=Usage)
    started_at_s: float = field(default_factory=time.perf_counter)
    first_token_ms: float | None = None

    def elapsed_ms(self) -> float:
        """Milliseconds since the request was sent."""
        return (time.perf_counter() - self.started_at_s) * 1000


async def complete(
    situation: Situation, config: MidlineConfig, backend: Backend, budget_ms: float | None = None
) -> Suggestion:
    """The suggestion for a cursor, or the reason why there is none. Errors of the backend become reasons.

    After ``budget_ms`` the whole lines that exist by then are taken. Without a budget, a model that is still loading
    is waited for.
    """
    if (reason := refusal(situation, config)) is not None:
        return Suggestion("", reason)
    if not situation.is_explicit:
        await asyncio.sleep(config.completion.debounce_ms / 1000)
    hole = Hole(situation, shape_of(situation, config.completion.multiline))
    request, generated = build_request(hole, config), Generated()
    for is_last_attempt in (False, True):
        status = await _until_ready(backend, can_wait=budget_ms is None)
        if status.state is not BackendState.READY:
            return Suggestion("", _REASON_OF_STATE[status.state], status.model)
        try:
            await asyncio.wait_for(_generate(backend, request, hole, generated), _seconds(budget_ms))
            break
        except asyncio.TimeoutError:
            generated.text = generated.text[: generated.text.rfind("\n") + 1]
            break
        except MidlineError as error:
            # an engine that has died is started again, once, without another keystroke
            if is_last_attempt or generated.text or not isinstance(error, ServiceError):
                _logger.warning("no completion: %s", error)
                return Suggestion("", EmptyReason.SERVICE_UNAVAILABLE, status.model)
    cleaned = postprocess(generated.text, hole)
    timing = Timing(first_token_ms=generated.first_token_ms, total_ms=generated.elapsed_ms())
    return Suggestion(cleaned.text, cleaned.reason, status.model, generated.usage, timing, cleaned.overlay)


async def _until_ready(backend: Backend, can_wait: bool) -> BackendStatus:
    """Whoever asks while the model loads gets an answer once it has; the next keystroke ends this wait."""
    status = await backend.ensure_ready()
    while can_wait and status.state in _PASSING_STATES:
        await asyncio.sleep(_LOADING_POLL_S)
        status = await backend.ensure_ready()
    return status


def build_request(hole: Hole, config: MidlineConfig) -> CompletionRequest:
    """The request for the engine: windows around the cursor, and where to stop."""
    situation = hole.situation
    suffix = situation.suffix
    if has_closers_only(situation.line_suffix):
        suffix = suffix[len(situation.line_suffix) :]  # brackets that the editor closed are not what follows
    return CompletionRequest(
        prefix=window_before(situation.prefix, config.context.max_prefix_chars),
        suffix=window_after(suffix, config.context.max_suffix_chars),
        sampling=_sampling(hole.shape, config.completion),
    )


def _sampling(shape: Shape, config: CompletionConfig) -> SamplingParams:
    if not shape.is_block:
        return SamplingParams(max_tokens=config.max_line_tokens, stop=("\n",))
    return SamplingParams(
        max_tokens=config.max_block_tokens,
        time_limit_ms=config.block_time_limit_ms,
        min_indent=shape.min_indent,
    )


async def _generate(backend: Backend, request: CompletionRequest, hole: Hole, into: Generated) -> None:
    """Collect the stream; leave it early, which closes it, once the block has ended."""
    async with aclosing(backend.stream(request)) as deltas:
        async for delta in deltas:
            if into.first_token_ms is None and (delta.text or delta.token_ids):
                into.first_token_ms = into.elapsed_ms()
            into.text += delta.text
            into.usage = delta.usage
            if delta.finished is None and hole.shape.is_block and block_end(into.text, hole) is not None:
                return


def _seconds(budget_ms: float | None) -> float | None:
    return None if budget_ms is None else budget_ms / 1000
