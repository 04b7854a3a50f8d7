"""Sampling: greedy, seeds, and the distributions that top-k and top-p leave."""

import numpy as np
import pytest
import torch

from engine.errors import RequestError
from engine.request import SamplingParams
from engine.sampling import Sampler, Scores

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
