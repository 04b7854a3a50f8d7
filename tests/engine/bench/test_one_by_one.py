"""The stand-in that takes one request after the other, and how many tokens prompts have in common."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import engine
from engine.bench.one_by_one import num_distinct
from engine.bulk.wire import Item, Ready, Result, Start, Summary, decode, encode
from engine.config import EngineConfig
from engine.request import CompletionRequest, FileContext, Lane, SamplingParams
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([], 0),
        ([[1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2], [1, 2, 4, 5], [2]], 6),
        ([[5, 1], [1, 5], [5, 1, 1], [256, 1], [256]], 7),
    ],
)
def test_tokens_of_the_trie(prompts: list[list[int]], expected: int) -> None:
    assert num_distinct(prompts) == expected
    assert num_distinct(prompts) == len({tuple(ids[:end]) for ids in prompts for end in range(1, len(ids) + 1)})


def _run(command: list[str], told: bytes) -> list[object]:
    done = subprocess.run(
        command, input=told, capture_output=True, cwd=Path(engine.__file__).parents[1], timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [decode(line) for line in done.stdout.splitlines()]


def test_it_answers_as_the_bulk_engine_does(tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1), seed=1))
    start = Start(EngineConfig(model=model, kernels="torch", max_context_tokens=512, kv_cache_mb=8), max_batch=4)
    extra = (FileContext("a.py", "import os\n" * 5),)
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    items = [
        Item(number, CompletionRequest(f"x{number} = ", "\n", sampling, extra, lane=Lane.BULK)) for number in range(5)
    ]
    told = encode(start) + b"".join(map(encode, items))
    facts_file = tmp_path / "facts.json"
    ready, *alone, summary = _run([sys.executable, "-m", "engine.bench.one_by_one", str(facts_file)], told)
    together = _run([sys.executable, "-m", "engine.bulk"], told)
    assert isinstance(ready, Ready) and isinstance(summary, Summary)
    results = [message for message in alone if isinstance(message, Result)]
    assert [result.id for result in results] == list(range(5)) and len(alone) == 5  # one after the other
    others = {message.id: message for message in together if isinstance(message, Result)}
    assert [(result.text, result.reason) for result in results] == [
        (others[result.id].text, others[result.id].reason) for result in results
    ]
    facts, progress = json.loads(facts_file.read_text()), summary.progress
    assert (progress.num_done, progress.num_generated_tokens, summary.max_running) == (5, 30, 1)
    assert facts["num_prompt_tokens"] == progress.num_computed_tokens + progress.num_cached_tokens
    assert facts["num_distinct_tokens"] <= progress.num_computed_tokens < facts["num_prompt_tokens"]
    assert 0 < summary.decode_tokens <= 25 and summary.decode_seconds > 0
    assert facts["num_parameters"] > 0 and facts["machine"]["num_threads"] >= 1
