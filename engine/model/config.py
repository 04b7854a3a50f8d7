"""Shape and constants of a decoder, as the checkpoint states them. Light: imports no torch.

Nothing here is a default of ours: what a checkpoint must say and does not is an error.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.errors import CheckpointError


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts: ``linear`` or ``llama3``."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Everything the decoder needs to know besides the weights."""

    architecture: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    has_qkv_bias: bool
    has_output_bias: bool = False
    is_tied: bool = False
    """The output projection is the embedding."""


SUPPORTED_ARCHITECTURES = ("qwen2", "llama")


def _check_architecture(name: str, source: str) -> None:
    if name not in SUPPORTED_ARCHITECTURES:
        known = " and ".join(SUPPORTED_ARCHITECTURES)
        raise CheckpointError(f"{source} has architecture {name!r}; {known} are supported")


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Turn what a damaged configuration provokes into one line that names the file."""
    try:
        yield
    except KeyError as error:
        raise CheckpointError(f"{source} lacks the key {error.args[0]}") from None
    except (AttributeError, OverflowError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{source} has an unusable configuration: {error}") from None


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    sizes = ("hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "context_tokens")
    for name in sizes:
        if getattr(config, name) <= 0:
            raise CheckpointError(f"{source} has an unusable configuration: {name} is {getattr(config, name)}")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{source} has an unusable configuration: {config.num_heads} heads, {config.num_kv_heads} key-value heads,"
            f" {config.head_dim} numbers each"
        )
    return config


def config_from_gguf(
    metadata: Mapping[str, Any], tensors: Collection[str], vocab_size: int, source: str
) -> ModelConfig:
    """Read ``{architecture}.*`` keys; ``tensors`` are the file's tensor names. ``source`` names the file in errors."""
    architecture = str(metadata.get("general.architecture"))
    _check_architecture(architecture, source)
    # keys of other architectures cannot be meant
    data = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    with _reading(source):
        num_heads, hidden_size = int(data["attention.head_count"]), int(data["embedding_length"])
        scaling = data.get("rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise CheckpointError(f"{source} uses rope scaling {scaling!r}; none and linear are supported in GGUF")
        config = ModelConfig(
            architecture=architecture,
            num_layers=int(data["block_count"]),
            hidden_size=hidden_size,
            ffn_size=int(data["feed_forward_length"]),
            num_heads=num_heads,
            num_kv_heads=int(data.get("attention.head_count_kv", num_heads)),
            head_dim=int(data.get("attention.key_length", data.get("rope.dimension_count", hidden_size // num_heads))),
            vocab_size=vocab_size,
            context_tokens=int(data["context_length"]),
            rms_eps=float(data["attention.layer_norm_rms_epsilon"]),
            # the GGUF specification's value where the key is absent
            rope_theta=float(data.get("rope.freq_base", 10000.0)),
            rope_scaling=RopeScaling("linear", float(data["rope.scaling.factor"])) if scaling == "linear" else None,
            has_qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
            has_output_bias="blk.0.attn_output.bias" in tensors,
            is_tied="output.weight" not in tensors,
        )
    return _checked(config, source)


def _rope_scaling_from_json(data: Mapping[str, Any], source: str) -> RopeScaling | None:
    kind = data.get("rope_type", data.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(data["factor"]))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            float(data["factor"]),
            float(data["low_freq_factor"]),
            float(data["high_freq_factor"]),
            int(data["original_max_position_embeddings"]),
        )
    raise CheckpointError(f"{source} uses rope scaling {kind!r}; default, linear and llama3 are supported")


def config_from_json(data: Mapping[str, Any], source: str) -> ModelConfig:
    """Read a Hugging Face ``config.json``. ``source`` names the file in errors."""
    architecture = str(data.get("model_type"))
    _check_architecture(architecture, source)
    if data.get("use_sliding_window"):
        raise CheckpointError(f"{source} asks for sliding-window attention, which is not supported")
    if data.get("mlp_bias"):
        raise CheckpointError(f"{source} asks for biases in the feed-forward layers, which is not supported")
    if data.get("hidden_act", "silu") not in ("silu", "swish"):
        raise CheckpointError(f"{source} uses the activation {data['hidden_act']!r}; silu is supported")
    with _reading(source):
        # newer files keep all rotary values in one table
        rope = {**data, **(data.get("rope_parameters") or {})}
        num_heads, hidden_size = int(data["num_attention_heads"]), int(data["hidden_size"])
        config = ModelConfig(
            architecture=architecture,
            num_layers=int(data["num_hidden_layers"]),
            hidden_size=hidden_size,
            ffn_size=int(data["intermediate_size"]),
            num_heads=num_heads,
            num_kv_heads=int(data.get("num_key_value_heads") or num_heads),
            head_dim=int(data.get("head_dim") or hidden_size // num_heads),
            vocab_size=int(data["vocab_size"]),
            context_tokens=int(data["max_position_embeddings"]),
            rms_eps=float(data["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta", 10000.0)),
            rope_scaling=_rope_scaling_from_json(data.get("rope_scaling") or data.get("rope_parameters") or {}, source),
            has_qkv_bias=architecture == "qwen2" or bool(data.get("attention_bias")),
            has_output_bias=architecture == "llama" and bool(data.get("attention_bias")),
            is_tied=bool(data.get("tie_word_embeddings")),
        )
    return _checked(config, source)
