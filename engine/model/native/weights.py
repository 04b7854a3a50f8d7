"""A checkpoint's parameters in the form in which the compiled kernels compute with them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.checkpoint.groups import Groups, round_to_groups
from engine.checkpoint.source import Checkpoint
from engine.machine.memory import give_back_unused
from engine.model.config import ModelConfig
from engine.model.native.forms import TILE, Form, interleaved, pack_int4, pack_int8


@dataclass(frozen=True)
class LayerWeights:
    """One transformer block's parameters; those of the normalisations are float32."""

    attn_norm: Tensor
    qkv: Form
    output: Form
    ffn_norm: Tensor
    gate_up: Form
    """Rows in the order of ``forms.interleaved``."""
    down: Form

    @property
    def products(self) -> tuple[Form, ...]:
        """In the order in which they are computed."""
        return self.qkv, self.output, self.gate_up, self.down


@dataclass(frozen=True)
class Weights:
    """All parameters of a model."""

    embedding: Tensor
    """bfloat16"""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    """float32"""
    head: Form

    @property
    def num_bytes(self) -> int:
        """Of all products and the embedding."""
        products = [form for layer in self.layers for form in layer.products]
        embedding = self.embedding.numel() * self.embedding.element_size()
        return embedding + sum(form.num_bytes for form in (*products, self.head))

    def check(self, config: ModelConfig) -> None:
        """Raises ``ValueError`` when these are not the parameters of a model of that shape."""
        hidden, heads = config.hidden_size, config.num_heads * config.head_dim
        qkv = heads + 2 * config.num_kv_heads * config.head_dim
        products = [(qkv, hidden), (hidden, heads), (2 * config.ffn_size, hidden), (hidden, config.ffn_size)]
        norms = [self.norm, *(norm for layer in self.layers for norm in (layer.attn_norm, layer.ffn_norm))]
        is_right = (
            len(self.layers) == config.num_layers
            and self.embedding.shape == (config.vocab_size, hidden)
            and all(norm.shape == (hidden,) and norm.dtype == torch.float32 for norm in norms)
            and all([(form.outputs, form.inputs) for form in layer.products] == products for layer in self.layers)
            and (self.head.outputs, self.head.inputs) == (-(-config.vocab_size // TILE) * TILE, hidden)
        )
        if not is_right:
            raise ValueError("the weights have other shapes than the model")


PRECISIONS = ("int8", "mixed", "int4")


class Packer:
    """Reads and packs parameters; ``precision`` says which are four bits. Safe for threads.

    ``int8``: none. ``mixed``: those that the file itself has in four bits, which loses nothing. ``int4``: all products
    of the layers, rounded where the file has more. The head stays int8: its errors go straight into the next token.
    """

    def __init__(self, checkpoint: Checkpoint, precision: str) -> None:
        self._checkpoint = checkpoint
        self._shapes = checkpoint.parameter_shapes()
        self._precision = precision

    def pack(self) -> Weights:
        """Everything, on two threads: unpacking and packing use one core at a time."""
        with ThreadPoolExecutor(2) as pool:
            embedding = self._read("embedding", torch.bfloat16)
            head = pool.submit(self._head, embedding)
            layers = tuple(pool.map(self._layer, range(self._checkpoint.config.num_layers)))
        return Weights(embedding, layers, self._read("norm"), head.result())

    def _head(self, embedding: Tensor) -> Form:
        is_tied = "head.weight" not in self._shapes
        return pack_int8(embedding if is_tied else self._read("head.weight", torch.bfloat16), None)

    def _layer(self, index: int) -> LayerWeights:
        at = f"layers.{index}"
        layer = LayerWeights(
            attn_norm=self._read(f"{at}.attn_norm"),
            qkv=self._product(f"{at}.qkv"),
            output=self._product(f"{at}.output"),
            ffn_norm=self._read(f"{at}.ffn_norm"),
            gate_up=self._product(f"{at}.gate_up"),
            down=self._product(f"{at}.down"),
        )
        give_back_unused()
        return layer

    def _product(self, name: str) -> Form:
        is_gated = name.endswith("gate_up")
        bias = self._read(f"{name}.bias") if f"{name}.bias" in self._shapes else None
        groups = self._groups(f"{name}.weight")
        if groups is not None:
            return pack_int4(_interleaved(groups) if is_gated else groups, bias)
        weight = self._read(f"{name}.weight", torch.bfloat16)
        return pack_int8(interleaved(weight) if is_gated else weight, bias)

    def _groups(self, name: str) -> Groups | None:
        if self._precision == "int8":
            return None
        groups = self._checkpoint.groups(name)
        if groups is None and self._precision == "int4":
            return round_to_groups(self._read(name))
        return groups

    def _read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        out = torch.empty(self._shapes[name], dtype=dtype)
        self._checkpoint.read_into(name, out)
        return out


def _interleaved(groups: Groups) -> Groups:
    return replace(
        groups,
        values=interleaved(groups.values),
        scales=interleaved(groups.scales),
        minima=interleaved(groups.minima),
    )
