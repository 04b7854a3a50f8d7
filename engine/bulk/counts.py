"""What a run has done and cost so far, and what it had to do at least. Imports torch by way of the engine."""

import time
from collections.abc import Collection

from engine.bulk.wire import Progress, Summary
from engine.engine import Engine
from engine.machine.memory import peak_bytes
from engine.machine.predict import layer_weights
from engine.model.config import ModelConfig
from engine.request import Finished, Lane, Usage
from engine.scheduler.sequence import Sequence


class Counts:
    """Observes an engine from its making on."""

    def __init__(self, engine: Engine) -> None:
        self._cache = engine.cache
        self._shape = engine.model.decoder.config
        self._started_s = time.monotonic()
        self._num_computed_tokens = self._num_cached_tokens = 0
        self._num_wanted_keys = self._num_read_keys = 0
        self._max_used_blocks = 0
        self._decode_s = 0.0
        self._num_decode_tokens = 0
        self._num_operations = 0
        self.num_generated_tokens = 0
        self.num_done = 0
        self.num_preemptions = 0
        self.max_running = 0
        engine.loop.observer = self

    def on_pass(self, lane: Lane, num_rows: int, seconds: float, num_keys: tuple[int, int]) -> None:
        """A pass is complete."""
        self._num_wanted_keys += num_keys[0]
        self._num_read_keys += num_keys[1]
        self._max_used_blocks = max(self._max_used_blocks, self._cache.num_used)

    def on_end(self, lane: Lane, finished: Finished) -> None:
        """A request has ended with an answer."""
        usage = finished.usage
        self._num_cached_tokens += usage.cached_tokens
        self._num_computed_tokens += usage.prompt_tokens - usage.cached_tokens
        self._num_operations += num_operations(self._shape, usage)

    def on_waste(self, lane: Lane, num_tokens: int) -> None:
        """Nothing is cancelled here but what fails."""

    def on_decode(self, seconds: float, num_tokens: int) -> None:
        """A pass has given nothing but the next tokens of answers."""
        self._decode_s += seconds
        self._num_decode_tokens += num_tokens

    def progress(self, running: Collection[Sequence], num_waiting: int) -> Progress:
        """As it is now, with what has been computed of those that run."""
        num_blocks = self._cache.pool.num_blocks
        begun = [sequence for sequence in running if sequence.table is not None]
        num_computed = sum(min(each.num_computed, each.num_prompt_tokens) - each.num_cached for each in begun)
        return Progress(
            seconds=time.monotonic() - self._started_s,
            num_done=self.num_done,
            num_running=len(running),
            num_waiting=num_waiting,
            num_computed_tokens=self._num_computed_tokens + num_computed,
            num_cached_tokens=self._num_cached_tokens + sum(each.num_cached for each in begun),
            num_generated_tokens=self.num_generated_tokens,
            padding_share=1.0 - self._num_wanted_keys / self._num_read_keys if self._num_read_keys else 0.0,
            kv_used_share=self._cache.num_used / num_blocks,
            num_preemptions=self.num_preemptions,
            peak_memory_bytes=peak_bytes(),
        )

    def summary(self, operations_per_s: float | None) -> Summary:
        """When all is done."""
        return Summary(
            progress=self.progress((), 0),
            max_kv_used_share=self._max_used_blocks / self._cache.pool.num_blocks,
            max_running=self.max_running,
            decode_seconds=self._decode_s,
            decode_tokens=self._num_decode_tokens,
            num_operations=float(self._num_operations),
            operations_per_s=operations_per_s,
        )


def num_operations(shape: ModelConfig, usage: Usage) -> int:
    """Multiplications and additions behind an answer: what was cached, and drafts that were wrong, do not count.

    The answer's last token is chosen, but never fed. In attention, a row's number of keys is that of the tokens up to
    its own; each is multiplied with the query, and its value with the weight that this gives.
    """
    num_fed = usage.prompt_tokens + max(0, usage.generated_tokens - 1)
    num_rows = num_fed - usage.cached_tokens
    num_seen = (num_fed * (num_fed + 1) - usage.cached_tokens * (usage.cached_tokens + 1)) // 2
    products = num_rows * layer_weights(shape) + usage.generated_tokens * shape.vocab_size * shape.hidden_size
    attention = 2 * num_seen * shape.num_layers * shape.num_heads * shape.head_dim
    return 2 * (products + attention)
