"""Four-bit weights as they stand in a checkpoint: groups of 32 inputs, each with a scale and a minimum."""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
_MOST = 15
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Groups:
    """``values * scale + minimum`` of a weight matrix ``[outputs, inputs]``."""

    values: Tensor
    """uint8 ``[outputs, inputs]``, 0 to 15."""
    scales: Tensor
    """float32 ``[outputs, inputs / 32]``"""
    minima: Tensor
    """float32 ``[outputs, inputs / 32]``"""

    def dequantised(self) -> Tensor:
        """float32 ``[outputs, inputs]``."""
        outputs, inputs = self.values.shape
        values = self.values.view(outputs, inputs // GROUP, GROUP)
        return (values * self.scales.unsqueeze(2) + self.minima.unsqueeze(2)).view(outputs, inputs)


def stacked(parts: list[Groups]) -> Groups:
    """Several matrices of as many inputs as one, with the outputs of all."""
    columns = zip(*((part.values, part.scales, part.minima) for part in parts), strict=True)
    return Groups(*map(torch.cat, columns))


def round_to_groups(weight: Tensor) -> Groups:
    """The nearest of 16 steps between the least and the largest weight of each group; ``weight`` is float."""
    outputs, inputs = weight.shape
    values = torch.empty(outputs, inputs // GROUP, GROUP, dtype=torch.uint8)
    scales, minima = torch.empty(values.shape[:2]), torch.empty(values.shape[:2])
    for start in range(0, outputs, _ROWS_AT_ONCE):  # to spare memory
        part = slice(start, start + _ROWS_AT_ONCE)
        grouped = weight[part].float().view(-1, inputs // GROUP, GROUP)
        minima[part], most = grouped.aminmax(dim=2)
        scales[part] = ((most - minima[part]) / _MOST).clamp_min_(1e-12)
        steps = (grouped - minima[part].unsqueeze(2)).div_(scales[part].unsqueeze(2))
        values[part] = steps.round_().clamp_(0, _MOST)
    return Groups(values.view(outputs, inputs), scales, minima)
