"""Mistakes that engines have made, one test each, on a real if tiny model. Those that need no model are tested with
the cache and the scheduler.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import LaneLimits, Profile
from engine.engine import Engine
from engine.loop import Job
from engine.model.decoder import ForwardPass
from engine.model.linear import Linear, can_prepack
from engine.request import CompletionRequest, Delta, FinishReason, Lane, SamplingParams
from engine.speculation.sources import EarlierAnswer
from tests.support.kv import Rig, poison_freed_blocks, small_engine
from tests.support.tiny_checkpoints import write_tiny_gguf

_PROFILE = Profile(LaneLimits(4, 16), LaneLimits(4, 32), bulk_share=0.2, max_drafts=7)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    loaded = small_engine(tmp_path, monkeypatch, num_blocks=34).with_profile(_PROFILE)
    loaded.cache.clear()
    poison_freed_blocks(loaded.cache, loaded.loop._storage)
    return loaded


@dataclass
class _Asked:
    job: Job
    deltas: list[Delta] = field(default_factory=list)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reason(self) -> FinishReason | None:
        return self.deltas[-1].finished.reason if self.deltas and self.deltas[-1].finished else None


def _request(token_ids: list[int], lane: Lane = Lane.INTERACTIVE, **sampling: object) -> CompletionRequest:
    wanted = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return CompletionRequest("", prompt_ids=tuple(token_ids), sampling=wanted, lane=lane)


def _submit(engine: Engine, request: CompletionRequest, drafts: list[int] | None = None) -> _Asked:
    deltas: list[Delta] = []
    job = engine.prepare(request, deltas.append, _raise)
    job.sources = () if drafts is None else (EarlierAnswer(len(request.prompt_ids), drafts),)
    engine.loop.submit(job)
    return _Asked(job, deltas)


def _raise(error: Exception) -> None:
    raise error


def _finish(engine: Engine) -> None:
    for _ in range(2000):
        if not engine.loop.has_work:
            engine.loop.check_idle()
            return
        engine.loop.step()
        engine.loop.scheduler.check_integrity()
    pytest.fail("the loop makes no progress")


def _plain(engine: Engine, request: CompletionRequest) -> tuple[int, ...]:
    """The tokens without anything cached or drafted."""
    engine.cache.clear()
    asked = _submit(engine, request)
    _finish(engine)
    engine.cache.clear()
    return asked.token_ids


@pytest.fixture
def between_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[int], None]]]:
    """Functions in this list are called after each layer with the number of layers computed so far."""
    hooks: list[Callable[[int], None]] = []
    advance, num_layers = ForwardPass.advance, 0

    def watched(forward: ForwardPass) -> None:
        nonlocal num_layers
        advance(forward)
        num_layers += 1
        for hook in hooks:
            hook(num_layers)

    monkeypatch.setattr(ForwardPass, "advance", watched)
    yield hooks


def test_4_a_verification_that_is_cancelled_leaves_nothing_that_is_read_later(
    engine: Engine, between_layers: list[Callable[[int], None]]
) -> None:
    request = _request(list(range(30, 51)))
    expected = _plain(engine, request)
    drafts = [*expected[:3], 7, 7, 7, 7]
    for stop_at in range(1, 12):
        first = _submit(engine, request, drafts)
        seen = 0

        def cancel(_: int, first: _Asked = first, stop_at: int = stop_at) -> None:
            nonlocal seen
            seen += 1
            if seen == stop_at:
                engine.loop.cancel(first.job)

        between_layers[:] = [cancel]
        _finish(engine)
        between_layers.clear()
        again = _submit(engine, request)
        longer = _submit(engine, _request([*request.prompt_ids, *expected[:4], 9]))
        _finish(engine)
        assert again.token_ids == expected
        assert longer.token_ids == _plain(engine, _request([*request.prompt_ids, *expected[:4], 9]))


def test_9_cached_and_uncached_agree_to_rounding_whatever_the_chunks(tmp_path: Path) -> None:
    """Products over other numbers of rows may round differently; nothing else may."""
    rig = Rig(write_tiny_gguf(tmp_path / "tiny.gguf", seed=3))
    token_ids = list(range(40, 80))
    whole = rig.logits(rig.start((rig.table(token_ids, 64), token_ids, 0)))
    for sizes in ([39, 1], [1] * 40, [17, 16, 7]):
        table, done, parts = rig.table(token_ids, 64), 0, []
        for size in sizes:
            parts.append(rig.logits(rig.start((table, token_ids[done : done + size], done))))
            done += size
        assert (torch.cat(parts) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_10_rows_do_not_influence_each_other(dtype: torch.dtype) -> None:
    """A scale that is shared by all rows would let a neighbour's outlier coarsen this row."""
    if dtype is torch.bfloat16 and not can_prepack():
        pytest.skip("no bfloat16 products on this CPU")
    generator = torch.Generator().manual_seed(1)
    linear = Linear(torch.randn(64, 96, generator=generator).to(dtype))
    rows = torch.randn(8, 96, generator=generator).to(dtype)
    wild = rows.clone()
    wild[1:] *= 1e6
    assert torch.equal(linear(rows)[0], linear(wild)[0])


def test_10_a_sequence_is_the_same_beside_any_other(tmp_path: Path) -> None:
    rig = Rig(write_tiny_gguf(tmp_path / "tiny.gguf", seed=3))
    ours, others = list(range(20)), [list(range(100, 133)), list(range(60, 63))]
    alone = rig.logits(rig.start((rig.table(ours, 20), ours, 0)))
    forward = rig.start(*((rig.table(ids, 40), ids, 0) for ids in [ours, *others]))
    together = rig.logits(forward)
    spans = [len(span.token_ids) for span in forward.batch.spans]
    start = sum(spans[: spans.index(20)])
    assert (together[start : start + 20] - alone).abs().max() < 1e-5


def test_13_drafts_and_the_token_behind_them_satisfy_the_constraint(engine: Engine) -> None:
    """Whatever is drafted, what is generated begins with what the text before the cursor requires."""
    request = CompletionRequest("x = fo", "\n", SamplingParams(max_tokens=8, ignore_eos=True))
    (plain,) = engine.complete_all([request])
    vocabulary = engine._vocabulary
    first = vocabulary.tokenizer.all_bytes[plain.token_ids[0]]
    allowed = vocabulary.by_bytes.allowed(first[:1])
    forbidden = next(i for i in range(200) if i not in set(np.asarray(allowed).tolist()))
    for drafts in ([forbidden] * 5, [plain.token_ids[0], *[forbidden] * 4], list(plain.token_ids)):
        deltas: list[Delta] = []
        job = engine.prepare(request, deltas.append, _raise)
        job.sources = (EarlierAnswer(job.sequence.num_prompt_tokens, drafts),)
        engine.loop.submit(job)
        _finish(engine)
        assert tuple(token for delta in deltas for token in delta.token_ids) == plain.token_ids
        assert "".join(delta.text for delta in deltas) == plain.text


def test_13_sampling_with_drafts_draws_the_same_tokens(engine: Engine) -> None:
    for seed in range(10):
        request = _request([1, 2, 3], temperature=1.2, top_p=0.9, seed=seed)
        expected = _plain(engine, request)
        for drafts in (list(expected), [*expected[:5], 0, 0, 0], [0] * 8):
            asked = _submit(engine, request, drafts)
            _finish(engine)
            assert asked.token_ids == expected


def test_16_a_stop_string_across_accepted_drafts_cuts_there_and_publishes_nothing_behind_it(engine: Engine) -> None:
    request = _request(list(range(60, 80)))
    whole = _submit(engine, request)
    _finish(engine)
    for start in range(2, 8):
        stop = whole.text[start : start + 3]
        cut = whole.text.index(stop)
        stopped = replace(request, sampling=replace(request.sampling, stop=(stop,)))
        engine.cache.clear()
        asked = _submit(engine, stopped, list(whole.token_ids))
        _finish(engine)
        assert asked.text == whole.text[:cut]
        assert (asked.reason, asked.deltas[-1].finished and asked.deltas[-1].finished.stop_string) == (
            FinishReason.STOP,
            stop,
        )
        sequence = [*request.prompt_ids, *whole.token_ids]
        match = engine.cache.index.match(engine.cache.namespace, sequence)
        num_published = len(match.nodes) * 4 + match.num_tail_tokens
        assert num_published <= len(request.prompt_ids) + len(asked.token_ids)


def test_17_bulk_that_holds_the_memory_makes_way_for_who_waits(engine: Engine) -> None:
    """An interactive request that does not fit beside bulk work waits for what runs, not for all that is queued."""
    bulk = [_submit(engine, _request([100 + i] * 40, Lane.BULK, max_tokens=20)) for i in range(8)]
    engine.loop.step()
    typed = _submit(engine, _request([5] * 70, max_tokens=4))
    for _ in range(2000):
        engine.loop.step()
        if typed.reason is not None:
            break
    assert typed.reason is FinishReason.LENGTH
    assert sum(asked.reason is None for asked in bulk) >= 4
    _finish(engine)
    assert all(asked.reason is FinishReason.LENGTH for asked in bulk)


def test_17_bulk_advances_while_somebody_types_without_end(engine: Engine) -> None:
    bulk = _submit(engine, _request([100] * 40, Lane.BULK))
    typed = _submit(engine, _request([5], max_tokens=6))
    for number in range(2000):
        if typed.reason is not None:
            typed = _submit(engine, _request([number % 50, 7], max_tokens=6))
        engine.loop.step()
        if bulk.reason is not None:
            break
    assert bulk.reason is FinishReason.LENGTH


def test_18_a_paused_pass_keeps_its_blocks_whatever_is_evicted_meanwhile(
    engine: Engine, between_layers: list[Callable[[int], None]]
) -> None:
    request = _request(list(range(30, 60)), Lane.BULK)
    expected = _plain(engine, request)
    bulk = _submit(engine, request)
    typed: list[_Asked] = []

    def disturb(num_layers: int) -> None:
        if num_layers % 2 and len(typed) < 6:
            typed.append(_submit(engine, _request([len(typed)] * 40, max_tokens=2)))
            engine.cache.clear()

    between_layers.append(disturb)
    _finish(engine)
    assert bulk.token_ids == expected
    assert len(typed) == 6 and all(asked.reason is FinishReason.LENGTH for asked in typed)


def test_19_an_answer_of_a_superseded_request_never_comes_after_its_successor_was_sent(
    engine: Engine, between_layers: list[Callable[[int], None]]
) -> None:
    older = _submit(engine, replace(_request([1, 2, 3]), session="buffer"))
    newer: list[_Asked] = []
    num_seen = -1

    def type_on(num_layers: int) -> None:
        nonlocal num_seen
        if num_layers == 5:
            newer.append(_submit(engine, replace(_request([1, 2, 3, 4]), session="buffer")))
        elif num_layers > 5 and num_seen < 0:
            num_seen = len(older.deltas)

    between_layers.append(type_on)
    _finish(engine)
    assert older.reason is FinishReason.SUPERSEDED
    assert len(older.deltas) == num_seen
    assert newer[0].reason is FinishReason.LENGTH
    assert newer[0].token_ids == _plain(engine, _request([1, 2, 3, 4]))


def test_20_tokens_at_another_position_are_no_hit(engine: Engine) -> None:
    """Keys carry their position; moving them would only be an approximation."""
    _plain(engine, _request(list(range(30, 60))))
    first = _submit(engine, _request(list(range(30, 60))))
    _finish(engine)
    shifted = _submit(engine, _request([9, *range(30, 60)]))
    _finish(engine)
    assert first.reason is shifted.reason is FinishReason.LENGTH
    assert shifted.deltas[-1].usage.cached_tokens == 0
