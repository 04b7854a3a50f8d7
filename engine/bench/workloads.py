"""The requests of a benchmark, drawn from a seed. Light: imports no torch, knows no engine.

Prompts are random tokens of the model's vocabulary, so that no request is easier than another.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from engine.bench.settings import OfflineSettings, ServingSettings

_MAX_BUFFER_TOKENS = 1024


@dataclass(frozen=True)
class Item:
    """One request. It generates exactly ``num_output_tokens``."""

    prompt_ids: tuple[int, ...]
    num_output_tokens: int
    arrival_s: float = 0.0
    """When it is sent, counted from the beginning."""
    buffer: str = ""
    """What is being typed into."""

    @property
    def num_tokens(self) -> int:
        """What it takes in the end, prompt and output."""
        return len(self.prompt_ids) + self.num_output_tokens


def serving_workload(settings: ServingSettings, vocabulary: Sequence[int]) -> list[Item]:
    """Requests in the order of their arrival, whose gaps are exponentially distributed.

    Each request of a buffer is the one before and ``num_typed_tokens`` more; a buffer that has become long is
    closed, and another one opened in its place.
    """
    rng = np.random.default_rng(settings.seed)
    ids = np.asarray(vocabulary)
    arrivals = np.cumsum(rng.exponential(1.0 / settings.rate_per_s, settings.num_requests))
    texts = [_draw(rng, ids, settings.num_prefix_tokens) for _ in range(settings.num_buffers)]
    least, most = settings.output_tokens
    items = []
    for arrival_s in arrivals:
        number = int(rng.integers(settings.num_buffers))
        if len(texts[number]) + settings.num_typed_tokens > _MAX_BUFFER_TOKENS:
            texts[number] = _draw(rng, ids, settings.num_prefix_tokens)
        texts[number] = texts[number] + _draw(rng, ids, settings.num_typed_tokens)
        items.append(Item(texts[number], int(rng.integers(least, most + 1)), float(arrival_s), f"buffer {number}"))
    return items


def offline_workload(settings: OfflineSettings, vocabulary: Sequence[int]) -> list[Item]:
    """Requests that are all there at once. As long as the vocabulary lasts, no two begin with the same token."""
    rng = np.random.default_rng(settings.seed)
    ids = np.asarray(vocabulary)
    prompt_counts = rng.integers(settings.prompt_tokens[0], settings.prompt_tokens[1] + 1, settings.num_requests)
    output_counts = rng.integers(settings.output_tokens[0], settings.output_tokens[1] + 1, settings.num_requests)
    first_ids = np.resize(rng.permutation(ids), settings.num_requests)
    return [
        Item((int(first), *_draw(rng, ids, int(num_prompt) - 1)), int(num_output))
        for first, num_prompt, num_output in zip(first_ids, prompt_counts, output_counts, strict=True)
    ]


def warm_up_workload(cap: int, vocabulary: Sequence[int]) -> list[Item]:
    """A few small requests, so that what is built at first use is there, also for batches of this size."""
    rng = np.random.default_rng(cap)
    ids = np.asarray(vocabulary)
    return [Item(_draw(rng, ids, 48), 4) for _ in range(min(cap, 32))]


def longest_first(items: Sequence[Item]) -> list[Item]:
    """Long requests at the end would run alone; those of like length also waste the least padding side by side."""
    return sorted(items, key=lambda item: item.num_tokens, reverse=True)


def decode_rows(items: Sequence[Item], cap: int) -> list[int]:
    """Rows of each step until all have their output, when ``cap`` run together and the next begins as one ends.

    The first token of a request comes with its prompt and takes no step.
    """
    ends = [0] * min(cap, len(items))
    changes: Counter[int] = Counter()
    for item in items:
        begin = ends[0]
        heapq.heapreplace(ends, begin + item.num_output_tokens - 1)
        changes[begin] += 1
        changes[begin + item.num_output_tokens - 1] -= 1
    return list(accumulate(changes[step] for step in range(max(ends, default=0))))


def _draw(rng: np.random.Generator, ids: npt.NDArray[np.int64], count: int) -> tuple[int, ...]:
    return tuple(int(i) for i in rng.choice(ids, count))
