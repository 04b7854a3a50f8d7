"""Choosing the next token from its logits."""

import secrets

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.model.best import Best, best_of
from engine.request import SamplingParams

_LEAST_SCORES = (-12.0, -20.0, -np.inf)
"""Divided by the temperature, below the largest. The first is nearly always enough: to sort 150,000 takes 10 ms."""

_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)


class Scores:
    """All logits of some rows, float32 ``[rows, vocab_size]``."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def best(self, row: int) -> int:
        """The likeliest token; of equals the one with the least id."""
        return best_of(self.logits[row : row + 1]).token_ids[0]

    def logprob(self, row: int, token_id: int, allowed: npt.NDArray[np.int64] | None) -> float:
        """Natural logarithm of a token's probability, before temperature; among the ``allowed`` if not all are."""
        logits = self.logits[row].cpu().numpy()
        own = logits if allowed is None else logits[allowed]
        most = own.max()
        return float(logits[token_id] - most - np.log(np.exp(own - most).sum(dtype=np.float64)))


class Likeliest:
    """Of some rows the likeliest token alone: what greedy decoding wants, without the memory for all logits."""

    def __init__(self, best: Best) -> None:
        self._best = best

    def best(self, row: int) -> int:
        """As ``Scores.best``."""
        return self._best.token_ids[row]

    def logprob(self, row: int, token_id: int, allowed: npt.NDArray[np.int64] | None) -> float:
        """As ``Scores.logprob``, for the token that is ``best``."""
        return self._best.logprobs[row]


AnyScores = Scores | Likeliest


class Sampler:
    """Chooses the tokens of one request.

    What is drawn depends on the seed, the token's position and its logits: not on what has been drawn before, nor on
    what else is in the batch. So a draft is right exactly when it is what plain decoding would have drawn, and
    accepting those makes speculation exact also for sampling (for a single draft that is the rejection rule of
    Leviathan et al., 2023, with the same random numbers).
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64

    @property
    def is_greedy(self) -> bool:
        """It always takes the likeliest token: where all are allowed, ``Likeliest`` are enough for it."""
        return self._params.temperature == 0

    def choose(self, scores: AnyScores, row: int, position: int, allowed: npt.NDArray[np.int64] | None) -> int:
        """The token at ``position``; only ids in ``allowed`` unless it is None."""
        if self.is_greedy and allowed is None:
            return scores.best(row)
        assert isinstance(scores, Scores)
        logits = scores.logits[row]
        ids = None if allowed is None else torch.from_numpy(allowed).to(logits.device)
        own = logits if ids is None else logits[ids]
        index = int(own.argmax()) if self.is_greedy else self._draw(own, position)
        return index if ids is None else int(ids[index])

    def _draw(self, logits: Tensor, position: int) -> int:
        # numpy: its one thread needs 0.3 ms, torch's would wait for each other beside whatever else runs
        scaled = logits.cpu().numpy()
        # the largest score becomes 0 before it is divided by what may be tiny
        with np.errstate(over="ignore"):
            scaled = (scaled - scaled.max()) / np.float32(max(self._params.temperature, _LEAST_TEMPERATURE))
        order, weights = next(filter(None, (self._kept(scaled, least) for least in _LEAST_SCORES)))
        bounds = weights.cumsum()
        index = int(np.searchsorted(bounds, self._uniform(position) * bounds[-1], side="right"))
        return int(order[min(index, len(order) - 1)])

    def _kept(
        self, scaled: npt.NDArray[np.float32], least: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None:
        """Tokens that may be drawn, the likeliest first, and their weights; None where some score less than that."""
        params = self._params
        ids = np.flatnonzero(scaled >= least)
        is_all = len(ids) == len(scaled)
        num_kept = min(params.top_k or len(scaled), len(scaled))
        if num_kept > len(ids) and params.top_k:
            return None
        order = ids[np.argsort(-scaled[ids], kind="stable")]
        weights = np.exp(scaled[order[:num_kept]].astype(np.float64))
        is_left_out = weights < params.min_p
        if params.top_p < 1.0:  # the smallest set whose weight reaches it; the first is always in it
            total = weights.sum() if params.top_k else np.exp(scaled).sum(dtype=np.float64)
            is_left_out |= weights.cumsum() - weights >= params.top_p * total
        is_left_out[0] = False
        num_kept = len(weights) - int(is_left_out.sum())  # what is left out stands behind all that is kept
        if num_kept == len(ids) and not is_all:
            return None
        return order[:num_kept], weights[:num_kept]

    def _uniform(self, position: int) -> float:
        """A number in [0, 1) that depends on seed and position alone."""
        return float(np.random.Generator(np.random.Philox(key=self._seed, counter=position)).random())
