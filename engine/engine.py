"""``Engine``: a loaded model and the loop that all its requests share."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from engine.config import PROFILES, EngineConfig, Profile
from engine.errors import ConfigError, RequestError
from engine.fim import LEFT_TO_RIGHT, Prompt
from engine.generation import Generation, OnDelta
from engine.info import EngineInfo
from engine.loading import LoadedModel, load_model
from engine.loop import Job, Loop, OnError
from engine.machine.auto import settled
from engine.machine.parallel import use_threads
from engine.machine.threads import count_threads
from engine.request import CompletionRequest, Delta, Finished, SamplingParams
from engine.scheduler.sequence import Sequence
from engine.speculation.draft_model import DraftModel, DraftModelSource
from engine.speculation.sources import DraftSource, EarlierAnswer, NGrams, Obedient

_logger = logging.getLogger(__name__)
_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}

# A hole that every model trained for filling in fills the same way: the second operand.
_SELF_TEST = CompletionRequest(
    prefix="def add(a, b):\n    return a + ",
    suffix="\n\n\nprint(add(1, 2))\n",
    sampling=SamplingParams(max_tokens=4, stop=("\n",)),
)
_SELF_TEST_ANSWER = "b"


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finished: Finished


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"engine.device is {name!r}; it must be cpu, cuda or auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device is 'cuda', but torch finds no CUDA device; use cpu or auto")
    return torch.device(name)


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ConfigError(f"engine.dtype is {name!r}; it must be one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


class Engine:
    """A loaded model that completes text. Not safe for threads: ``AsyncEngine`` gives it a thread of its own."""

    def __init__(self, info: EngineInfo, model: LoadedModel, loop: Loop, draft_model: DraftModel | None) -> None:
        self.info = info
        self.loop = loop
        self.cache = model.cache
        self._model = model
        self._vocabulary = model.vocabulary
        self._draft_model = draft_model
        if draft_model is not None:
            draft_model.is_wanted_elsewhere = lambda: loop.has_mail

    @classmethod
    def load(cls, config: EngineConfig) -> "Engine":
        """Read the model into memory and let it fill a known hole.

        Takes seconds. Raises ``ModelError`` for anything wrong with the model, ``ConfigError`` for the settings.
        """
        started = time.monotonic()
        config = settled(config)
        device, dtype = _device(config.device), _dtype(config.dtype)
        use_threads(count_threads(config.num_threads).num_threads)
        smaller = _load_smaller(config, dtype, device) if config.draft_model else None
        model = load_model(config.model, config, dtype, device, smaller.storage.num_bytes if smaller else 0)
        draft_model = _draft_model(smaller, model) if smaller else None
        info = EngineInfo(
            model=model.name,
            architecture=model.decoder.config.architecture,
            fim_family=model.prompts.family.name,
            context_tokens=model.context_tokens,
            dtype=model.precision,
            kernels=model.kernels,
            device=str(device),
            num_threads=torch.get_num_threads(),
            num_parameters=model.num_parameters,
            memory_bytes=model.num_bytes + (smaller.num_bytes if smaller else 0),
            load_s=0.0,
        )
        loop = Loop(model.decoder, model.storage, model.cache, PROFILES[config.profile], model.num_tokens)
        engine = cls(info, model, loop, draft_model)
        outcome = engine._self_test()
        engine.info = replace(info, self_test=outcome, load_s=round(time.monotonic() - started, 2))
        return engine

    @property
    def model(self) -> LoadedModel:
        """What it computes with, to be measured while no request runs; blocks taken from its cache are given back."""
        return self._model

    def with_profile(self, profile: Profile) -> "Engine":
        """The same model and cache under other limits; this engine must not be used any more."""
        return Engine(self.info, self._model, self.loop.with_profile(profile), self._draft_model)

    def tokenize(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self._vocabulary.tokenizer.encode(text)

    def detokenize(self, token_ids: list[int]) -> str:
        """Text of ids. Raises ``RequestError`` for an id outside the vocabulary."""
        self._check_ids(token_ids)
        return self._vocabulary.tokenizer.decode(token_ids)

    def prepare(
        self,
        request: CompletionRequest,
        on_delta: OnDelta,
        on_error: OnError,
        arrival_s: float | None = None,
        prompt: Prompt | None = None,
    ) -> Job:
        """A job for ``loop.submit``. May be called on any thread.

        ``on_delta`` gets every delta and ``on_error`` what breaks it, on the computing thread. ``arrival_s`` is the
        ``time.monotonic()`` from which times are counted; ``prompt`` that of the request, if it has been built
        already. Raises ``RequestError`` when the prompt is unusable.
        """
        arrival_s = time.monotonic() if arrival_s is None else arrival_s
        prompt = self.prompt(request) if prompt is None else prompt
        generation = Generation(self._vocabulary, prompt, request.sampling, arrival_s, on_delta)
        deadline_s = None if request.deadline_ms is None else arrival_s + request.deadline_ms / 1000.0
        max_tokens = len(prompt.ids) + len(prompt.required) + request.sampling.max_tokens
        sequence = Sequence(
            token_ids=list(prompt.ids),
            max_tokens=max_tokens,
            lane=request.lane,
            deadline_s=deadline_s,
            session=request.session,
            use_cache=request.use_cache,
        )
        sources = self._sources(prompt, request, max_tokens) if request.use_drafts else ()
        return Job(sequence, generation, on_error, sources)

    def generate(self, request: CompletionRequest) -> Iterator[Delta]:
        """Complete one request; the last delta says why it ended. Leaving the iterator cancels it."""
        deltas: deque[Delta] = deque()
        errors: list[Exception] = []
        job = self.prepare(request, deltas.append, errors.append)
        return self._deltas(job, deltas, errors)

    def complete_all(
        self, requests: Iterable[CompletionRequest], on_delta: Callable[[int, Delta], None] | None = None
    ) -> list[Completion]:
        """Complete requests together; the answers are in their order. Raises the first thing that breaks."""
        answers: list[list[Delta]] = []
        errors: list[Exception] = []
        jobs = []
        for index, request in enumerate(requests):
            answers.append([])

            def take(delta: Delta, index: int = index) -> None:
                answers[index].append(delta)
                if on_delta is not None:
                    on_delta(index, delta)

            jobs.append(self.prepare(request, take, errors.append))
        for job in jobs:
            self.loop.submit(job)
        try:
            while self.loop.has_work and not errors:
                self.loop.step()
        finally:
            self.loop.cancel_all()
        if errors:
            raise errors[0]
        return [_completion(deltas) for deltas in answers]

    def _deltas(self, job: Job, deltas: "deque[Delta]", errors: list[Exception]) -> Iterator[Delta]:
        self.loop.submit(job)
        try:
            while True:
                while deltas:
                    delta = deltas.popleft()
                    yield delta
                    if delta.finished is not None:
                        return
                if errors:
                    raise errors[0]
                self.loop.step()
        finally:
            self.loop.cancel(job)
            with suppress(Exception):
                self.loop.settle()

    def prompt(self, request: CompletionRequest) -> Prompt:
        """What the model is fed for a request. Raises ``RequestError`` when it is unusable."""
        max_new_tokens = request.sampling.max_tokens
        if request.prompt_ids:
            return self._given_prompt(list(request.prompt_ids), max_new_tokens)
        if request.suffix is None:
            return self._model.prompts.continuation(request.prefix, max_new_tokens, heal=request.heal)
        return self._model.prompts.infill(
            request.prefix,
            request.suffix,
            request.extra,
            max_new_tokens,
            anchor=request.anchor,
            heal=request.heal,
        )

    def _given_prompt(self, token_ids: list[int], max_new_tokens: int) -> Prompt:
        self._check_ids(token_ids)
        if len(token_ids) + max_new_tokens > self.info.context_tokens:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens and max_tokens is {max_new_tokens}; "
                f"the context holds {self.info.context_tokens}"
            )
        return Prompt(token_ids)

    def _check_ids(self, token_ids: list[int]) -> None:
        size = self._vocabulary.tokenizer.vocab_size
        bad = next((i for i in token_ids if not 0 <= i < size), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is outside the vocabulary of {size}")

    def _sources(self, prompt: Prompt, request: CompletionRequest, max_tokens: int) -> tuple[DraftSource, ...]:
        """From the most precise to the least; none proposes what the prompt's constraint forbids."""
        windows = self._model.prompts.windows
        sources: list[DraftSource] = [NGrams([token for text in request.corpus for token in windows.encode(text)])]
        if request.draft:
            draft_ids = self.tokenize(prompt.required.decode() + request.draft)
            sources.insert(0, EarlierAnswer(len(prompt.ids), draft_ids))
        if self._draft_model is not None:
            sources.append(DraftModelSource(self._draft_model, max_tokens))
        if not prompt.required:
            return tuple(sources)
        token_bytes = self._vocabulary.tokenizer.all_bytes
        return tuple(Obedient(source, len(prompt.ids), prompt.required, token_bytes) for source in sources)

    def _self_test(self) -> str:
        if self._model.prompts.family is LEFT_TO_RIGHT:
            return "skipped"
        text = "".join(delta.text for delta in self.generate(_SELF_TEST))
        if text.strip() == _SELF_TEST_ANSWER:
            return "passed"
        _logger.warning("%s did not fill a known hole; its suggestions may be useless", self.info.model)
        return "failed"


def _load_smaller(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """The model that drafts: before the other one, whose cache takes what is left."""
    return load_model(config.draft_model, replace(config, profile="completion"), dtype, device)


def _draft_model(smaller: LoadedModel, model: LoadedModel) -> DraftModel:
    """Raises ``ConfigError`` for one that cannot draft for this model."""
    if list(smaller.vocabulary.tokenizer.all_bytes) != list(model.vocabulary.tokenizer.all_bytes):
        raise ConfigError(
            f"engine.draft_model {smaller.name} has another vocabulary than {model.name}; choose one alike"
        )
    if smaller.context_tokens < model.context_tokens:
        raise ConfigError(
            f"engine.draft_model {smaller.name} holds {smaller.context_tokens} tokens, {model.name} "
            f"{model.context_tokens}; set engine.max_context_tokens to {smaller.context_tokens} or less"
        )
    draft_model = DraftModel(smaller.decoder, smaller.storage, smaller.cache, smaller.num_tokens)
    draft_model.warm_up()
    return draft_model


def _completion(deltas: list[Delta]) -> Completion:
    finished = deltas[-1].finished
    assert finished is not None
    token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    return Completion("".join(delta.text for delta in deltas), token_ids, finished)
