"""Sampling: greedy, seeds, and the distributions that top-k and top-p leave."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.model.best import best_of
from engine.request import SamplingParams
from engine.sampling import Likeliest, Sampler, Scores

_LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.3, 0.2]))


def _draw(params: SamplingParams, num: int, allowed: list[int] | None = None) -> list[int]:
    sampler = Sampler(params)
    ids = None if allowed is None else np.array(allowed)
    scores = Scores(torch.stack((_LOGITS.flip(0), _LOGITS)))
    return [sampler.choose(scores, 1, position, ids) for position in range(num)]


def test_greedy_takes_the_largest_of_the_allowed() -> None:
    assert _draw(SamplingParams(), 1) == [1]
    assert _draw(SamplingParams(), 1, allowed=[3, 0, 2]) == [2]


def test_a_seed_repeats_and_another_differs() -> None:
    runs = [_draw(SamplingParams(temperature=1.0, seed=seed), 40) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(temperature=1.0, seed=0), [0.1, 0.4, 0.3, 0.2]),
        (SamplingParams(temperature=1.0, seed=0, top_k=2), [0, 4 / 7, 3 / 7, 0]),
        (SamplingParams(temperature=1.0, seed=0, top_p=0.6), [0, 4 / 7, 3 / 7, 0]),
        (SamplingParams(temperature=1.0, seed=0, top_p=0.01), [0, 1, 0, 0]),
        (SamplingParams(temperature=1.0, seed=0, min_p=0.6), [0, 4 / 7, 3 / 7, 0]),
        (SamplingParams(temperature=1.0, seed=0, min_p=1.0), [0, 1, 0, 0]),
        (SamplingParams(temperature=0.5, seed=0), [1 / 30, 16 / 30, 9 / 30, 4 / 30]),
    ],
)
def test_the_drawn_distribution(params: SamplingParams, expected: list[float]) -> None:
    num = 4000
    counts = np.bincount(_draw(params, num), minlength=4) / num
    # four standard errors of the widest share
    assert np.abs(counts - expected).max() < 4 * (0.25 / num) ** 0.5


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    sampler, other = (Sampler(SamplingParams(temperature=1.0, seed=9)) for _ in range(2))
    scores = Scores(_LOGITS.repeat(3, 1))
    forwards = [sampler.choose(scores, 0, position, None) for position in range(50)]
    backwards = [other.choose(scores, 2, position, None) for position in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 1


def test_log_probabilities_are_those_of_the_whole_distribution() -> None:
    scores = Scores(torch.stack((_LOGITS * 3 + 5, _LOGITS)))
    assert [round(float(np.exp(scores.logprob(1, token, None))), 5) for token in range(4)] == [0.1, 0.4, 0.3, 0.2]


def test_log_probabilities_among_the_allowed_are_those_of_the_allowed_alone() -> None:
    """So they are the same whether or not the others were computed."""
    allowed = np.array([3, 0, 2])
    rest = torch.tensor([[0.0, -torch.inf, 0.0, 0.0]])
    for scores in (Scores(torch.stack((_LOGITS * 3, _LOGITS + 7))), Scores(torch.cat((rest * 0, _LOGITS + rest)))):
        probabilities = [float(np.exp(scores.logprob(1, token, allowed))) for token in allowed.tolist()]
        assert np.allclose(probabilities, [1 / 3, 1 / 6, 1 / 2])


def test_of_a_kept_row_all_is_known_as_from_all_logits() -> None:
    logits = torch.stack((_LOGITS * 3 + 5, _LOGITS))
    scores, leading = Scores(logits), Likeliest(replace(best_of(logits), logits={1: logits[1]}))
    assert [leading.best(row) for row in range(2)] == [scores.best(row) for row in range(2)]
    assert leading.logprob(0, 1, None) == pytest.approx(scores.logprob(0, 1, None))
    for token in range(4):
        assert leading.logprob(1, token, None) == pytest.approx(scores.logprob(1, token, None))
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3))
    drawn = [[sampler.choose(each, 1, position, None) for position in range(40)] for each in (leading, scores)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("lead", "min_p"), [(30.0, 0.0), (14.0, 0.05)])
def test_sampling_sorts_only_what_may_be_likely(lead: float, min_p: float) -> None:
    """Of 150,000 tokens: all are wanted only where the line ends far behind the likely ones."""
    logits = torch.randn(150_000, generator=torch.Generator().manual_seed(1)) * 2
    logits[:5] = lead
    sampler, sizes = Sampler(SamplingParams(temperature=0.8, min_p=min_p, seed=5)), []
    argsort = np.argsort

    def counting(values: np.ndarray, **options: str) -> np.ndarray:
        sizes.append(len(values))
        return argsort(values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.sampling.np.argsort", counting)
        drawn = {sampler.choose(Scores(logits[None]), 0, position, None) for position in range(20)}
    assert drawn <= set(range(5))
    assert max(sizes) == 5


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.integers(0, 2**32),
    st.integers(1, 400),
    st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    st.sampled_from([0.2, 0.6, 1.0, 3.0]),
    st.sampled_from([0, 1, 7, 200, 1000]),
    st.sampled_from([0.01, 0.5, 0.95, 0.999999, 1.0]),
    st.sampled_from([0.0, 1e-7, 0.05, 1.0]),
)
def test_what_is_drawn_is_what_sorting_all_tokens_would_draw(
    seed: int, num_tokens: int, spread: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Rounded scores, so that many are equal."""
    random = np.random.default_rng(seed)
    logits = torch.from_numpy((random.normal(size=num_tokens) * spread).round(1).astype(np.float32))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    sampler, scores = Sampler(params), Scores(logits[None])
    drawn = [sampler.choose(scores, 0, position, None) for position in range(8)]
    assert drawn == [_slow_draw(logits, params, position) for position in range(8)]


def _slow_draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """As defined, over all tokens in order."""
    assert params.seed is not None
    scaled = (logits - logits.max()) / params.temperature
    order = sorted(range(len(logits)), key=lambda token: (-float(scaled[token]), token))
    order = order[: params.top_k or None]
    weights = np.exp(scaled.double().numpy()[order])
    before = np.cumsum(weights) - weights
    is_kept = (weights >= params.min_p) & ((before < params.top_p * weights.sum()) | (params.top_p == 1.0))
    is_kept[0] = True
    bounds = np.cumsum(np.where(is_kept, weights, 0.0))
    uniform = np.random.Generator(np.random.Philox(key=params.seed, counter=position)).random()
    index = int(np.searchsorted(bounds, uniform * bounds[-1], side="right"))
    return order[min(index, int(is_kept.sum()) - 1)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_k", -1),
        ("min_p", 1.5),
        ("max_tokens", -1),
        ("stop", ("",)),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{field} is .* it must be"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
