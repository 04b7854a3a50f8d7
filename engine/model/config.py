"""Shape and constants of a decoder, as the checkpoint states them. Light: imports no torch.

Nothing here is a default of ours: what a checkpoint must say and does not is an error.
"""

from collections.abc import Mapping
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

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values per token at two bytes a number."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 2


SUPPORTED_ARCHITECTURES = ("qwen2", "llama")


def _check_architecture(name: str, source: str) -> None:
    if name not in SUPPORTED_ARCHITECTURES:
        known = " and ".join(SUPPORTED_ARCHITECTURES)
        raise CheckpointError(f"{source} has architecture {name!r}; {known} are supported")


def config_from_gguf(metadata: Mapping[str, Any], vocab_size: int, is_tied: bool, source: str) -> ModelConfig:
    """Read ``{architecture}.*`` keys. ``source`` names the file in errors."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{source} does not name its architecture (general.architecture)")
    _check_architecture(architecture, source)

    def need(key: str) -> Any:
        value = metadata.get(f"{architecture}.{key}")
        if value is None:
            raise CheckpointError(f"{source} lacks the key {architecture}.{key}")
        return value

    def get(key: str, otherwise: Any) -> Any:
        return metadata.get(f"{architecture}.{key}", otherwise)

    num_heads, hidden_size = int(need("attention.head_count")), int(need("embedding_length"))
    scaling = get("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise CheckpointError(f"{source} uses rope scaling {scaling!r}; none and linear are supported in GGUF")
    return ModelConfig(
        architecture=architecture,
        num_layers=int(need("block_count")),
        hidden_size=hidden_size,
        ffn_size=int(need("feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(get("attention.head_count_kv", num_heads)),
        head_dim=int(get("attention.key_length", get("rope.dimension_count", hidden_size // num_heads))),
        vocab_size=vocab_size,
        context_tokens=int(need("context_length")),
        rms_eps=float(need("attention.layer_norm_rms_epsilon")),
        # the GGUF specification's value where the key is absent
        rope_theta=float(get("rope.freq_base", 10000.0)),
        rope_scaling=RopeScaling("linear", float(need("rope.scaling.factor"))) if scaling == "linear" else None,
        has_qkv_bias=architecture == "qwen2",
        is_tied=is_tied,
    )


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
    # newer files keep all rotary values in one table
    rope = {**data, **(data.get("rope_parameters") or {})}
    try:
        num_heads, hidden_size = int(data["num_attention_heads"]), int(data["hidden_size"])
        return ModelConfig(
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
    except KeyError as error:
        raise CheckpointError(f"{source} lacks the key {error.args[0]!r}") from None
