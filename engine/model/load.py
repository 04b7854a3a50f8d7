"""From an open checkpoint to a decoder in memory."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from engine.checkpoint.source import Checkpoint
from engine.errors import CheckpointError
from engine.model.config import ModelConfig
from engine.model.decoder import AnyLinear, Decoder, Layer
from engine.model.layers import Rotary, rope_frequencies
from engine.model.linear import Int8Linear, Linear


def load_decoder(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, num_positions: int, is_int8: bool = False
) -> tuple[Decoder, int]:
    """Read every parameter once, in ``dtype``, onto ``device``; return the decoder and the bytes it takes.

    With ``is_int8`` the products' weights are int8. Parameters are read one at a time by each of two threads, and
    packed before the next is read, so the peak is little more than the loaded size and the largest parameter.
    """
    config = checkpoint.config
    _check_shapes(config, checkpoint.parameter_shapes())
    parameters = _Parameters(checkpoint, dtype, device, is_int8)
    # two threads: dequantising and packing use one core at a time. The head is the largest product and exists twice
    # while it is packed, so it comes first. A tied head is packed as well: a step reads all of it, but only single
    # rows of the embedding.
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)  # which will go; see Int8Linear
        embedding = parameters.read("embedding")
        head = pool.submit(parameters.head, embedding)
        layers = list(pool.map(parameters.layer, range(config.num_layers)))
    rotary = Rotary(rope_frequencies(config, checkpoint.rope_factors()), num_positions, dtype, device)
    decoder = Decoder(config, embedding, layers, parameters.read("norm"), head.result(), rotary)
    products = [head.result()] if head.result().is_packed or not config.is_tied else []
    for layer in layers:
        products += [layer.qkv, layer.output, layer.gate_up, layer.down]
    return decoder, embedding.numel() * embedding.element_size() + sum(product.num_bytes for product in products)


class _Parameters:
    """A checkpoint's parameters in the form in which they are computed with. Safe for threads."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, is_int8: bool) -> None:
        self._checkpoint = checkpoint
        self._shapes = checkpoint.parameter_shapes()
        self._dtype = dtype
        self._device = device
        self._is_int8 = is_int8

    def read(self, name: str) -> Tensor:
        """A parameter as it is."""
        out = torch.empty(self._shapes[name], dtype=self._dtype)
        self._checkpoint.read_into(name, out)
        return out.to(self._device)

    def head(self, embedding: Tensor) -> AnyLinear:
        """The product that gives the logits; few rows at a time need them."""
        is_tied = "head.weight" not in self._shapes
        return self._product(embedding if is_tied else self.read("head.weight"), None, has_many_rows=False)

    def layer(self, index: int) -> Layer:
        """One transformer block."""
        at = f"layers.{index}"
        return Layer(
            attn_norm=self.read(f"{at}.attn_norm"),
            qkv=self._linear(f"{at}.qkv"),
            output=self._linear(f"{at}.output"),
            ffn_norm=self.read(f"{at}.ffn_norm"),
            gate_up=self._linear(f"{at}.gate_up"),
            down=self._linear(f"{at}.down"),
        )

    def _linear(self, name: str) -> AnyLinear:
        bias = f"{name}.bias"
        return self._product(self.read(f"{name}.weight"), self.read(bias) if bias in self._shapes else None)

    def _product(self, weight: Tensor, bias: Tensor | None, has_many_rows: bool = True) -> AnyLinear:
        return Int8Linear(weight, bias, has_many_rows) if self._is_int8 else Linear(weight, bias)


def _check_shapes(config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> None:
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
