"""From an open checkpoint to a decoder in compiled code."""

from pathlib import Path

import torch

from engine.checkpoint.source import Checkpoint
from engine.model.layers import rope_frequencies
from engine.model.load import check_shapes
from engine.model.native.decoder import NativeDecoder
from engine.model.native.packed_file import read_packed, write_packed
from engine.model.native.weights import Packer

_LEAST_KEPT_BYTES = 200_000_000  # less is packed about as fast as it is read


def load_native_decoder(
    checkpoint: Checkpoint, path: Path, precision: str, num_positions: int
) -> tuple[NativeDecoder, int]:
    """The decoder and the bytes it takes. Weights are packed once and then read from the cache.

    ``path`` is the checkpoint's, ``precision`` one of ``weights.PRECISIONS``. Raises ``CheckpointError``.
    """
    config = checkpoint.config
    check_shapes(config, checkpoint.parameter_shapes())
    weights = read_packed(path, precision, config)
    if weights is None:
        weights = Packer(checkpoint, precision).pack()
        if weights.num_bytes >= _LEAST_KEPT_BYTES:
            write_packed(path, precision, weights)
    frequencies = rope_frequencies(config, checkpoint.rope_factors())
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return NativeDecoder(config, weights, angles), weights.num_bytes
