"""``Engine`` blocks and ``AsyncEngine`` streams: one model, one sequence at a time.

The keys and values of the last request are kept; the next one computes only what differs.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from engine.cache.storage import SequenceCache
from engine.checkpoint.source import open_checkpoint
from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.errors import CheckpointError, ConfigError, RequestError, ServiceError
from engine.fim import LEFT_TO_RIGHT, Prompt, PromptBuilder, detect_family, family_named
from engine.healing import ByteVocabulary
from engine.info import EngineInfo
from engine.loop import Generation, Model
from engine.model.load import load_decoder
from engine.request import CompletionRequest, Delta, SamplingParams

_logger = logging.getLogger(__name__)
_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}

# A hole that every model trained for filling in fills the same way: the second operand.
_SELF_TEST = CompletionRequest(
    prefix="def add(a, b):\n    return a + ",
    suffix="\n\n\nprint(add(1, 2))\n",
    sampling=SamplingParams(max_tokens=4, stop=("\n",)),
)
_SELF_TEST_ANSWER = "b"


def _never() -> bool:
    return False


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

    def __init__(self, info: EngineInfo, model: Model, prompts: PromptBuilder) -> None:
        self.info = info
        self._model = model
        self._prompts = prompts

    @classmethod
    def load(cls, config: EngineConfig) -> "Engine":
        """Read the model into memory and let it fill a known hole.

        Takes seconds. Raises ``ModelError`` for anything wrong with the model, ``ConfigError`` for the settings.
        """
        started = time.monotonic()
        device, dtype = _device(config.device), _dtype(config.dtype)
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        model = resolve_model(config.model)
        checkpoint = open_checkpoint(model.path)
        shape, tokenizer = checkpoint.config, checkpoint.load_tokenizer()
        if tokenizer.vocab_size > shape.vocab_size:
            raise CheckpointError(
                f"{model.path} has {tokenizer.vocab_size} tokens in its vocabulary, {shape.vocab_size} in its embedding"
            )
        wanted = config.fim_family if config.fim_family != "auto" else model.fim_family
        family = detect_family(tokenizer, shape.architecture, model.name) if wanted == "auto" else family_named(wanted)
        context_tokens = min(config.max_context_tokens, shape.context_tokens)
        prompts = PromptBuilder(family, tokenizer, context_tokens)
        decoder, weight_bytes = load_decoder(checkpoint, dtype, device, context_tokens)
        cache = SequenceCache(shape, context_tokens, dtype, device)
        info = EngineInfo(
            model=model.name,
            architecture=shape.architecture,
            fim_family=family.name,
            context_tokens=context_tokens,
            dtype=str(dtype).removeprefix("torch."),
            device=str(device),
            num_threads=torch.get_num_threads(),
            num_parameters=sum(math.prod(size) for size in checkpoint.parameter_shapes().values()),
            memory_bytes=weight_bytes + cache.num_bytes,
            load_s=0.0,
        )
        engine = cls(info, Model(decoder, tokenizer, ByteVocabulary(tokenizer.all_bytes), cache), prompts)
        outcome = engine._self_test()
        engine.info = replace(info, self_test=outcome, load_s=round(time.monotonic() - started, 2))
        return engine

    def tokenize(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self._model.tokenizer.encode(text)

    def detokenize(self, token_ids: list[int]) -> str:
        """Text of ids. Raises ``RequestError`` for an id outside the vocabulary."""
        bad = [i for i in token_ids if not 0 <= i < self._model.tokenizer.vocab_size]
        if bad:
            raise RequestError(f"token id {bad[0]} is outside the vocabulary of {self._model.tokenizer.vocab_size}")
        return self._model.tokenizer.decode(token_ids)

    def generate(
        self,
        request: CompletionRequest,
        is_cancelled: Callable[[], bool] = _never,
        arrival: float | None = None,
    ) -> Iterator[Delta]:
        """Complete one request; the last delta says why it ended.

        ``is_cancelled`` is asked between layers and ends the request with ``CANCELLED``. ``arrival`` is the
        ``time.monotonic()`` from which times are counted. Raises ``RequestError`` when the prompt is unusable.
        """
        started = time.monotonic() if arrival is None else arrival
        return Generation(self._model, self._prompt(request), request.sampling, started).run(is_cancelled)

    def _prompt(self, request: CompletionRequest) -> Prompt:
        max_new_tokens = request.sampling.max_tokens
        if request.suffix is None:
            return self._prompts.continuation(request.prefix, max_new_tokens)
        return self._prompts.infill(request.prefix, request.suffix, request.extra, max_new_tokens)

    def _self_test(self) -> str:
        if self._prompts.family is LEFT_TO_RIGHT:
            return "skipped"
        text = "".join(delta.text for delta in self.generate(_SELF_TEST))
        if text.strip() == _SELF_TEST_ANSWER:
            return "passed"
        _logger.warning("%s did not fill a known hole; its suggestions may be useless", self.info.model)
        return "failed"


class AsyncEngine:
    """Runs requests one after the other, in the order of their arrival."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._jobs: set[Future[None]] = set()
        self._is_closing = threading.Event()
        # one thread: two parallel regions on the same cores would only slow each other down
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="midline-compute")

    @property
    def num_running(self) -> int:
        """Requests being computed: one at most."""
        return sum(job.running() for job in self._jobs)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._jobs) - self.num_running

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yield a request's deltas; the last one carries ``finished``.

        Closing the generator, or cancelling the task that reads it, stops the work between two layers, or drops
        the request from the queue. Raises ``RequestError`` for an unusable prompt, ``ServiceError`` after ``aclose``.
        """
        if self._is_closing.is_set():
            raise ServiceError("the engine is closed")
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
        cancelled = threading.Event()
        arrival = time.monotonic()

        def publish(event: Delta | Exception | None) -> None:
            # a reader whose loop has ended needs no event any more
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(events.put_nowait, event)

        def must_stop() -> bool:
            return cancelled.is_set() or self._is_closing.is_set()

        def work() -> None:
            try:
                for delta in self.engine.generate(request, must_stop, arrival):
                    publish(delta)
            except Exception as error:  # noqa: BLE001  # handed to the reader, who raises it
                publish(error)
            finally:
                publish(None)

        job = self._thread.submit(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            cancelled.set()
            job.cancel()  # takes it out of the queue, if it is still there

    async def aclose(self) -> None:
        """Cancel all requests and wait for the compute thread to end."""
        self._is_closing.set()
        await asyncio.to_thread(self._thread.shutdown, wait=True)
