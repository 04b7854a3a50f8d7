"""Small caches: a decoder with one of its own, and an engine whose cache is soon full."""

from pathlib import Path

import pytest
import torch

from engine.cache.kv_cache import BlockTable, KVCache
from engine.cache.pool import BlockPool
from engine.cache.storage import KVStorage
from engine.checkpoint.source import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.model.batch import Span
from engine.model.decoder import Decoder, ForwardPass
from engine.model.load import load_decoder
from tests.support.native import NATIVE_SHAPE
from tests.support.tiny_checkpoints import write_tiny_gguf

CPU = torch.device("cpu")


class Rig:
    """A float32 decoder and a pool of small blocks; what is freed is poisoned at once."""

    def __init__(self, path: Path, num_blocks: int = 160, block_tokens: int = 4, context_tokens: int = 64) -> None:
        checkpoint = open_checkpoint(path)
        self.decoder: Decoder
        self.decoder, _ = load_decoder(checkpoint, torch.float32, CPU, context_tokens)
        self.storage = KVStorage(checkpoint.config, num_blocks, block_tokens, torch.float32, CPU)
        self.cache = KVCache(BlockPool(num_blocks, block_tokens), self.storage, "test")
        poison_freed_blocks(self.cache, self.storage)

    def table(self, token_ids: list[int], max_tokens: int) -> BlockTable:
        table = self.cache.reserve(token_ids, max_tokens)
        assert table is not None
        return table

    def start(self, *parts: tuple[BlockTable, list[int], int]) -> ForwardPass:
        """A pass over ``(table, tokens, position of the first)``."""
        return self.decoder.start([Span(ids, start, table.blocks) for table, ids, start in parts], self.storage)

    def logits(self, forward: ForwardPass) -> torch.Tensor:
        """Logits of every row, in the order of the batch's spans."""
        while not forward.is_done:
            forward.advance()
        hidden = [forward.hidden(span, len(span.token_ids)) for span in forward.batch.spans]
        return self.decoder.logits(torch.cat(hidden))


def small_engine(folder: Path, patch: pytest.MonkeyPatch, num_blocks: int) -> Engine:
    """A tiny float32 engine with blocks of 4 tokens and a context of 96 (24 blocks)."""
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_gguf(path, seed=1)
    patch.setattr("engine.loading.BLOCK_TOKENS", 4)
    patch.setattr("engine.loading._num_blocks", lambda *_: num_blocks)
    return Engine.load(EngineConfig(model=str(path), dtype="float32", max_context_tokens=96))


def small_native_engine(folder: Path, patch: pytest.MonkeyPatch, num_blocks: int, precision: str) -> Engine:
    """The same in compiled code, whose blocks are of 16 tokens (6 for a context)."""
    path = folder / "native.gguf"
    if not path.exists():
        write_tiny_gguf(path, NATIVE_SHAPE, seed=1)
    patch.setattr("engine.loading._num_blocks", lambda *_: num_blocks)
    engine = Engine.load(EngineConfig(model=str(path), precision=precision, max_context_tokens=96))
    assert (engine.info.kernels, engine.info.dtype) == ("native", precision)
    return engine


def poison_freed_blocks(cache: KVCache, storage: KVStorage) -> None:
    """Whoever reads a block that nobody holds, reads NaN."""
    release = cache.pool.release

    def poisoning(block: int) -> bool:
        is_free = release(block)
        if is_free:
            storage.fill([block], torch.nan)
        return is_free

    cache.pool.release = poisoning  # type: ignore[method-assign]
