"""Midline and llama.cpp's server behind the same few questions, so that both are asked alike. Imports torch.

Midline answers in this process, as a library; the peer answers over HTTP on one connection that stays open.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from engine.bench.code_samples import Typing
from engine.bench.llama_server import LlamaServer
from engine.config import Profile
from engine.engine import Engine
from engine.errors import ServiceError
from engine.fim import FimFamily
from engine.request import CompletionRequest, Lane, SamplingParams

TokenIds = Sequence[int]


@dataclass(frozen=True)
class Answer:
    """What came, and when."""

    wall_s: float
    """From the question to the last token."""
    token_ids: tuple[int, ...]
    num_computed: int
    """Tokens of the prompt that were not cached."""
    own_prompt_s: float | None = None
    """Of the prompt, by the peer's own clock."""
    own_decode_s: float | None = None
    """Of all tokens but the first, by the peer's own clock."""
    num_drafted: int = 0
    num_accepted: int = 0


class MidlineSide:
    """The engine under a profile that can be changed."""

    name = "midline"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def use(self, profile: Profile) -> None:
        """From now on compute under these limits."""
        self._engine = self._engine.with_profile(profile)

    def first_token(self, prompt: TokenIds) -> Answer:
        """Compute a prompt of which nothing is cached, and the first token."""
        self._engine.cache.clear()
        return self._ask(_request(prompt, 1))

    def decode(self, prompt: TokenIds, num_tokens: int) -> Answer:
        """Generate ``num_tokens`` behind a prompt that is cached: to compute it is not part of the time."""
        self._ask(_request(prompt, 0))
        return self._ask(_request(prompt, num_tokens))

    def decode_together(self, prompts: Sequence[TokenIds], num_tokens: int) -> float:
        """Seconds for all prompts, none of them cached, and ``num_tokens`` behind each, asked at once."""
        self._engine.cache.clear()
        requests = [_request(prompt, num_tokens, Lane.BULK) for prompt in prompts]
        started = time.perf_counter()
        answers = self._engine.complete_all(requests)
        seconds = time.perf_counter() - started
        _check_count("Midline", [len(answer.token_ids) for answer in answers], num_tokens)
        return seconds

    def keystroke(self, typing: Typing, num_typed: int) -> Answer:
        """The first token of new text behind what has been typed, in the session of that buffer.

        Tokens that only repeat what stands before the cursor come first where the last token may still grow.
        """
        return self._ask(
            CompletionRequest(
                prefix=typing.prefix + typing.indent + typing.line[:num_typed],
                suffix=typing.suffix,
                sampling=SamplingParams(max_tokens=1),
                session="typing",
            )
        )

    def cpu_s(self) -> float:
        """CPU seconds that this process has used."""
        return time.process_time()

    def _ask(self, request: CompletionRequest) -> Answer:
        started = time.perf_counter()
        (answer,) = self._engine.complete_all([request])
        seconds = time.perf_counter() - started
        usage = answer.finished.usage
        return Answer(
            wall_s=seconds,
            token_ids=answer.token_ids,
            num_computed=usage.prompt_tokens - usage.cached_tokens,
            num_drafted=usage.drafted_tokens,
            num_accepted=usage.accepted_tokens,
        )


class PeerSide:
    """A running ``llama-server``. Greedy by its quickest sampler."""

    name = "llama.cpp"
    _GREEDY: dict[str, Any] = {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"], "return_tokens": True}  # noqa: RUF012

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._process = psutil.Process(server.pid)

    def first_token(self, prompt: TokenIds) -> Answer:
        """As ``MidlineSide.first_token``."""
        return self._ask("/completion", {"prompt": list(prompt), "n_predict": 1, "cache_prompt": False})

    def decode(self, prompt: TokenIds, num_tokens: int) -> Answer:
        """As ``MidlineSide.decode``."""
        body = {"prompt": list(prompt), "cache_prompt": True, "ignore_eos": True}
        self._ask("/completion", {**body, "n_predict": 0})
        answer = self._ask("/completion", {**body, "n_predict": num_tokens})
        _check_count(self.name, [len(answer.token_ids)], num_tokens)
        return answer

    def decode_together(self, prompts: Sequence[TokenIds], num_tokens: int) -> float:
        """As ``MidlineSide.decode_together``."""
        body = {**self._GREEDY, "n_predict": num_tokens, "cache_prompt": False, "ignore_eos": True}
        answers, seconds = self._server.post_all(
            "/completion", [{**body, "prompt": list(prompt)} for prompt in prompts]
        )
        counts = [len(_parsed("/completion", answer, seconds).token_ids) for answer in answers]
        _check_count(self.name, counts, num_tokens)
        return seconds

    def infill(self, typing: Typing, num_typed: int) -> Answer:
        """A keystroke as llama.vim asks: the cursor's line apart from those above it."""
        return self._ask(
            "/infill",
            {
                "input_prefix": typing.prefix,
                "prompt": typing.indent + typing.line[:num_typed],
                "input_suffix": typing.suffix,
                "n_predict": 1,
                "cache_prompt": True,
            },
        )

    def append_only(self, family: FimFamily, typing: Typing, num_typed: int) -> Answer:
        """A keystroke with a prompt to which typing only appends: the best that a client can make of its cache."""
        texts = {"prefix": typing.prefix, "typed": typing.indent + typing.line[:num_typed], "suffix": typing.suffix}
        prompt = "".join(part.format(**texts) for part in family.template)
        return self._ask("/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": True})

    def cpu_s(self) -> float:
        """CPU seconds that its process has used."""
        try:
            times = self._process.cpu_times()
        except psutil.NoSuchProcess:  # the next question tells why
            return 0.0
        return float(times.user + times.system)

    def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        data, seconds = self._server.post(path, {**self._GREEDY, **body})
        return _parsed(path, data, seconds)


def without_drafts(profile: Profile) -> Profile:
    """The same limits, one token of each request a pass."""
    return replace(profile, max_drafts=0)


def _request(prompt: TokenIds, num_tokens: int, lane: Lane = Lane.INTERACTIVE) -> CompletionRequest:
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return CompletionRequest(prefix="", prompt_ids=tuple(prompt), sampling=sampling, lane=lane)


def _check_count(name: str, counts: Sequence[int], num_tokens: int) -> None:
    """A side that stops early would look fast."""
    if any(count != num_tokens for count in counts):
        raise ServiceError(f"{name} has generated {min(counts)} to {max(counts)} tokens instead of {num_tokens}")


def _parsed(path: str, data: dict[str, Any], wall_s: float) -> Answer:
    try:
        timings = data["timings"]
        return Answer(
            wall_s=wall_s,
            token_ids=tuple(map(int, data["tokens"])),
            num_computed=int(timings["prompt_n"]),
            own_prompt_s=timings["prompt_ms"] / 1000.0,
            own_decode_s=timings["predicted_ms"] / 1000.0,
            num_drafted=int(timings.get("draft_n", 0)),
            num_accepted=int(timings.get("draft_n_accepted", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceError(f"llama-server's answer to {path} is not understood: {error!r}") from None
