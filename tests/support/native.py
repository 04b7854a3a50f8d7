"""Models of a shape that the compiled kernels are made for, and their decoder on a cache of its own."""

from pathlib import Path

import torch

from engine.cache.storage import KVStorage
from engine.checkpoint.source import open_checkpoint
from engine.model.batch import Span
from engine.model.config import ModelConfig
from engine.model.native.decoder import BLOCK_TOKENS, NativeDecoder, NativePass
from engine.model.native.load import load_native_decoder
from tests.support.tiny_checkpoints import TinyShape

NATIVE_SHAPE = TinyShape(own_head_dim=64)
_CPU = torch.device("cpu")


def native_config(**sizes: int) -> ModelConfig:
    """A configuration by itself, without a checkpoint."""
    given = {"num_layers": 1, "hidden_size": 64, "ffn_size": 64, "num_heads": 1, "num_kv_heads": 1, "head_dim": 64}
    constants = {"rms_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "has_qkv_bias": False}
    return ModelConfig(
        architecture="qwen2",
        **{**given, "vocab_size": 100, "context_tokens": 512, **sizes},
        **constants,  # type: ignore[arg-type]
    )


class NativeRig:
    """A decoder in compiled code, and blocks that all hold NaN until they are written."""

    def __init__(self, path: Path, precision: str, num_blocks: int = 40, context_tokens: int = 320) -> None:
        checkpoint = open_checkpoint(path)
        self.decoder: NativeDecoder
        self.decoder, _ = load_native_decoder(checkpoint, path, precision, context_tokens)
        self.storage = KVStorage(checkpoint.config, num_blocks, BLOCK_TOKENS, torch.bfloat16, _CPU)
        self.forget()

    def forget(self) -> None:
        """Whoever reads what was not written since reads what would change everything, were its weight not 0."""
        self.storage.fill(list(range(self.storage._blocks.shape[2])), 1e30)

    def start(self, *spans: Span) -> NativePass:
        return self.decoder.start(list(spans), self.storage)

    def hidden(self, *spans: Span) -> list[torch.Tensor]:
        """The last layer's output for all rows of each span."""
        forward = self.start(*spans)
        while not forward.is_done:
            forward.advance()
        return [forward.hidden(span, len(span.token_ids)) for span in spans]

    def logits(self, *spans: Span) -> list[torch.Tensor]:
        return [self.decoder.logits(hidden) for hidden in self.hidden(*spans)]
