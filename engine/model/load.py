"""From an open checkpoint to a decoder in memory."""

import torch
from torch import Tensor

from engine.checkpoint.source import Checkpoint
from engine.errors import CheckpointError
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, Layer
from engine.model.layers import Rotary, rope_frequencies
from engine.model.linear import Linear


def load_decoder(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, num_positions: int
) -> tuple[Decoder, int]:
    """Read every parameter once, in ``dtype``, onto ``device``; return the decoder and the bytes it takes.

    Parameters are read one at a time and packed before the next is read, so the peak is the loaded size plus
    the largest parameter.
    """
    config = checkpoint.config
    shapes = checkpoint.parameter_shapes()
    _check_shapes(config, shapes)
    num_bytes = 0

    def read(name: str) -> Tensor:
        nonlocal num_bytes
        out = torch.empty(shapes[name], dtype=dtype)
        checkpoint.read_into(name, out)
        num_bytes += out.numel() * out.element_size()
        return out.to(device)

    def linear(name: str) -> Linear:
        bias = f"{name}.bias"
        return Linear(read(f"{name}.weight"), read(bias) if bias in shapes else None)

    def layer(index: int) -> Layer:
        at = f"layers.{index}"
        return Layer(
            attn_norm=read(f"{at}.attn_norm"),
            qkv=linear(f"{at}.qkv"),
            output=linear(f"{at}.output"),
            ffn_norm=read(f"{at}.ffn_norm"),
            gate_up=linear(f"{at}.gate_up"),
            down=linear(f"{at}.down"),
        )

    # The head is the largest product and exists twice while it is packed, so it comes first. A tied head is
    # packed as well: a step reads all of it, but only single rows of the embedding.
    head = None if config.is_tied else linear("head")
    embedding = read("embedding")
    head = head or Linear(embedding)
    if config.is_tied and head.is_packed:
        num_bytes += head.num_bytes
    layers = [layer(index) for index in range(config.num_layers)]
    rotary = Rotary(rope_frequencies(config, checkpoint.rope_factors()), num_positions, dtype, device)
    return Decoder(config, embedding, layers, read("norm"), head, rotary), num_bytes


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
