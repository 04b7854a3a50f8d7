"""``NativeDecoder``: what ``Decoder`` computes, a whole layer in one call of compiled code.

Activations between the products are float32, in the products int8; keys and values are bfloat16. A row's result does
not depend on which rows are computed beside it, down to the last bit.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_int64
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache.storage import KVStorage
from engine.checkpoint.groups import GROUP
from engine.model.batch import Span
from engine.model.best import Best
from engine.model.config import ModelConfig
from engine.model.native.forms import TILE, fits
from engine.model.native.library import load_library
from engine.model.native.structs import LayerStruct, PassStruct, SequenceStruct, ShapeStruct
from engine.model.native.weights import LayerWeights, Weights

BLOCK_TOKENS = 16
"""Of the storage of keys and values."""
_HEAD_DIMS = (64, 128)
_MAX_QUERIES = 64
_LANES = 16
_MATRIX_ROWS = 16


def is_supported(config: ModelConfig) -> bool:
    """Whether the kernels are made for a model's shape."""
    heads = config.num_heads * config.head_dim
    rows = (heads + 2 * config.num_kv_heads * config.head_dim, config.hidden_size, 2 * config.ffn_size)
    return (
        config.head_dim in _HEAD_DIMS
        and config.num_heads // config.num_kv_heads <= _MAX_QUERIES
        and all(map(fits, (config.hidden_size, heads, config.ffn_size)))
        and all(size % TILE == 0 for size in rows)
    )


class NativeDecoder:
    """A causal language model over sequences whose keys and values lie in blocks; see ``Decoder``."""

    def __init__(self, config: ModelConfig, weights: Weights, angles: Tensor) -> None:
        """``angles`` is float32 ``[positions, head_dim / 2]``."""
        self.config = config
        self.weights = weights  # the structures point into them
        self.library = load_library()
        self.shape = ShapeStruct(
            *(config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim, config.ffn_size),
            config.rms_eps,
        )
        self.layers = [_layer_struct(layer) for layer in weights.layers]
        self.cos, self.sin = angles.cos(), angles.sin()
        self._head = weights.head.struct()
        self._all_tiles = torch.arange(weights.head.outputs // TILE)
        self._workspace = Workspace(config, 0)

    def start(self, spans: list[Span], storage: KVStorage) -> "NativePass":
        """A forward pass over ``spans`` that has computed nothing yet. Raises ``ValueError`` for what would crash.

        Keys and values are laid out as ``attention.h`` says; whatever else stands in their blocks must be finite.
        """
        if storage.block_tokens != BLOCK_TOKENS or storage.dtype != torch.bfloat16:
            raise ValueError(f"keys and values must be bfloat16 in blocks of {BLOCK_TOKENS}")
        last = max(span.end for span in spans)
        if last > len(self.cos):
            raise ValueError(f"position {last - 1} is beyond the {len(self.cos)} that were prepared")
        return NativePass(self, spans, storage)

    def workspace(self, num_rows: int) -> "Workspace":
        """Memory for a layer of so many rows; its contents last for one call."""
        if self._workspace.num_rows < num_rows:
            self._workspace = Workspace(self.config, num_rows)
        return self._workspace

    def logits(self, hidden: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Scores of every token after each of ``hidden`` ``[rows, hidden_size]``: float32 ``[rows, vocab_size]``.

        With ``token_ids`` only those are computed, and some beside them; the others' scores are minus infinity.
        """
        hidden = hidden.contiguous()
        rows, tiles = len(hidden), self._all_tiles
        out = torch.empty(rows, self.weights.head.outputs)
        if token_ids is not None:
            tiles = self._tiles_of(token_ids)
            out.fill_(-torch.inf)
        call = self.workspace(rows).describe(rows)
        self.library.midline_product(
            *(ctypes.addressof(self._head), ctypes.addressof(call), hidden.data_ptr(), self.weights.norm.data_ptr()),
            *(self.config.rms_eps, out.data_ptr(), tiles.data_ptr(), len(tiles)),
        )
        return out[:, : self.config.vocab_size]

    def _tiles_of(self, token_ids: Tensor) -> Tensor:
        """Numbers of the head's tiles that have any of the tokens; sorting them would take as long as the product."""
        is_wanted = torch.zeros(len(self._all_tiles), dtype=torch.bool)
        is_wanted[token_ids // TILE] = True
        return self._all_tiles[is_wanted]

    def best(self, hidden: Tensor, num_tokens: int, kept: Sequence[int] = ()) -> Best:
        """The likeliest of the first ``num_tokens`` tokens after each of ``hidden``; only logits of the rows ``kept``
        are ever in memory.
        """
        hidden = hidden.contiguous()
        rows = len(hidden)
        workspace = self.workspace(rows)
        call = workspace.describe(rows)
        partial = torch.empty(workspace.num_threads, 3, rows, _LANES)
        token_ids, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        logits = torch.empty(len(kept), self.weights.head.outputs)
        places = (c_int64 * rows)()  # null, but for what is kept
        for row, own in zip(kept, logits, strict=True):
            places[row] = own.data_ptr()
        self.library.midline_best(
            *(ctypes.addressof(self._head), ctypes.addressof(call), hidden.data_ptr(), self.weights.norm.data_ptr()),
            *(self.config.rms_eps, num_tokens, partial.data_ptr(), ctypes.addressof(places)),
            *(token_ids.data_ptr(), logprobs.data_ptr()),
        )
        return Best(token_ids.tolist(), logprobs.tolist(), dict(zip(kept, logits[:, :num_tokens], strict=True)))


def _layer_struct(layer: LayerWeights) -> LayerStruct:
    norms = (layer.attn_norm.data_ptr(), layer.ffn_norm.data_ptr())
    return LayerStruct(*(form.struct() for form in layer.products), *norms)


class Workspace:
    """Activations of one layer for up to ``num_rows`` rows."""

    def __init__(self, config: ModelConfig, num_rows: int) -> None:
        heads = config.num_heads * config.head_dim
        self.num_rows = num_rows
        self.most_inputs = max(config.hidden_size, heads, config.ffn_size)
        self.num_threads = torch.get_num_threads()
        groups = self.most_inputs // GROUP
        widths = (groups, groups, heads + 2 * config.num_kv_heads * config.head_dim, heads, config.ffn_size)
        num_read = -(-num_rows // _MATRIX_ROWS) * _MATRIX_ROWS  # all of a matrix is read
        self._activations = torch.empty(num_read, self.most_inputs, dtype=torch.uint8)
        self._floats = [torch.empty(num_rows, width) for width in widths]
        self._queries = torch.empty(num_rows, heads, dtype=torch.bfloat16)
        self._scratch = torch.empty(self.num_threads, self.most_inputs)

    def describe(self, num_rows: int) -> PassStruct:
        """A pass of so many rows that computes in this memory."""
        call = PassStruct(num_rows=num_rows, num_threads=self.num_threads, most_inputs=self.most_inputs)
        call.activations, call.queries = self._activations.data_ptr(), self._queries.data_ptr()
        call.scratch = self._scratch.data_ptr()
        names = ("scales", "sums", "heads", "attended", "gated")
        for name, tensor in zip(names, self._floats, strict=True):
            setattr(call, name, tensor.data_ptr())
        return call


class NativePass:
    """A pass through the layers, one at a time; see ``ForwardPass``."""

    def __init__(self, decoder: NativeDecoder, spans: list[Span], storage: KVStorage) -> None:
        self._decoder = decoder
        self._storage = storage
        self._index = 0
        self._described: tuple[Workspace, PassStruct] | None = None
        self._set_spans(spans)
        token_ids = torch.tensor([token_id for span in spans for token_id in span.token_ids])
        self._x = F.embedding(token_ids, decoder.weights.embedding).float()

    @property
    def is_done(self) -> bool:
        """Every layer has been computed."""
        return self._index == len(self._decoder.layers)

    @property
    def num_rows(self) -> int:
        """Tokens that are computed."""
        return len(self._x)

    @property
    def num_keys(self) -> tuple[int, int]:
        """Keys that are wanted by a row of attention, and keys that are read; for measuring."""
        wanted = sum(span.end for span in self._first_rows)
        return wanted, wanted

    def advance(self) -> None:
        """Compute one layer."""
        decoder, call = self._decoder, self.describe()
        decoder.library.midline_layer(
            *(ctypes.addressof(decoder.shape), ctypes.addressof(decoder.layers[self._index])),
            *(ctypes.addressof(call), self._x.data_ptr(), *self._storage.addresses(self._index)),
        )
        self._index += 1

    def describe(self) -> PassStruct:
        """The pass for calls of the kernels; it points into this object, and into memory that all passes share."""
        workspace = self._decoder.workspace(self.num_rows)
        if self._described is not None and self._described[0] is workspace:
            return self._described[1]
        call = self._describe(workspace)  # anew when another pass has made the memory grow
        self._described = workspace, call
        return call

    def _describe(self, workspace: "Workspace") -> PassStruct:
        call = workspace.describe(self.num_rows)
        call.num_sequences, call.sequences = len(self._sequences), ctypes.addressof(self._sequences)
        call.positions, call.storage_rows = self._positions.data_ptr(), self._storage_rows.data_ptr()
        call.cos, call.sin = self._decoder.cos.data_ptr(), self._decoder.sin.data_ptr()
        return call

    def keep(self, spans: list[Span]) -> None:
        """Go on with some of the spans alone; the rows of the others are not computed further."""
        first_rows = self._first_rows
        rows = [row for span in spans for row in range(first_rows[span], first_rows[span] + len(span.token_ids))]
        self._x = self._x[torch.tensor(rows, dtype=torch.int64)]
        self._set_spans(spans)

    def hidden(self, span: Span, num_rows: int) -> Tensor:
        """The last layer's output for the last ``num_rows`` of a span, ``[num_rows, hidden_size]``."""
        end = self._first_rows[span] + len(span.token_ids)
        return self._x[end - num_rows : end]

    def _set_spans(self, spans: list[Span]) -> None:
        self._described = None
        size = self._storage.block_tokens
        counts = (len(span.token_ids) for span in spans)
        self._first_rows = dict(zip(spans, accumulate(counts, initial=0), strict=False))
        # plain lists: a pass has few rows most of the time, for which tensors cost more than they save
        positions = [position for span in spans for position in range(span.start, span.end)]
        rows = [span.blocks[i // size] * size + i % size for span in spans for i in range(span.start, span.end)]
        self._positions = torch.tensor(positions, dtype=torch.int64)
        self._storage_rows = torch.tensor(rows, dtype=torch.int64)
        # the structures point into these
        self._blocks = [(c_int64 * -(-span.end // size))(*span.blocks[: -(-span.end // size)]) for span in spans]
        self._sequences = (SequenceStruct * len(spans))(
            *(
                SequenceStruct(first, len(span.token_ids), span.start, ctypes.addressof(own))
                for (span, first), own in zip(self._first_rows.items(), self._blocks, strict=True)
            )
        )
