"""The same model twice: one serves as a language server's backend, with all it remembers; the other forgets all.

What the first one's server shows is judged by what the second one says from the start, given the same anchor, text
after the cursor and typed text.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.async_engine import AsyncEngine
from engine.config import PROFILES, EngineConfig
from engine.engine import Completion, Engine
from engine.fim import Prompt
from engine.request import CompletionRequest, Delta, FinishReason, Lane, SamplingParams
from engine.tokenizer import Tokenizer
from lsp_server.backends.base import BackendState, BackendStatus
from lsp_server.completion.decide import Shape, shape_of
from lsp_server.completion.request import Situation
from lsp_server.config import CompletionConfig, ContextConfig, MidlineConfig
from lsp_server.postprocess import Cleaned, Hole, postprocess
from tests.support.lsp_session import INLINE_CLIENT, InProcessServer, in_process_server, until

CONFIG = MidlineConfig(
    # no time limit: what is shown must not depend on how fast the machine is
    completion=CompletionConfig(
        debounce_ms=0, max_line_tokens=12, max_block_tokens=24, block_time_limit_ms=3_600_000, idle_work="off"
    ),
    # the whole document, so that a request tells the document it was asked for
    context=ContextConfig(max_prefix_chars=1_000_000, max_suffix_chars=1_000_000),
)
_LONG = SamplingParams(max_tokens=40)
"""More than any answer under ``CONFIG`` has, with no rule where to stop."""


class EngineBackend:
    """A backend that computes in this process; it remembers what it was asked."""

    def __init__(self, engine: Engine) -> None:
        """``engine`` must have no work; its cache is emptied."""
        engine.cache.clear()
        self.runner = AsyncEngine(engine.with_profile(PROFILES["completion"]))
        self.requests: list[CompletionRequest] = []
        """Those that somebody waits for."""
        self.idle_requests: list[CompletionRequest] = []
        self.num_open = 0
        self.most_open = 0

    @property
    def status(self) -> BackendStatus:
        return BackendStatus(BackendState.READY, self.runner.engine.info.model)

    async def ensure_ready(self) -> BackendStatus:
        return self.status

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        (self.requests if request.lane is Lane.INTERACTIVE else self.idle_requests).append(request)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            async with aclosing(self.runner.stream(request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.num_open -= 1

    async def restart(self) -> BackendStatus:
        return self.status

    async def aclose(self) -> None:
        """Connections are not what the engine lives by; see ``aclose_engine``."""

    @property
    def is_idle(self) -> bool:
        """Nobody reads, nothing computes, and no block is held."""
        runner = self.runner
        return not (self.num_open or runner.num_running or runner.num_waiting or runner.kv_use[0])

    async def aclose_engine(self) -> None:
        """End the computing thread; raises ``AssertionError`` when it leaves something behind."""
        await self.runner.aclose()
        self.runner.engine.loop.check_idle()
        assert not self.runner.engine.loop.has_work
        assert self.runner.kv_use[0] == 0


class ColdEngine:
    """Answers each request from nothing: no cache, no drafts, nothing else in the batch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers: dict[CompletionRequest, Completion] = {}

    def answer(self, request: CompletionRequest, sampling: SamplingParams | None = None) -> Completion:
        bare = CompletionRequest(
            request.prefix,
            request.suffix,
            replace(sampling or request.sampling, time_limit_ms=None),
            anchor=request.anchor,
            use_cache=False,
            use_drafts=False,
        )
        if bare not in self._answers:
            (self._answers[bare],) = self._engine.complete_all([bare])
        return self._answers[bare]

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine._vocabulary.tokenizer

    def prompt(self, request: CompletionRequest) -> Prompt:
        """What is fed to the model, and what its answer must begin with."""
        return self._engine.prompt(request)

    def starts_like(self, now: CompletionRequest, former: CompletionRequest) -> bool:
        """Whether the text typed since ``former`` has the tokens and bytes that the model has generated there.

        Then the model, asked now, is in a state that it went through, and must go on as it did.
        """
        fed, prompt = self.prompt(former).ids, self.prompt(now)
        said = fed + list(self.answer(former, _LONG).token_ids)
        ahead = b"".join(self.tokenizer.all_bytes[i] for i in said[len(prompt.ids) :])
        is_state = len(prompt.ids) >= len(fed) and prompt.ids == said[: len(prompt.ids)]
        return is_state and ahead.startswith(prompt.required)


class Twins:
    """One for the server, one for the judge; in float32, so that batches of other shapes choose the same tokens."""

    def __init__(self, path: Path, fim_family: str = "auto") -> None:
        config = EngineConfig(model=str(path), dtype="float32", max_context_tokens=2048, fim_family=fim_family)
        self.warm = Engine.load(config)
        self.cold = ColdEngine(Engine.load(config))


@contextlib.asynccontextmanager
async def serving(
    twins: Twins, config: MidlineConfig = CONFIG, capabilities: Mapping[str, Any] = INLINE_CLIENT
) -> AsyncIterator[tuple[InProcessServer, EngineBackend]]:
    """A server in this process, initialized; afterwards nothing may be left of what it did."""
    num_tasks = len(asyncio.all_tasks())
    backend = EngineBackend(twins.warm)
    async with in_process_server(backend, config) as running:
        await running.session.initialize(capabilities)
        yield running, backend
        inflight = running.server.session.inflight
        await until(lambda: backend.is_idle and not inflight._tasks and not inflight._ends)
    await backend.aclose_engine()
    assert len(asyncio.all_tasks()) == num_tasks


class Judge:
    """Compares what is shown with what a cold engine says. ``num`` counts of what kind it was."""

    def __init__(self, cold: ColdEngine, config: MidlineConfig = CONFIG) -> None:
        self.cold = cold
        self.config = config
        self.num: Counter[str] = Counter()

    def hole(self, situation: Situation) -> Hole:
        return Hole(situation, shape_of(situation, self.config.completion.multiline))

    def fresh(self, request: CompletionRequest, hole: Hole) -> Cleaned:
        """The suggestion of a cold engine for ``request``, asked as a server that remembers nothing would."""
        return postprocess(self.cold.answer(request, self.sampling(hole.shape)).text, hole)

    def rest(self, former: CompletionRequest, hole: Hole) -> Cleaned | None:
        """What is left to suggest of what a cold engine says at an earlier cursor, if it says what was typed."""
        typed = hole.situation.prefix[len(former.prefix) :]
        text = self.cold.answer(former, _LONG).text
        if not hole.situation.prefix.startswith(former.prefix) or not text.startswith(typed):
            return None
        return postprocess(text[len(typed) :], hole)

    def _unlimited(self, request: CompletionRequest, hole: Hole) -> Cleaned:
        return postprocess(self.cold.answer(request, _LONG).text, hole)

    def check_model(self, shown: Cleaned, request: CompletionRequest, situation: Situation) -> None:
        """An answer to a request of its own: that of a cold engine, and the request is the right one."""
        check_division(request, situation)
        hole = self.hole(situation)
        assert self._is_alike(request.sampling, self.sampling(hole.shape))
        assert _told(shown) == _told(self.fresh(request, hole))
        self.num["model"] += 1
        self.num["texts"] += bool(shown.text)

    def check_rest(self, shown: Cleaned, requests: list[CompletionRequest], situation: Situation) -> None:
        """No request of its own: exactly the rest of an earlier answer; where typing has the tokens that were
        generated, that is also what a cold engine says at the new cursor.
        """
        self.num["texts"] += bool(shown.text)
        hole = self.hole(situation)
        former = next((former for former in reversed(requests) if self._is_rest(shown, former, hole)), None)
        assert former is not None, "what is shown was never said"
        if self._is_again(former, hole):
            self.num["again"] += 1
            return
        self.num["rest"] += 1
        now = replace(former, prefix=situation.prefix)
        if self.cold.starts_like(now, former):
            # an earlier answer for a block may hold more of the line than a new one for a line is allowed
            is_cut = self.cold.answer(now, self.sampling(hole.shape)).finished.reason is FinishReason.LENGTH
            assert _told(shown) == _told(self._unlimited(now, hole) if is_cut else self.fresh(now, hole))
            self.num["canonical"] += 1
        else:
            self.num["other tokens"] += 1

    def _is_rest(self, shown: Cleaned, former: CompletionRequest, hole: Hole) -> bool:
        situation = hole.situation
        if not situation.prefix.startswith(former.prefix) or not is_suffix_of(former, situation):
            return False
        expected = self.fresh(former, hole) if self._is_again(former, hole) else self.rest(former, hole)
        return expected is not None and _told(shown) == _told(expected)

    def _is_again(self, former: CompletionRequest, hole: Hole) -> bool:
        """Whether a request was for the same cursor and form."""
        return former.prefix == hole.situation.prefix and self._is_alike(former.sampling, self.sampling(hole.shape))

    def _is_alike(self, one: SamplingParams, other: SamplingParams) -> bool:
        return replace(one, time_limit_ms=None) == other

    def sampling(self, shape: Shape) -> SamplingParams:
        """How a hole of this form is filled."""
        completion = self.config.completion
        if shape.is_block:
            return SamplingParams(max_tokens=completion.max_block_tokens, min_indent=shape.min_indent)
        return SamplingParams(max_tokens=completion.max_line_tokens, stop=("\n",))


def check_division(request: CompletionRequest, situation: Situation) -> None:
    """The request is for this cursor, divided at the start of a line, and all real code after it is in it."""
    assert request.prefix == situation.prefix
    assert request.anchor is not None
    assert request.anchor == 0 or request.prefix[request.anchor - 1] == "\n"
    assert is_suffix_of(request, situation)


def is_suffix_of(request: CompletionRequest, situation: Situation) -> bool:
    """Whether a request was shown all that stands after a cursor, less what an editor closes by itself."""
    suffix = request.suffix
    if suffix is None or not situation.suffix.endswith(suffix):
        return False
    closed = situation.suffix[: len(situation.suffix) - len(suffix)]
    return not closed.strip(" \t\n)]}>\"'`:{;,")


def _told(cleaned: Cleaned) -> tuple[object, ...]:
    return cleaned.text, cleaned.reason
