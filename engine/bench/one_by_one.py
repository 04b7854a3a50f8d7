"""Stands in for ``engine.bulk`` in measurements: one request after the other, as somebody who waits would ask.

Speaks ``engine.bulk.wire`` like it, so that the same pipeline runs above both. The engine computes under the profile
``completion``, drafts included: what a loop over single completions gives with a warm engine. Imports torch.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path

from engine.bench.roofline import measure_product
from engine.bench.subject import machine_facts
from engine.bulk.counts import Counts
from engine.bulk.wire import Item, Ready, Result, Start, decode, encode
from engine.engine import Engine
from engine.fim import Prompt
from engine.request import Delta, Lane


@dataclass(frozen=True)
class Facts:
    """What the wire does not say of a run, left in a file."""

    machine: dict[str, str | int]
    num_parameters: int
    device: str
    kernels: str
    num_prompt_tokens: int
    """Of all prompts, each as often as it was asked."""
    num_distinct_tokens: int
    """The same without what two have in common at their start: so many must be computed at least."""


def main(facts_file: str) -> None:
    """Answer what comes on stdin until it ends, and leave ``Facts`` as JSON in a file."""
    own = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    start = decode(sys.stdin.buffer.readline())
    assert isinstance(start, Start)
    engine = Engine.load(replace(start.engine, profile="completion"))
    info = engine.info
    own.write(
        encode(Ready(info.model, info.dtype, info.fim_family, info.context_tokens, info.memory_bytes, 1, info.load_s))
    )
    counts, prompts = Counts(engine), list[list[int]]()
    for line in sys.stdin.buffer:
        item = decode(line)
        prompt = engine.prompt(item.request)
        prompts.append(prompt.ids)
        own.write(encode(_complete(engine, counts, item, prompt)))
    facts = Facts(
        machine=machine_facts(),
        num_parameters=info.num_parameters,
        device=info.device,
        kernels=info.kernels,
        num_prompt_tokens=sum(map(len, prompts)),
        num_distinct_tokens=num_distinct(prompts),
    )
    Path(facts_file).write_text(json.dumps(asdict(facts)), encoding="utf-8")
    own.write(encode(counts.summary(measure_product()[1] * 1e12 if info.device == "cpu" else None)))


def _complete(engine: Engine, counts: Counts, item: Item, prompt: Prompt) -> Result:
    deltas, errors = list[Delta](), list[Exception]()

    def on_delta(delta: Delta) -> None:
        deltas.append(delta)
        counts.num_generated_tokens += len(delta.token_ids)

    request = replace(item.request, lane=Lane.INTERACTIVE)
    job = engine.prepare(request, on_delta, errors.append, prompt=prompt)
    engine.loop.submit(job)
    counts.max_running = 1
    while engine.loop.has_work:
        is_decoding = len(job.sequence.token_ids) - job.sequence.num_computed == 1
        num_generated, started_s = counts.num_generated_tokens, time.perf_counter()
        engine.loop.step()
        if is_decoding:
            counts.on_decode(time.perf_counter() - started_s, counts.num_generated_tokens - num_generated)
    if errors:
        raise errors[0]
    counts.num_done += 1
    finished = deltas[-1].finished
    assert finished is not None
    text = "".join(delta.text for delta in deltas)
    return Result(item.id, text, finished.reason.value, finished.usage, finished.mean_logprob)


def num_distinct(prompts: Iterable[Sequence[int]]) -> int:
    """Tokens in the trie of prompts."""
    ordered = sorted(map(tuple, prompts))
    num_tokens = 0
    for before, ids in pairwise([(), *ordered]):
        num_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, ids, strict=False)))
        num_tokens += len(ids) - num_common
    return num_tokens


if __name__ == "__main__":
    main(sys.argv[1])
