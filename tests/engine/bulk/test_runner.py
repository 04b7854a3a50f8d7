"""Items to results in this process, on tiny models of both kinds: the answers are those of requests alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engine.bulk.runner import Inbox, Runner
from engine.bulk.wire import Item, Progress, Result, Summary
from engine.config import PROFILES, LaneLimits
from engine.engine import Engine
from engine.errors import ServiceError
from engine.request import CompletionRequest, FileContext, FinishReason, SamplingParams
from tests.support.kv import small_engine, small_native_engine

_TEXTS = (
    "def add(a, b):\n    return ",
    "def add(a, b):\n    re",
    "import os\nimport sys\n\n",
    "for i in range(10):\n    print(i)\n    if i == 3:\n        ",
    "x",
    "",
)


def _request(prefix: str, suffix: str | None = "\n", **sampling: object) -> CompletionRequest:
    params = {"max_tokens": 6, "ignore_eos": True, **sampling}
    return CompletionRequest(prefix, suffix, SamplingParams(**params))  # type: ignore[arg-type]


_REQUESTS = [
    *(_request(text) for text in _TEXTS),
    *(_request(text, temperature=1.5, seed=seed) for text in _TEXTS for seed in (1, 2)),
    _request("with open(path) as file:\n", None, max_tokens=20),
    _request("class P:\n", max_tokens=1),
    CompletionRequest("a = ", "\n", SamplingParams(max_tokens=3), extra=(FileContext("b.py", "b = 2\n"),)),
    CompletionRequest("", prompt_ids=(5, 6, 7, 8), sampling=SamplingParams(max_tokens=4, ignore_eos=True)),
    _request("import", max_tokens=0),
]


@pytest.fixture(params=["torch", "native"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "torch":
        return small_engine(tmp_path, monkeypatch, num_blocks=400)
    request.getfixturevalue("native_library")
    return small_native_engine(tmp_path, monkeypatch, num_blocks=100, precision="int8")


@dataclass
class _Run:
    """What a run has said."""

    results: dict[int, Result] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)

    def take(self, message: Result | Progress) -> None:
        if isinstance(message, Progress):
            self.progress.append(message)
            return
        assert message.id not in self.results
        self.results[message.id] = message


def _run(
    engine: Engine, items: Sequence[Item | Exception], limits: LaneLimits, *, is_sorted: bool = True
) -> tuple[_Run, Summary]:
    limits = replace(limits, prompts_first=True)
    engine = engine.with_profile(replace(PROFILES["batch"], bulk=limits))
    engine.cache.clear()
    inbox: Inbox = Inbox()
    for item in items:
        inbox.put(item)
    inbox.put(None)
    run = _Run()
    runner = Runner(engine, limits, inbox, run.take, is_sorted=is_sorted)
    runner.run()
    engine.loop.check_idle()
    return run, runner.counts.summary(None)


def _items(requests: Sequence[CompletionRequest]) -> list[Item]:
    return [Item(index, request) for index, request in enumerate(requests)]


def _alone(engine: Engine, requests: Sequence[CompletionRequest]) -> list[tuple[str, str, int]]:
    answers = []
    for request in requests:
        engine.cache.clear()
        (answer,) = engine.complete_all([request])
        answers.append((answer.text, answer.finished.reason.value, answer.finished.usage.generated_tokens))
    return answers


def test_answers_do_not_depend_on_batch_and_order(engine: Engine) -> None:
    expected = _alone(engine, _REQUESTS)
    for seed, (batch, rows) in enumerate([(1, 8), (3, 7), (8, 64), (64, 512)]):
        items = _items(_REQUESTS)
        random.Random(seed).shuffle(items)
        run, summary = _run(engine, items, LaneLimits(batch, max(rows, 2 * batch)), is_sorted=seed != 2)
        found = [run.results[index] for index in range(len(_REQUESTS))]
        assert [result.error for result in found] == [""] * len(found)
        assert [(result.text, result.reason, result.usage.generated_tokens) for result in found] == expected
        assert summary.max_running <= batch
        assert summary.progress.num_done == len(items)
        assert summary.progress.num_preemptions == 0


def test_log_probabilities_do_not_depend_on_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native_library: object
) -> None:
    """To the last bit: what is computed of a row is the same beside any others."""
    engine = small_native_engine(tmp_path, monkeypatch, num_blocks=100, precision="int8")
    runs = [_run(engine, _items(_REQUESTS), LaneLimits(batch, 128))[0].results for batch in (1, 16)]
    assert [r.mean_logprob for _, r in sorted(runs[0].items())] == [r.mean_logprob for _, r in sorted(runs[1].items())]
    assert any(result.mean_logprob for result in runs[0].values())


def _with_header(count: int) -> list[CompletionRequest]:
    """Prompts of 64 tokens, which are whole blocks, whose first 50 are the same; and as many that share nothing."""
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    shared = [(*[9] * 50, 10 + i, *range(100, 113)) for i in range(count)]
    single = [(200 + i, *[11] * 39) for i in range(count)]
    return [CompletionRequest("", prompt_ids=ids, sampling=sampling) for ids in (*shared, *single)]


@pytest.mark.parametrize("rows", [16, 40, 55, 512])
def test_shared_starts_are_computed_once(engine: Engine, rows: int) -> None:
    items = _items(_with_header(8))
    random.Random(3).shuffle(items)
    run, summary = _run(engine, items, LaneLimits(4, rows))
    assert sum(run.results[index].usage.cached_tokens for index in range(8)) == 7 * 50
    assert summary.progress.num_computed_tokens == 50 + 8 * 14 + 8 * 40
    assert summary.progress.num_cached_tokens == 7 * 50


def test_unsorted_they_are_computed_side_by_side(engine: Engine) -> None:
    _, summary = _run(engine, _items(_with_header(8)), LaneLimits(4, 512), is_sorted=False)
    assert summary.progress.num_computed_tokens >= 50 + 8 * 14 + 8 * 40 + 3 * 48


def test_memory_limits_what_runs_and_nothing_is_preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine(tmp_path, monkeypatch, num_blocks=60)  # of 4 tokens
    requests = [replace(request, sampling=SamplingParams(max_tokens=20)) for request in _with_header(6)]
    run, summary = _run(engine, _items(requests), LaneLimits(64, 512))
    assert all(not result.error and result.text is not None for result in run.results.values())
    assert len(run.results) == len(requests)
    assert 0.5 < summary.max_kv_used_share <= 1.0
    assert summary.progress.num_preemptions == 0


def test_a_preemption_would_be_seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    step = engine.loop.step

    def taking_away() -> None:
        step()
        for sequence in loop.scheduler.sequences:
            if sequence.table is not None and len(sequence.token_ids) == sequence.num_prompt_tokens + 2:
                loop.scheduler._give_back(sequence)

    limits = LaneLimits(4, 64)
    engine = engine.with_profile(replace(PROFILES["batch"], bulk=limits, max_drafts=0))
    loop = engine.loop
    step = loop.step
    monkeypatch.setattr(loop, "step", taking_away)
    inbox: Inbox = Inbox()
    inbox.put(Item(0, _request("x = ")))
    inbox.put(None)
    run = _Run()
    runner = Runner(engine, limits, inbox, run.take)
    runner.run()
    assert runner.counts.num_preemptions > 0


def test_one_unusable_request_ends_none_of_the_others(engine: Engine) -> None:
    items = [
        Item(0, CompletionRequest("", prompt_ids=(10**6,))),
        Item(1, _request("def f():\n")),
        Item(2, _request("x", max_tokens=10**6)),
        Item(3, _request("\ud800", "\udfff")),
    ]
    run, summary = _run(engine, items, LaneLimits(4, 64))
    assert run.results[0].error == "token id 1000000 is outside the vocabulary of 362"
    assert run.results[1].error == "" and run.results[1].reason == FinishReason.LENGTH.value
    assert "leaves no room for a prompt" in run.results[2].error
    assert 3 in run.results
    assert summary.progress.num_done == 4


def test_a_pass_that_breaks_ends_its_requests_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = engine.loop._decoder
    best, calls = decoder.best, []

    def failing(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("secret text")
        return best(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "best", failing)
    run, _ = _run(engine, _items([_request(text) for text in _TEXTS]), LaneLimits(1, 64))
    errors = [result.error for result in run.results.values() if result.error]
    assert errors == ["the engine failed: MemoryError"]
    assert len(run.results) == len(_TEXTS)


def test_two_items_of_one_id_and_what_is_no_item_end_the_run(engine: Engine) -> None:
    with pytest.raises(ServiceError, match="two items with the id 7"):
        _run(engine, [Item(7, _request("x")), Item(7, _request("y"))], LaneLimits(4, 64))
    with pytest.raises(ServiceError, match="the wire broke"):
        _run(engine, [ServiceError("the wire broke")], LaneLimits(4, 64))


def test_progress_counts_what_has_come_so_far(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bulk.runner._PROGRESS_S", 0.0)
    run, summary = _run(engine, _items(_REQUESTS), LaneLimits(4, 64))
    done = [progress.num_done for progress in run.progress]
    assert done == sorted(done) and done[-1] == len(_REQUESTS)
    first, last = run.progress[0], summary.progress
    assert first.num_running and first.num_waiting + first.num_running + first.num_done == len(_REQUESTS)
    assert 0.0 < first.kv_used_share < 1.0 and last.kv_used_share == 0.0
    assert last.num_generated_tokens == sum(result.usage.generated_tokens for result in run.results.values())
    assert last.num_computed_tokens + last.num_cached_tokens == sum(
        result.usage.prompt_tokens for result in run.results.values()
    )
    assert last.peak_memory_bytes > 10**7
    assert 0 < summary.decode_tokens < last.num_generated_tokens
    assert 0 < summary.decode_seconds < last.seconds
    assert summary.num_operations > 0
