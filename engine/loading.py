"""From a model's name to everything that runs it: weights, vocabulary, prompts and cache."""

import math
from dataclasses import dataclass

import psutil
import torch

from engine.cache.kv_cache import KVCache
from engine.cache.pool import BlockPool
from engine.cache.storage import KVStorage
from engine.checkpoint.source import open_checkpoint
from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.errors import CheckpointError, ConfigError
from engine.fim import PromptBuilder, detect_family, family_named
from engine.generation import Vocabulary
from engine.healing import ByteVocabulary
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.linear import can_int8
from engine.model.load import load_decoder

_BLOCK_TOKENS = 16
_DEFAULT_CACHE_MB = 256
_MAX_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory."""

    name: str
    precision: str
    """``int8``, or the number format of the weights."""
    decoder: Decoder
    vocabulary: Vocabulary
    prompts: PromptBuilder
    storage: KVStorage
    cache: KVCache
    context_tokens: int
    num_parameters: int
    num_bytes: int
    """Weights and cache."""

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary: a padded embedding has rows that are no tokens."""
        return self.vocabulary.tokenizer.vocab_size


def load_model(name: str, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """Read a model into memory; takes seconds. Raises ``ModelError`` and ``ConfigError``."""
    model = resolve_model(name)
    checkpoint = open_checkpoint(model.path)
    shape, tokenizer = checkpoint.config, checkpoint.load_tokenizer()
    if tokenizer.vocab_size > shape.vocab_size:
        raise CheckpointError(
            f"{model.path} has {tokenizer.vocab_size} tokens in its vocabulary, {shape.vocab_size} in its embedding"
        )
    wanted = config.fim_family if config.fim_family != "auto" else model.fim_family
    family = detect_family(tokenizer, shape.architecture, model.name) if wanted == "auto" else family_named(wanted)
    context_tokens = min(config.max_context_tokens, shape.context_tokens)
    prompts = PromptBuilder(family, tokenizer, context_tokens)
    num_blocks = _num_blocks(config, shape, context_tokens, dtype)
    is_int8 = _is_int8(config.precision, dtype, device)
    decoder, weight_bytes = load_decoder(checkpoint, dtype, device, context_tokens, is_int8)
    storage = KVStorage(shape, num_blocks, _BLOCK_TOKENS, dtype, device)
    precision = "int8" if is_int8 else str(dtype).removeprefix("torch.")
    namespace = f"{model.path} {precision} {family.name}"
    return LoadedModel(
        name=model.name,
        precision=precision,
        decoder=decoder,
        vocabulary=Vocabulary(tokenizer, ByteVocabulary(tokenizer.all_bytes)),
        prompts=prompts,
        storage=storage,
        cache=KVCache(BlockPool(num_blocks, _BLOCK_TOKENS), storage, namespace),
        context_tokens=context_tokens,
        num_parameters=sum(math.prod(size) for size in checkpoint.parameter_shapes().values()),
        num_bytes=weight_bytes + storage.num_bytes,
    )


def _is_int8(precision: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Raises ``ConfigError`` when int8 is asked for and cannot be had."""
    is_possible = device.type == "cpu" and dtype == torch.bfloat16 and can_int8()
    if precision == "int8" and not is_possible:
        raise ConfigError(
            "engine.precision is 'int8'; that needs a CPU with VNNI instructions and engine.dtype bfloat16: "
            "choose 'exact' or 'auto'"
        )
    return is_possible and precision != "exact"


def _num_blocks(config: EngineConfig, shape: ModelConfig, context_tokens: int, dtype: torch.dtype) -> int:
    """Blocks of the cache, with the null block. Raises ``ConfigError`` when one context does not fit."""
    token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize
    block_bytes = token_bytes * _BLOCK_TOKENS
    least = -(-context_tokens // _BLOCK_TOKENS) + 1
    if config.kv_cache_mb:
        wanted = config.kv_cache_mb * 2**20 // block_bytes
        if wanted < least:
            raise ConfigError(
                f"engine.kv_cache_mb is {config.kv_cache_mb}; a context of {context_tokens} tokens takes "
                f"{-(-least * block_bytes // 2**20)} MiB: allow that much, or lower engine.max_context_tokens"
            )
        return wanted
    allowed = int(psutil.virtual_memory().available * _MAX_MEMORY_SHARE) // block_bytes
    return max(least, min(allowed, _DEFAULT_CACHE_MB * 2**20 // block_bytes))
