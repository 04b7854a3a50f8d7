"""Matrix products with weights that are packed once, when the model is loaded."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.checkpoint.groups import GROUP, Groups
from engine.model.config import ModelConfig

_LARGEST = 127
_ZERO_POINT = 128
_MAX_ROTATED = 64
_ROWS_AT_ONCE = 2048
# Up to so many rows fbgemm's int8 product is faster than oneDNN's. Measured, 9728 x 896, in us: 1 row 304 and 408,
# 8 rows 370 and 459, 32 rows 869 and 865, 128 rows 3593 and 2828, 512 rows 13,585 and 11,145.
_FEW_ROWS = 24


def can_prepack() -> bool:
    """Whether oneDNN's packed bfloat16 product runs natively on this CPU."""
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def can_int8() -> bool:
    """Whether the int8 products run here without saturating: that needs VNNI instructions."""
    has_both = "fbgemm" in torch.backends.quantized.supported_engines and hasattr(torch.ops.onednn, "qlinear_pointwise")
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", bool)  # a torch that cannot tell counts as one without
    return can_prepack() and has_both and bool(has_vnni())


def can_int4(shape: ModelConfig) -> bool:
    """Whether torch has a product of four-bit weights for CPUs, and of these sizes."""
    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    inputs, outputs = (shape.hidden_size, heads, shape.ffn_size), (heads + 2 * kv_heads, shape.hidden_size)
    is_whole = all(size % GROUP == 0 for size in inputs) and all(size % 16 == 0 for size in outputs)
    return is_whole and hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")


class Linear:
    """``y = x @ weight.T + bias`` with ``weight`` ``[out, in]``, in the weight's own precision.

    A bfloat16 weight on a CPU with bfloat16 instructions is kept only in oneDNN's packed layout: measured on
    two cores, 4864 x 896, a row takes 0.48 ms packed and 0.75 ms plain, 4 rows 0.48 and 0.96 ms.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.num_bytes = weight.numel() * weight.element_size()
        self.is_packed = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and can_prepack()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` is ``[rows, in]`` in the weight's dtype; returns ``[rows, out]``."""
        if self.is_packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return product
        return F.linear(x, self.weight, self.bias)


class Int8Linear:
    """The same with int8 weights, one scale per output, and int8 activations, one scale per row.

    Activations have outliers, most of all before the down projection, beside which nothing else of a row would be
    left: columns are first mixed by Hadamard matrices, the weights' as well (Ashkboos et al., QuaRot, 2024). Measured
    on code, mean divergence from float32 is 0.0017 with and 0.0069 without, 0.0007 in bfloat16.

    A row is divided by its largest number and rounded to ``-127 .. 127``; the sums are exact. So its result depends
    on no other row, and on the number of rows only in the last bits of the output's rounding: fbgemm's product for
    few rows and oneDNN's for many get the same integers. fbgemm chooses one scale for all rows from the least and
    the largest number; a further row holds both, so that it is always the same.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, has_many_rows: bool = True) -> None:
        """``weight`` is bfloat16 ``[out, in]`` and is not kept. Without ``has_many_rows`` one packed form is enough."""
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.is_packed = True
        self.num_bytes = weight.numel() * (2 if has_many_rows else 1)
        self._rotation = _hadamard(self.in_features).to(weight.dtype)
        rounded, self._scales = _quantise(weight, self._rotation.float())
        self._zeros = torch.zeros(self.out_features, dtype=torch.int64)
        self._for_few = _pack_fbgemm(rounded, self._scales, self._zeros)
        self._for_many = torch.ops.onednn.qlinear_prepack(rounded, None) if has_many_rows else None
        self._pin = torch.zeros(1, self.in_features)
        self._pin[0, 0], self._pin[0, -1] = 1.0, -_ZERO_POINT / _LARGEST

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` is bfloat16 ``[rows, in]``; returns bfloat16 ``[rows, out]``."""
        x = _rotate(x, self._rotation)
        # in bfloat16 as well, so that multiplying by it again is exact
        largest = x.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-20)
        is_few = len(x) <= _FEW_ROWS or self._for_many is None
        y = self._few(x, largest) if is_few else self._many(x, largest)
        return y if self.bias is None else y.add_(self.bias)

    def _few(self, x: Tensor, largest: Tensor) -> Tensor:
        scaled = torch.cat((x / largest.float(), self._pin))
        y: Tensor = torch.ops.quantized.linear_dynamic(scaled, self._for_few, False)
        return y[:-1].mul_(largest).to(x.dtype)

    def _many(self, x: Tensor, largest: Tensor) -> Tensor:
        rounded = (x / (largest.float() / _LARGEST)).round_().add_(_ZERO_POINT).to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(rounded, 1.0 / _LARGEST, _ZERO_POINT, self._for_many, self._scales, self._zeros),
            *(None, 1.0, 0, x.dtype, "none", [], ""),
        )
        return y.mul_(largest)


class Int4Linear:
    """The same with four-bit weights in groups, in little memory: slower than int8 for more than a row or two."""

    def __init__(self, groups: Groups, bias: Tensor | None = None) -> None:
        """The outputs must be a multiple of 16."""
        self.out_features, self.in_features = groups.values.shape
        self.bias = bias
        self.is_packed = True
        self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.values.int(), 1)
        # torch counts from -8
        minima = groups.minima + 8 * groups.scales
        self._scales = torch.stack((groups.scales, minima), dim=2).transpose(0, 1).contiguous().bfloat16()
        self.num_bytes = sum(part.numel() * part.element_size() for part in (self._weight, self._scales))

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` is bfloat16 ``[rows, in]``; returns bfloat16 ``[rows, out]``."""
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._weight, GROUP, self._scales)
        return y if self.bias is None else y.add_(self.bias)


def _quantise(weight: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Int8 ``[out, in]`` and float32 scales ``[out]`` of the rotated weight; a part at a time, to spare memory."""
    rounded = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rotated = _rotate(weight[part].float(), rotation)
        scales[part] = rotated.abs().amax(dim=1).clamp_min_(1e-20) / _LARGEST
        rounded[part] = rotated.div_(scales[part].unsqueeze(1)).round_()
    return rounded, scales


def _hadamard(size: int) -> Tensor:
    """An orthogonal matrix of ones and minus ones, scaled, whose size divides ``size``.

    64 columns are enough (256 gave the same divergence) and cost 5 % of a product of many rows.
    """
    matrix = torch.ones(1, 1)
    while size % (2 * len(matrix)) == 0 and len(matrix) < _MAX_ROTATED:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(len(matrix))


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Each group of so many columns times the rotation."""
    return torch.matmul(x.reshape(-1, len(rotation)), rotation).view(x.shape)


def _pack_fbgemm(rounded: Tensor, scales: Tensor, zeros: Tensor) -> object:
    """Int8 weights in fbgemm's layout."""
    torch.backends.quantized.engine = "fbgemm"  # for the whole process: nothing else here has quantised tensors
    quantised = torch._make_per_channel_quantized_tensor(rounded, scales.double(), zeros, 0)
    packed: object = torch.ops.quantized.linear_prepack(quantised, None)
    return packed
