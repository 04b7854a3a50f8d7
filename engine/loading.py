"""From a model's name to everything that runs it: weights, vocabulary, prompts and cache."""

import logging
import math
from dataclasses import dataclass

import torch

from engine.cache.kv_cache import KVCache
from engine.cache.pool import BlockPool
from engine.cache.storage import KVStorage
from engine.checkpoint.source import open_checkpoint
from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.errors import CheckpointError, ConfigError
from engine.fim import PromptBuilder, detect_family, family_named
from engine.healing import Vocabulary
from engine.machine.memory import Budget, available_bytes, budget, choose_precision, resident_bytes
from engine.machine.predict import DEFAULT_CACHE_BYTES, ModelSize, memory_bytes, size_of, weight_bytes
from engine.model.config import ModelConfig
from engine.model.contract import AnyDecoder
from engine.model.kernels import Kernels, choose_kernels
from engine.model.load import load_decoder
from engine.model.native.decoder import BLOCK_TOKENS
from engine.model.native.load import load_native_decoder

_logger = logging.getLogger(__name__)
_BATCH_TOKENS = 128 * 1024
"""In the cache of the ``batch`` profile: the largest batch, of requests as long as they usually are at most."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory."""

    name: str
    precision: str
    """``int8``, ``mixed``, ``int4``, or the number format of the weights."""
    kernels: str
    """``Kernels.name``"""
    decoder: AnyDecoder
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


def load_model(
    name: str, config: EngineConfig, dtype: torch.dtype, device: torch.device, reserved_bytes: int = 0
) -> LoadedModel:
    """Read a model into memory; takes seconds. Raises ``ModelError`` and ``ConfigError``.

    ``reserved_bytes`` is memory that this process will take for something else.
    """
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
    vocabulary = Vocabulary.of(tokenizer)
    prompts = PromptBuilder(family, vocabulary, context_tokens)
    kernels = choose_kernels(config, shape, dtype, device)
    size = size_of(shape, checkpoint.four_bit_share())
    memory = _budget(config, device, reserved_bytes)
    precision = _fitting(config, size, kernels, context_tokens, memory)
    cache_room = memory.room_bytes - weight_bytes(size, precision, kernels.is_native)
    num_blocks = _num_blocks(config, shape, context_tokens, dtype, cache_room)
    decoder: AnyDecoder
    if kernels.is_native and precision != "exact":
        decoder, num_weight_bytes = load_native_decoder(checkpoint, model.path, precision, context_tokens)
    else:
        decoder, num_weight_bytes = load_decoder(checkpoint, dtype, device, context_tokens, precision)
    storage = KVStorage(shape, num_blocks, BLOCK_TOKENS, dtype, device)
    namespace = f"{model.path} {precision} {family.name}"
    return LoadedModel(
        name=model.name,
        precision=str(dtype).removeprefix("torch.") if precision == "exact" else precision,
        kernels=kernels.name,
        decoder=decoder,
        vocabulary=vocabulary,
        prompts=prompts,
        storage=storage,
        cache=KVCache(BlockPool(num_blocks, BLOCK_TOKENS), storage, namespace),
        context_tokens=context_tokens,
        num_parameters=sum(math.prod(size) for size in checkpoint.parameter_shapes().values()),
        num_bytes=num_weight_bytes + storage.num_bytes,
    )


def _budget(config: EngineConfig, device: torch.device, reserved_bytes: int) -> Budget:
    """Of the memory where weights and cache will be."""
    if device.type == "cuda":
        taken, free = torch.cuda.memory_reserved(device), int(torch.cuda.mem_get_info(device)[0])
    else:
        taken, free = resident_bytes(), available_bytes()
    return budget(config.max_memory_mb, free, taken, reserved_bytes)


def _fitting(config: EngineConfig, size: ModelSize, kernels: Kernels, context_tokens: int, memory: Budget) -> str:
    """The precision to load in: the one that was chosen, or a smaller one if that takes too much memory."""
    sizes = memory_bytes(size, context_tokens, config.kv_cache_mb, kernels.is_native, memory.other_bytes)
    possible = {name: sizes[name] for name in kernels.possible}
    precision, message = choose_precision(kernels.precision, possible, memory.allowed_bytes)
    if message:
        _logger.warning("%s", message)
    return precision


def _num_blocks(
    config: EngineConfig, shape: ModelConfig, context_tokens: int, dtype: torch.dtype, room_bytes: int
) -> int:
    """Blocks of the cache, with the null block. Raises ``ConfigError`` when one context does not fit."""
    token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize
    block_bytes = token_bytes * BLOCK_TOKENS
    least = -(-context_tokens // BLOCK_TOKENS) + 1
    if config.kv_cache_mb:
        wanted = config.kv_cache_mb * 2**20 // block_bytes
        if wanted < least:
            raise ConfigError(
                f"engine.kv_cache_mb is {config.kv_cache_mb}; a context of {context_tokens} tokens takes "
                f"{-(-least * block_bytes // 2**20)} MiB: allow that much, or lower engine.max_context_tokens"
            )
        return wanted
    wanted_bytes = DEFAULT_CACHE_BYTES
    if config.profile == "batch":  # what runs together is as much as there is room for
        wanted_bytes = max(wanted_bytes, min(room_bytes, _BATCH_TOKENS * token_bytes))
    return max(least, wanted_bytes // block_bytes)
