"""From an open checkpoint to a decoder in memory."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from engine.checkpoint.groups import Groups, round_to_groups
from engine.checkpoint.source import Checkpoint
from engine.errors import CheckpointError
from engine.machine.memory import give_back_unused
from engine.model.config import ModelConfig
from engine.model.decoder import AnyLinear, Decoder, Layer
from engine.model.layers import Rotary, rope_frequencies
from engine.model.linear import Int4Linear, Int8Linear, Linear, can_int8


def load_decoder(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, num_positions: int, precision: str = "exact"
) -> tuple[Decoder, int]:
    """Read every parameter once, in ``dtype``, onto ``device``; return the decoder and the bytes it takes.

    ``precision`` is ``exact``, or ``int8`` or ``int4`` for the products' weights, of which int4 leaves the head in the
    best form there is. Parameters are read one at a time by each of two threads, and
    packed before the next is read, so the peak is little more than the loaded size and the largest parameter.
    """
    config = checkpoint.config
    check_shapes(config, checkpoint.parameter_shapes())
    parameters = _Parameters(checkpoint, dtype, device, precision)
    # The head is the largest product and exists several times while it is packed, so it comes before all else; a tied
    # head is packed as well: a step reads all of it, but only single rows of the embedding. Two threads for the layers:
    # dequantising and packing use one core at a time.
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)  # which will go; see Int8Linear
        embedding = parameters.read("embedding")
        head = parameters.head(embedding)
        layers = list(pool.map(parameters.layer, range(config.num_layers)))
    rotary = Rotary(rope_frequencies(config, checkpoint.rope_factors()), num_positions, dtype, device)
    decoder = Decoder(config, embedding, layers, parameters.read("norm"), head, rotary)
    products = [head] if head.is_packed or not config.is_tied else []
    for layer in layers:
        products += [layer.qkv, layer.output, layer.gate_up, layer.down]
    return decoder, embedding.numel() * embedding.element_size() + sum(product.num_bytes for product in products)


class _Parameters:
    """A checkpoint's parameters in the form in which they are computed with. Safe for threads."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, precision: str) -> None:
        self._checkpoint = checkpoint
        self._shapes = checkpoint.parameter_shapes()
        self._dtype = dtype
        self._device = device
        self._precision = precision

    def read(self, name: str) -> Tensor:
        """A parameter as it is."""
        out = torch.empty(self._shapes[name], dtype=self._dtype)
        self._checkpoint.read_into(name, out)
        return out.to(self._device)

    def head(self, embedding: Tensor) -> AnyLinear:
        """The product that gives the logits; few rows at a time need them."""
        is_tied = "head.weight" not in self._shapes
        weight = embedding if is_tied else self.read("head.weight")
        is_int8 = self._precision != "exact" and can_int8()
        head = Int8Linear(weight, has_many_rows=False) if is_int8 else Linear(weight)
        give_back_unused()
        return head

    def layer(self, index: int) -> Layer:
        """One transformer block."""
        at = f"layers.{index}"
        layer = Layer(
            attn_norm=self.read(f"{at}.attn_norm"),
            qkv=self._linear(f"{at}.qkv"),
            output=self._linear(f"{at}.output"),
            ffn_norm=self.read(f"{at}.ffn_norm"),
            gate_up=self._linear(f"{at}.gate_up"),
            down=self._linear(f"{at}.down"),
        )
        give_back_unused()
        return layer

    def _linear(self, name: str) -> AnyLinear:
        bias = self.read(f"{name}.bias") if f"{name}.bias" in self._shapes else None
        if self._precision == "int4":
            return Int4Linear(self._checkpoint.groups(f"{name}.weight") or self._rounded(f"{name}.weight"), bias)
        weight = self.read(f"{name}.weight")
        return Int8Linear(weight, bias) if self._precision == "int8" else Linear(weight, bias)

    def _rounded(self, name: str) -> Groups:
        return round_to_groups(self.read(name))


def check_shapes(config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> None:
    """Compare the tensors' shapes with what the configuration implies. Raises ``CheckpointError``."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    qkv = heads + 2 * config.num_kv_heads * config.head_dim
    expected = {
        "embedding": (config.vocab_size, hidden),
        "norm": (hidden,),
        "head.weight": (config.vocab_size, hidden),
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "qkv.weight": (qkv, hidden),
        "qkv.bias": (qkv,),
        "output.weight": (hidden, heads),
        "output.bias": (hidden,),
        "gate_up.weight": (2 * config.ffn_size, hidden),
        "down.weight": (hidden, config.ffn_size),
    }
    for name, shape in shapes.items():
        kind = name.split(".", 2)[2] if name.startswith("layers.") else name
        if shape != expected[kind]:
            raise CheckpointError(f"parameter {name} has shape {shape}; the configuration implies {expected[kind]}")
