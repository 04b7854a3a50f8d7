"""Choosing the next token from its logits."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.request import SamplingParams


class Sampler:
    """Chooses the tokens of one request. The same seed and logits give the same tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed % 2**63)

    def choose(self, logits: Tensor, allowed: npt.NDArray[np.int64] | None) -> int:
        """Next token id from float32 ``logits`` ``[vocab_size]``; only ids in ``allowed`` unless it is None."""
        ids = None if allowed is None else torch.from_numpy(allowed).to(logits.device)
        scores = logits if ids is None else logits[ids]
        index = int(scores.argmax()) if self._params.temperature == 0 else self._draw(scores)
        return index if ids is None else int(ids[index])

    def _draw(self, scores: Tensor) -> int:
        params = self._params
        ordered, order = torch.sort(scores.cpu(), descending=True, stable=True)
        # the largest score becomes 0 before it is divided by what may be tiny
        ordered = (ordered - ordered[0]) / params.temperature
        keep = min(params.top_k or len(ordered), len(ordered))
        weights = torch.softmax(ordered[:keep], dim=0)
        # the smallest set whose weight reaches top_p; the first is always in it
        is_beyond = weights.cumsum(0) - weights >= params.top_p
        is_beyond[0] = False
        weights[is_beyond] = 0.0
        return int(order[torch.multinomial(weights, 1, generator=self._generator)])
