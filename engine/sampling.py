"""Choosing the next token from its logits."""

import math
import secrets
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.model.best import Best, best_of
from engine.request import SamplingParams

_LEAST_SCORES = (-12.0, -20.0, -np.inf)
"""Divided by the temperature, below the largest. The first is nearly always enough: to sort 150,000 takes 10 ms."""
_MARGIN = 0.01
"""By so much more than ``min_p`` allows: more than rounding can be."""

_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)


class Scores:
    """All logits of some rows, float32 ``[rows, vocab_size]``."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def logits(self, row: int) -> Tensor:
        """Float32 ``[vocab_size]``."""
        return self._logits[row]

    def best(self, row: int) -> int:
        """The likeliest token; of equals the one with the least id."""
        return best_of(self._logits[row : row + 1]).token_ids[0]

    def logprob(self, row: int, token_id: int, allowed: npt.NDArray[np.int64] | None) -> float:
        """Natural logarithm of a token's probability, before temperature; among the ``allowed`` if not all are."""
        logits = self._logits[row].cpu().numpy()
        own = logits if allowed is None else logits[allowed]
        most = own.max()
        return float(logits[token_id] - most - np.log(np.exp(own - most).sum(dtype=np.float64)))


class Likeliest:
    """Of some rows the likeliest token, where all tokens are allowed, and all logits only of those that were kept."""

    def __init__(self, best: Best) -> None:
        self._best = best

    def logits(self, row: int) -> Tensor:
        """As ``Scores.logits``, of a row that was kept."""
        return self._best.logits[row]

    def best(self, row: int) -> int:
        """As ``Scores.best``."""
        return self._best.token_ids[row]

    def logprob(self, row: int, token_id: int, allowed: npt.NDArray[np.int64] | None) -> float:
        """As ``Scores.logprob``; of a row that was not kept only for the token that is ``best``."""
        best = self._best.token_ids[row]
        if token_id == best:
            return self._best.logprobs[row]
        logits = self._best.logits[row]
        return self._best.logprobs[row] + float(logits[token_id] - logits[best])


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
        logits = scores.logits(row)
        ids = None if allowed is None else torch.from_numpy(allowed).to(logits.device)
        own = logits if ids is None else logits[ids]
        index = int(own.argmax()) if self.is_greedy else self._draw(own, position)
        return index if ids is None else int(ids[index])

    def _draw(self, logits: Tensor, position: int) -> int:
        # numpy: its one thread needs 0.1 ms, torch's would wait for each other beside whatever else runs
        scores, uniform = logits.cpu().numpy(), self._uniform(position)
        # of fewer than the first top_k, what they weigh together is not known
        has_least = self._params.min_p > 0 and not self._params.top_k
        all_from = math.log(self._params.min_p) - _MARGIN if has_least else -math.inf
        levels = (max(least, all_from) for least in _LEAST_SCORES)
        drawn = (self._drawn(scores, uniform, least, is_all=least == all_from) for least in levels)
        return next(token for token in drawn if token is not None)

    def _drawn(self, scores: npt.NDArray[np.float32], uniform: float, least: float, is_all: bool) -> int | None:
        """The token, if it can be told from those that score at least so much; ``is_all``: no other may be drawn.

        All that may be drawn stand in a line, the likeliest first, each as wide as it is likely; ``uniform`` of its
        length is where the token stands.
        """
        params, most = self._params, scores.max()
        temperature = np.float32(max(params.temperature, _LEAST_TEMPERATURE))
        ids = np.flatnonzero(scores >= most + np.float32(least) * temperature)
        num_most = min(params.top_k or len(scores), len(scores))
        if params.top_k and num_most > len(ids):
            return None
        order = ids[np.argsort(-scores[ids], kind="stable")][:num_most]
        weights = self._weights(scores[order], most)
        num_kept = self._num_kept(weights, lambda: weights.sum() if params.top_k else self._weights(scores, most).sum())
        is_cut = num_kept < len(ids) or is_all
        if not is_cut and (params.min_p or params.top_p < 1.0):
            return None
        bounds = weights[:num_kept].cumsum()
        length = bounds[-1] if is_cut else self._weights(scores, most).sum()
        index = int(np.searchsorted(bounds, uniform * length, side="right"))
        if index >= num_kept and not is_cut:
            return None
        return int(order[min(index, num_kept - 1)])

    def _weights(self, scores: npt.NDArray[np.float32], most: np.float32) -> npt.NDArray[np.float64]:
        """Probabilities, as multiples of the largest one."""
        # the largest score becomes 0 before it is divided by what may be tiny
        with np.errstate(over="ignore"):
            scaled = (scores - most) / np.float32(max(self._params.temperature, _LEAST_TEMPERATURE))
        return np.exp(scaled.astype(np.float64))

    def _num_kept(self, weights: npt.NDArray[np.float64], whole: Callable[[], float]) -> int:
        """How many of the leading tokens may be drawn; ``whole`` is the weight of them all."""
        is_left_out = weights < self._params.min_p
        if self._params.top_p < 1.0:  # the smallest set whose weight reaches it; the first is always in it
            is_left_out |= weights.cumsum() - weights >= self._params.top_p * whole()
        is_left_out[0] = False
        return len(weights) - int(is_left_out.sum())  # what is left out stands behind all that is kept

    def _uniform(self, position: int) -> float:
        """A number in [0, 1) that depends on seed and position alone."""
        return float(np.random.Generator(np.random.Philox(key=self._seed, counter=position)).random())
