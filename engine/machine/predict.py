"""How long a suggestion of a model will take here, from the machine's rates. Light: arithmetic alone.

A step of few rows reads every weight once; what it computes with them hides behind the reading. So its time is that
of the reading, or of the products where they are slower, and a fixed time per layer for everything else.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.machine.memory import PRECISIONS, PROCESS_BYTES
from engine.model.config import ModelConfig

ROWS = (1, 4, 128)
"""How many rows a product is measured with: a decoded token, a draft that is verified, a prompt that is read."""
_FEW_ROWS = ROWS[:2]

SUGGESTION_TOKENS = 12
"""Of the suggestion whose time is predicted, after a keystroke of three tokens."""
TOKENS_PER_PASS = 1.5
"""Tokens that a pass yields with the drafts of the n-grams; conservative: 1.8 to 2.0 were measured on real code."""

# One byte and a scale per output for int8; 32 numbers share 16 + 16 bits of scale and least value for int4. The head
# is never int4: its errors go straight into the choice of the token. ``mixed`` is int4 where the file has four bits.
_LAYER_BYTES = {"exact": 2.0, "int8": 1.0, "int4": 0.625}
_HEAD_BYTES = {"exact": 2.0, "int8": 1.0, "mixed": 1.0, "int4": 1.0}
# torch's operators want int8 weights of the layers twice: packed for few rows and for many.
_NUM_TORCH_FORMS = {"int8": 2}
_EMBEDDING_BYTES = 2
_CACHE_NUMBER_BYTES = 2
DEFAULT_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class ModelSize:
    """What a model's time and memory depend on."""

    num_layers: int
    layer_weights: int
    """Weights of the products in all layers."""
    head_weights: int
    """Weights of the product that gives the logits; the embedding has as many."""
    kv_width: int
    """Numbers in the keys of one token and layer; the values have as many."""
    four_bit_share: float = 0.0
    """Of the layers' weights, those of products that the file has in four bits."""


@dataclass(frozen=True)
class KernelRates:
    """How fast this machine computes in one precision."""

    weights_per_s: tuple[float, ...]
    """Weights that a step gets through per second, by the number of rows in ``ROWS``."""
    layer_s: float
    """What a step takes per layer besides: attention, norms, and the program itself."""


@dataclass(frozen=True)
class Rates:
    """What was measured on this machine."""

    read_bytes_per_s: float
    """From memory, beyond the caches."""
    kernels: Mapping[str, KernelRates]
    """By precision; those that cannot be had here are missing."""
    automatic: str
    """The precision that ``auto`` stands for here."""
    compute: str = "torch"
    """``native`` if the compiled kernels run here, else ``torch`` and why."""

    @property
    def is_native(self) -> bool:
        """The compiled kernels run here."""
        return self.compute == "native"


def size_of(shape: ModelConfig, four_bit_share: float = 0.0) -> ModelSize:
    """The size of a model of this shape."""
    return ModelSize(
        num_layers=shape.num_layers,
        layer_weights=layer_weights(shape),
        head_weights=shape.vocab_size * shape.hidden_size,
        kv_width=shape.num_kv_heads * shape.head_dim,
        four_bit_share=four_bit_share,
    )


def layer_weights(shape: ModelConfig) -> int:
    """Weights of all layers: each is one multiplication and one addition per token, and one byte in int8."""
    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = shape.hidden_size * (heads + 2 * kv_heads) + heads * shape.hidden_size
    return shape.num_layers * (attention + 3 * shape.hidden_size * shape.ffn_size)


def resolve_precision(wanted: str, rates: Rates) -> str:
    """The precision that the setting ``engine.precision`` leads to here."""
    return wanted if wanted in rates.kernels or (wanted == "mixed" and rates.is_native) else rates.automatic


def step_bytes(size: ModelSize, precision: str) -> float:
    """Bytes of weights that one step reads."""
    if precision == "mixed":
        return _mixed(size, step_bytes(size, "int8"), step_bytes(size, "int4"))
    return size.layer_weights * _LAYER_BYTES[precision] + size.head_weights * _HEAD_BYTES[precision]


def weight_bytes(size: ModelSize, precision: str, is_native: bool) -> int:
    """Bytes of weights in memory. A step reads single rows of the embedding, so that stays as it is."""
    num_forms = 1 if is_native else _NUM_TORCH_FORMS.get(precision, 1)
    layers = step_bytes(size, precision) - size.head_weights * _HEAD_BYTES[precision]
    return math.ceil(layers * num_forms + size.head_weights * (_HEAD_BYTES[precision] + _EMBEDDING_BYTES))


def _mixed(size: ModelSize, int8: float, int4: float) -> float:
    return size.four_bit_share * int4 + (1.0 - size.four_bit_share) * int8


def cache_bytes(size: ModelSize, context_tokens: int, kv_cache_mb: int = 0) -> int:
    """Bytes of keys and values under the settings of those names."""
    context = 2 * size.num_layers * size.kv_width * _CACHE_NUMBER_BYTES * context_tokens
    return kv_cache_mb * 2**20 or max(context, DEFAULT_CACHE_BYTES)


def memory_bytes(
    size: ModelSize, context_tokens: int, kv_cache_mb: int, is_native: bool, other_bytes: int = PROCESS_BYTES
) -> dict[str, int]:
    """Bytes of the engine's process by precision: weights, cache, and ``other_bytes``."""
    others = other_bytes + cache_bytes(size, context_tokens, kv_cache_mb)
    return {precision: weight_bytes(size, precision, is_native) + others for precision in PRECISIONS}


def step_s(size: ModelSize, precision: str, rates: Rates) -> float:
    """Time of a step of a few rows. ``precision`` is one of ``rates.kernels``, or ``mixed`` where that is automatic."""
    if precision == "mixed":
        return _mixed(size, step_s(size, "int8", rates), step_s(size, "int4", rates))
    kernel = rates.kernels[precision]
    read_s = step_bytes(size, precision) / rates.read_bytes_per_s
    # some passes verify a draft and some have none: one row and four count alike
    weight_s = statistics.mean(1 / rate for rate in kernel.weights_per_s[: len(_FEW_ROWS)])
    product_s = (size.layer_weights + size.head_weights) * weight_s
    return max(read_s, product_s) + size.num_layers * kernel.layer_s


def suggestion_ms(size: ModelSize, precision: str, rates: Rates) -> float:
    """Time of a suggestion after a keystroke: a pass for what was typed, then those for what is suggested."""
    num_passes = 1 + SUGGESTION_TOKENS / TOKENS_PER_PASS
    return 1000.0 * num_passes * step_s(size, precision, rates)
