"""The operators of a decoder's pass, each by itself, for measuring. Imports torch.

Beside ``engine.model`` the only place that knows what a decoder is made of. Weights, keys and values are the model's
own, so that as much is read as in the pass. What they are applied to is random: the time does not depend on it.
"""

from collections.abc import Callable, Sequence
from ctypes import addressof
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.batch import Batch, Span
from engine.model.contract import AnyDecoder
from engine.model.decoder import AnyLinear, Decoder
from engine.model.layers import attend
from engine.model.linear import Int8Linear
from engine.model.native.decoder import NativeDecoder, NativePass
from engine.model.native.forms import TILE, Form
from engine.model.native.structs import FormStruct

HEAD = "head"
PRODUCTS = ("qkv", "output", "gate_up", "down", HEAD)
"""Those of the layers in the order of a pass, and the one that gives the logits."""


class Parts(Protocol):
    """What can be run alone; each in all layers, in order."""

    def weights(self, kind: str) -> tuple[int, int]:
        """Number of weights of a kind of product, and bytes that are read of them."""

    def product(self, kind: str, num_rows: int) -> Callable[[], None]:
        """A kind of product over so many rows."""

    def attention(self, span: Span) -> Callable[[], None]:
        """Attention of a span's rows to the keys that are stored."""


def parts_of(decoder: AnyDecoder, storage: KVStorage) -> Parts:
    """The parts of whichever decoder it is."""
    if isinstance(decoder, NativeDecoder):
        return _NativeParts(decoder, storage)
    assert isinstance(decoder, Decoder)
    return _TorchParts(decoder, storage)


class _TorchParts:
    def __init__(self, decoder: Decoder, storage: KVStorage) -> None:
        self._decoder, self._storage = decoder, storage

    def weights(self, kind: str) -> tuple[int, int]:
        linears = self._linears(kind)
        return sum(linear.in_features * linear.out_features for linear in linears), sum(map(_read_bytes, linears))

    def product(self, kind: str, num_rows: int) -> Callable[[], None]:
        linears = self._linears(kind)
        return partial(_apply, linears, torch.randn(num_rows, linears[0].in_features).to(self._storage.dtype))

    def attention(self, span: Span) -> Callable[[], None]:
        config = self._decoder.config
        query = torch.randn(len(span.token_ids), config.num_heads, config.head_dim).to(self._storage.dtype)
        return partial(self._attend, query, self._decoder.start([span], self._storage).batch)

    def _linears(self, kind: str) -> list[AnyLinear]:
        if kind == HEAD:
            return [self._decoder._head]
        return [getattr(layer, kind) for layer in self._decoder.layers]

    @torch.inference_mode()
    def _attend(self, query: Tensor, batch: Batch) -> None:
        for index in range(len(self._decoder.layers)):
            for group in batch.groups:
                attend(query, group, *self._storage.read(index, group.blocks))


@torch.inference_mode()
def _apply(linears: Sequence[AnyLinear], x: Tensor) -> None:
    for linear in linears:
        linear(x)


def _read_bytes(linear: AnyLinear) -> int:
    """What one product reads of its weights; ``num_bytes`` of int8 weights counts every packed form."""
    return linear.in_features * linear.out_features if isinstance(linear, Int8Linear) else linear.num_bytes


class _NativeParts:
    """A layer is one call of compiled code; its products and its attention can be called alone as well."""

    def __init__(self, decoder: NativeDecoder, storage: KVStorage) -> None:
        self._decoder, self._storage = decoder, storage

    def weights(self, kind: str) -> tuple[int, int]:
        forms = [form for form, _ in self._forms(kind)]
        return sum(form.outputs * form.inputs for form in forms), sum(form.num_bytes for form in forms)

    def product(self, kind: str, num_rows: int) -> Callable[[], None]:
        forms = self._forms(kind)
        first = forms[0][0]
        out = torch.empty(num_rows, first.outputs)
        structs = [(form.struct(), norm) for form, norm in forms]
        return partial(self._multiply, structs, torch.randn(num_rows, first.inputs), out)

    def attention(self, span: Span) -> Callable[[], None]:
        return partial(self._attend, self._decoder.start([span], self._storage))

    def _attend(self, forward: NativePass) -> None:
        decoder, call = self._decoder, forward.describe()
        for index in range(len(decoder.layers)):
            addresses = self._storage.addresses(index)
            decoder.library.midline_attention(addressof(decoder.shape), addressof(call), *addresses)

    def _forms(self, kind: str) -> list[tuple[Form, Tensor | None]]:
        """Weights, and those of the normalisation before where there is one."""
        weights = self._decoder.weights
        if kind == HEAD:
            return [(weights.head, weights.norm)]
        norm = {"qkv": "attn_norm", "gate_up": "ffn_norm"}.get(kind)
        return [(getattr(layer, kind), getattr(layer, norm) if norm else None) for layer in weights.layers]

    def _multiply(self, structs: Sequence[tuple[FormStruct, Tensor | None]], x: Tensor, out: Tensor) -> None:
        decoder = self._decoder
        call = decoder.workspace(len(x)).describe(len(x))
        tiles = torch.arange(out.shape[1] // TILE)
        for struct, norm in structs:
            decoder.library.midline_product(
                *(addressof(struct), addressof(call), x.data_ptr(), None if norm is None else norm.data_ptr()),
                *(decoder.config.rms_eps, out.data_ptr(), tiles.data_ptr(), len(tiles)),
            )
