"""Workloads: the same seed gives the same requests, and they are what is promised."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine.bench.settings import OfflineSettings, ServingSettings
from engine.bench.workloads import (
    Item,
    decode_rows,
    longest_first,
    offline_workload,
    serving_workload,
    warm_up_workload,
)

_VOCABULARY = range(3, 256)


def _lengths(*pairs: tuple[int, int]) -> list[Item]:
    return [Item((0,) * num_prompt, num_output) for num_prompt, num_output in pairs]


def test_serving_is_reproducible_and_another_seed_is_another_workload() -> None:
    settings = ServingSettings()
    assert serving_workload(settings, _VOCABULARY) == serving_workload(settings, _VOCABULARY)
    assert serving_workload(settings, _VOCABULARY) != serving_workload(replace(settings, seed=1), _VOCABULARY)


def test_serving_has_the_published_counts() -> None:
    items = serving_workload(ServingSettings(), _VOCABULARY)
    assert len(items) == 24
    assert {item.buffer for item in items} == {f"buffer {i}" for i in range(4)}
    assert all(6 <= item.num_output_tokens <= 20 for item in items)
    assert all(token in _VOCABULARY for item in items for token in item.prompt_ids)
    arrivals = [item.arrival_s for item in items]
    assert arrivals == sorted(arrivals) and arrivals[0] > 0


def test_arrivals_are_a_poisson_process() -> None:
    items = serving_workload(ServingSettings(num_requests=4000, rate_per_s=20.0), _VOCABULARY)
    gaps = np.diff([item.arrival_s for item in items])
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.1)


@pytest.mark.parametrize("num_typed", [1, 48])
def test_each_request_of_a_buffer_is_the_one_before_and_what_was_typed(num_typed: int) -> None:
    by_buffer = defaultdict(list)
    for item in serving_workload(ServingSettings(num_typed_tokens=num_typed), _VOCABULARY):
        by_buffer[item.buffer].append(item.prompt_ids)
    assert {len(prompts[0]) for prompts in by_buffer.values()} == {160 + num_typed}
    for prompts in by_buffer.values():
        assert len(prompts) > 1
        for earlier, later in pairwise(prompts):
            assert len(later) == len(earlier) + num_typed
            assert later[: len(earlier)] == earlier


def test_buffers_do_not_grow_without_end() -> None:
    items = serving_workload(ServingSettings(num_requests=400), _VOCABULARY)
    assert max(len(item.prompt_ids) for item in items) <= 1024
    assert sum(len(item.prompt_ids) == 160 + 48 for item in items) > 4


def test_offline_is_the_trace_of_the_baselines() -> None:
    items = offline_workload(OfflineSettings(), _VOCABULARY)
    assert len(items) == 32
    assert sum(len(item.prompt_ids) for item in items) == 10_572
    assert sum(item.num_output_tokens for item in items) == 2_033
    assert all(128 <= len(item.prompt_ids) <= 512 and 32 <= item.num_output_tokens <= 96 for item in items)
    assert {item.arrival_s for item in items} == {0.0}
    assert items == offline_workload(OfflineSettings(), _VOCABULARY)


def test_offline_prompts_share_no_beginning() -> None:
    items = offline_workload(OfflineSettings(), _VOCABULARY)
    assert len({item.prompt_ids[0] for item in items}) == 32


def test_more_requests_than_first_tokens_are_distinct_all_the_same() -> None:
    items = offline_workload(OfflineSettings(num_requests=600), _VOCABULARY)
    assert len({item.prompt_ids for item in items}) == 600


def test_longest_first_keeps_all() -> None:
    items = offline_workload(OfflineSettings(), _VOCABULARY)
    ordered = longest_first(items)
    sizes = [item.num_tokens for item in ordered]
    assert sizes == sorted(sizes, reverse=True)
    assert set(ordered) == set(items) and len(ordered) == len(items)


@pytest.mark.parametrize(
    ("cap", "rows"),
    [(1, [1] * 15), (2, [2] * 4 + [1] * 7), (4, [3, 3, 2, 2, 1, 1, 1, 1, 1]), (64, [3, 3, 2, 2, 1, 1, 1, 1, 1])],
)
def test_rows_of_decode_steps(cap: int, rows: list[int]) -> None:
    # the first token comes with the prompt; with two places: 4 | 0, 2, then 9 beside the end of the first
    assert decode_rows(_lengths((8, 5), (8, 1), (8, 3), (8, 10)), cap) == rows


def test_nothing_takes_no_steps() -> None:
    assert decode_rows([], 4) == []


def test_the_warm_up_fills_the_batch() -> None:
    assert [len(warm_up_workload(cap, _VOCABULARY)) for cap in (1, 4, 64)] == [1, 4, 32]
