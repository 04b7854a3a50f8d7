"""One request's answer while it grows: constraint, text, counts and events. Light: imports no torch.

It is told the chosen tokens and says when the answer is complete; it knows neither cache nor batch.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.fim import Prompt
from engine.healing import ByteConstraint, Vocabulary
from engine.request import Delta, Finished, FinishReason, SamplingParams, Timing, Usage
from engine.textstream import TextStream

OnDelta = Callable[[Delta], None]


class Generation:
    """The answer to one prompt. ``arrival_s`` is the ``time.monotonic()`` from which times are counted.

    Every delta goes to ``on_delta``, the last one with ``finished``; there is exactly one of those.
    """

    def __init__(
        self, vocabulary: Vocabulary, prompt: Prompt, params: SamplingParams, arrival_s: float, on_delta: OnDelta
    ) -> None:
        self.params = params
        self.arrival_s = arrival_s
        self._tokenizer = vocabulary.tokenizer
        self._constraint = ByteConstraint(vocabulary.by_bytes, prompt.required)
        self._text = TextStream(params)
        self._on_delta = on_delta
        self._queue_ms: float | None = None
        self._first_token_ms: float | None = None
        self._num_prompt = len(prompt.ids)
        self._num_cached = 0
        self._num_generated = 0
        self._num_drafted = 0
        self._num_accepted = 0
        self._num_new = 0
        self._sum_logprobs = 0.0
        self._is_ended = False

    def begin(self, num_cached: int) -> None:
        """It has been admitted, with so many prompt tokens computed already. Later calls change nothing."""
        if self._queue_ms is None:
            self._queue_ms = self._elapsed_ms()
            self._num_cached = num_cached

    @property
    def is_complete(self) -> bool:
        """Nothing more may be generated."""
        return self._num_new >= self.params.max_tokens

    def allowed_ids(self) -> npt.NDArray[np.int64] | None:
        """Tokens that may come next; None when all may."""
        return self._constraint.allowed_ids()

    def accept(self, token: int, logprob: float) -> FinishReason | None:
        """Take the next token; returns why the answer ends with it, or None. ``end`` must be called then."""
        self._num_generated += 1
        if self._first_token_ms is None:
            self._first_token_ms = self._elapsed_ms()
        is_last = token in self._tokenizer.eos_ids or self._tokenizer.is_control(token)
        if is_last and not self.params.ignore_eos:
            return FinishReason.STOP
        new_bytes = self._constraint.advance(b"" if is_last else self._tokenizer.all_bytes[token])
        if new_bytes or is_last:  # a token that only repeats what was required is none of the answer's
            self._num_new += 1
            self._sum_logprobs += logprob
        text = self._text.push(new_bytes, self._elapsed_ms())
        self._on_delta(Delta(text, (token,), usage=self._usage()))
        return self._text.finish_reason or (FinishReason.LENGTH if self.is_complete else None)

    def count_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Some drafts have been verified."""
        self._num_drafted += num_drafted
        self._num_accepted += num_accepted

    def end(self, reason: FinishReason) -> Finished:
        """Send the last delta. Raises ``RuntimeError`` when it has been sent before."""
        if self._is_ended:
            raise RuntimeError("a request has ended twice")
        self._is_ended = True
        text = ""
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and self._text.finish_reason is None:
            text = self._text.flush()
            reason = self._text.finish_reason or reason
        usage, elapsed_ms = self._usage(), self._elapsed_ms()
        queue_ms = elapsed_ms if self._queue_ms is None else self._queue_ms
        timing = Timing(queue_ms, self._first_token_ms, elapsed_ms)
        mean = self._sum_logprobs / self._num_new if self._num_new else None
        finished = Finished(reason, usage, timing, self._text.stop_string, mean)
        self._on_delta(Delta(text, (), finished, usage))
        return finished

    def _usage(self) -> Usage:
        return Usage(self._num_prompt, self._num_cached, self._num_generated, self._num_drafted, self._num_accepted)

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self.arrival_s) * 1000.0
