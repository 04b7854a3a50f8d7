"""One request on its way through a model: prefill, then token after token until something ends it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from engine.cache.storage import SequenceCache
from engine.fim import Prompt
from engine.healing import ByteConstraint, ByteVocabulary
from engine.model.decoder import Decoder, ForwardCancelled
from engine.request import Delta, Finished, FinishReason, SamplingParams, Timing, Usage
from engine.sampling import Sampler
from engine.textstream import TextStream
from engine.tokenizer import Tokenizer

# What a cancelled prefill has finished is kept piece by piece, so the next keystroke goes on from there. Smaller
# pieces lose time: 402 tokens take 0.98 s in one piece, 1.02 s in pieces of 128, 1.13 s in pieces of 64.
_PREFILL_CHUNK_TOKENS = 128


@dataclass(frozen=True)
class Model:
    """What a generation works with: a decoder, its vocabulary, and the cache it extends."""

    decoder: Decoder
    tokenizer: Tokenizer
    vocabulary: ByteVocabulary
    cache: SequenceCache


class Generation:
    """Completes one prompt. ``arrival`` is the ``time.monotonic()`` from which times are counted."""

    def __init__(self, model: Model, prompt: Prompt, params: SamplingParams, arrival: float) -> None:
        self._model = model
        self._prompt = prompt
        self._params = params
        self._arrival = arrival
        self._queue_ms = self._elapsed_ms()
        self._constraint = ByteConstraint(model.vocabulary, prompt.required)
        self._sampler = Sampler(params)
        self._text = TextStream(params)
        self._first_token_ms: float | None = None
        self._num_cached = 0
        self._num_generated = 0

    def run(self, is_cancelled: Callable[[], bool]) -> Iterator[Delta]:
        """Yield deltas; the last one says why it ended, also when ``is_cancelled`` stopped it between two layers."""
        try:
            yield from self._generate(is_cancelled)
        except ForwardCancelled:
            yield self._end(FinishReason.CANCELLED)

    def _generate(self, is_cancelled: Callable[[], bool]) -> Iterator[Delta]:
        hidden = self._prefill(is_cancelled)
        decoder, tokenizer = self._model.decoder, self._model.tokenizer
        num_left = self._params.max_tokens
        while num_left > 0:
            # a padded embedding has rows that are no tokens
            logits = decoder.logits(hidden)[0, : tokenizer.vocab_size]
            token = self._sampler.choose(logits, self._constraint.allowed_ids())
            self._num_generated += 1
            if self._first_token_ms is None:
                self._first_token_ms = self._elapsed_ms()
            if tokenizer.is_control(token) or token in tokenizer.eos_ids:
                yield self._end(FinishReason.STOP)
                return
            new_bytes = self._constraint.advance(tokenizer.all_bytes[token])
            num_left -= bool(new_bytes)  # a token that only repeats what was required is none of the answer's
            text = self._text.push(new_bytes, self._elapsed_ms())
            if self._text.finish_reason:
                yield self._end(self._text.finish_reason, text, (token,))
                return
            yield Delta(text, (token,), usage=self._usage())
            if num_left > 0:
                hidden = decoder.forward([token], self._model.cache, is_cancelled)
        yield self._end(FinishReason.LENGTH)

    def _prefill(self, is_cancelled: Callable[[], bool]) -> Tensor:
        """Compute what the cache does not have; returns the last hidden state ``[1, hidden_size]``."""
        ids, cache = self._prompt.ids, self._model.cache
        # the last token is always computed, because its hidden state is needed
        self._num_cached = done = cache.keep_common_prefix(ids[:-1])
        while True:
            chunk = ids[done : done + _PREFILL_CHUNK_TOKENS]
            hidden = self._model.decoder.forward(chunk, cache, is_cancelled)
            done += len(chunk)
            if done == len(ids):
                return hidden[-1:]

    def _end(self, reason: FinishReason, text: str = "", token_ids: tuple[int, ...] = ()) -> Delta:
        if reason is not FinishReason.CANCELLED and self._text.finish_reason is None:
            text += self._text.flush()
            reason = self._text.finish_reason or reason
        usage = self._usage()
        timing = Timing(self._queue_ms, self._first_token_ms, self._elapsed_ms())
        return Delta(text, token_ids, Finished(reason, usage, timing, self._text.stop_string), usage)

    def _usage(self) -> Usage:
        return Usage(len(self._prompt.ids), self._num_cached, self._num_generated)

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self._arrival) * 1000.0
