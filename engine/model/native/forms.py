"""Weights in the layout that the kernels read: tiles of 32 outputs, for each of which four inputs lie side by side."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint.groups import GROUP, Groups
from engine.model.native.library import load_library
from engine.model.native.structs import FormStruct

TILE = 32
_INT8, _INT4 = 0, 1
_ROTATED = 64
_INT4_GROUP_BYTES = GROUP // 2 + 4


@dataclass(frozen=True)
class Form:
    """One packed weight matrix ``[outputs, inputs]``; the number of outputs is a multiple of the tile."""

    kind: int
    outputs: int
    inputs: int
    data: Tensor
    """uint8; int8 weights plus 128 ``[tiles, inputs / 4, 32, 4]``, int4 weights ``[tiles, groups, 640]``."""
    scales: Tensor | None
    """int8: float32 ``[outputs]``."""
    bias: Tensor | None
    """float32 ``[outputs]``."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` when a product would read beyond the tensors."""
        is_int8 = self.kind == _INT8
        if self.kind not in (_INT8, _INT4) or self.outputs % TILE or self.inputs % (_ROTATED if is_int8 else GROUP):
            raise ValueError(f"no weights of kind {self.kind} have {self.outputs} outputs and {self.inputs} inputs")
        num_bytes = self.outputs * self.inputs if is_int8 else self.outputs * self.inputs // GROUP * _INT4_GROUP_BYTES
        sizes: list[tuple[Tensor | None, torch.dtype, int]] = [(self.data, torch.uint8, num_bytes)]
        if is_int8 or self.scales is not None:
            sizes.append((self.scales, torch.float32, self.outputs))
        if self.bias is not None:
            sizes.append((self.bias, torch.float32, self.outputs))
        for tensor, dtype, size in sizes:
            if tensor is None or tensor.dtype != dtype or tensor.numel() != size or not tensor.is_contiguous():
                raise ValueError(f"weights of {self.outputs} x {self.inputs} are incomplete")

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads."""
        return sum(part.numel() * part.element_size() for part in (self.data, self.scales) if part is not None)

    def struct(self) -> FormStruct:
        """Points into the tensors, which must outlive it."""
        parts = (self.data, self.scales, self.bias)
        return FormStruct(self.kind, self.outputs, self.inputs, *map(_address, parts))


def fits(num_inputs: int) -> bool:
    """Whether rows of so many inputs can be packed."""
    return num_inputs % _ROTATED == 0


def interleaved(gate_up: Tensor) -> Tensor:
    """Rows ``[gates, partners]`` in the order of tiles of 16 gates and their 16 partners."""
    half = TILE // 2
    return gate_up.view(2, -1, half, *gate_up.shape[1:]).transpose(0, 1).reshape(gate_up.shape)


def pack_int8(weight: Tensor, bias: Tensor | None) -> Form:
    """Rotated int8 weights, one scale an output, of a float ``[outputs, inputs]``; see ``Int8Linear``."""
    rows, inputs = weight.shape
    outputs = -(-rows // TILE) * TILE
    data, scales = torch.empty(outputs * inputs, dtype=torch.uint8), torch.empty(outputs)
    library = load_library()
    step = max(TILE, (1 << 20) // inputs // TILE * TILE)  # a few megabytes as float32 at a time
    for start in range(0, outputs, step):
        end = min(start + step, outputs)
        part = torch.zeros(end - start, inputs)
        part[: min(end, rows) - start] = weight[start : min(end, rows)]
        library.midline_pack_int8(
            *(part.data_ptr(), end - start, inputs, data[start * inputs :].data_ptr()),
            scales[start:].data_ptr(),
        )
    return Form(_INT8, outputs, inputs, data, scales, _padded(bias, outputs))


def pack_int4(groups: Groups, bias: Tensor | None) -> Form:
    """Four-bit weights in groups of 32 inputs with a scale and a minimum each; the outputs must fill their tiles."""
    outputs, inputs = groups.values.shape
    tiles, num_groups = outputs // TILE, inputs // GROUP
    # [tile, register, output, group, half, line, input of the line]
    values = groups.values.view(tiles, 2, TILE // 2, num_groups, 2, 4, 4)
    lines = values[:, :, :, :, 0] | (values[:, :, :, :, 1] << 4)
    weights = lines.permute(0, 3, 4, 1, 2, 5).reshape(tiles, num_groups, TILE * GROUP // 2)
    numbers = [
        part.half().view(tiles, TILE, num_groups).transpose(1, 2).contiguous().view(torch.uint8)
        for part in (groups.scales, groups.minima)
    ]
    data = torch.cat((weights, *numbers), dim=2).flatten()
    return Form(_INT4, outputs, inputs, data, None, _padded(bias, outputs))


def _padded(bias: Tensor | None, size: int) -> Tensor | None:
    if bias is None:
        return None
    out = torch.zeros(size)
    out[: len(bias)] = bias
    return out


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
