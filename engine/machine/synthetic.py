"""Models with random weights, for measuring: only their shape matters. Light."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

CONTEXT_TOKENS = 2048
_CONTROL = ("<|endoftext|>", "<|begin|>", "<|end|>", "<|pad|>")
_VOCAB = 256 + len(_CONTROL)
_BLOCK_NUMBERS = 2**20


@dataclass(frozen=True)
class SyntheticShape:
    """Sizes of a decoder whose vocabulary is the bytes."""

    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def write_synthetic_model(folder: Path, shape: SyntheticShape, seed: int = 0, is_repeating: bool = False) -> Path:
    """Write a Hugging Face folder; returns it. With ``is_repeating`` its weights repeat themselves: far quicker."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": _VOCAB,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 256,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    rng = np.random.default_rng(seed)
    block = rng.standard_normal(_BLOCK_NUMBERS, dtype=np.float32).astype(np.float16) if is_repeating else None
    weights = {name: _random(rng, size, block) for name, size in _parameters(shape)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _parameters(shape: SyntheticShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes; matrices are ``[out, in]``."""
    hidden = shape.hidden_size
    yield "model.embed_tokens.weight", (_VOCAB, hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (_VOCAB, hidden)
    for index in range(shape.num_layers):
        at = f"model.layers.{index}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        for name, heads in (("q", shape.num_heads), ("k", shape.num_kv_heads), ("v", shape.num_kv_heads)):
            yield f"{at}self_attn.{name}_proj.weight", (heads * shape.head_dim, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, shape.num_heads * shape.head_dim)
        yield at + "mlp.gate_proj.weight", (shape.ffn_size, hidden)
        yield at + "mlp.up_proj.weight", (shape.ffn_size, hidden)
        yield at + "mlp.down_proj.weight", (hidden, shape.ffn_size)


def _random(
    rng: np.random.Generator, size: tuple[int, ...], block: npt.NDArray[np.float16] | None
) -> npt.NDArray[np.floating]:
    if len(size) == 1:
        return np.ones(size, dtype=np.float32)
    if block is not None:
        return np.resize(block, size)
    return np.asarray(rng.standard_normal(size) * size[-1] ** -0.5, dtype=np.float32)


def _tokenizer() -> dict[str, object]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data: dict[str, object] = json.loads(tokenizer.to_str())
    data["added_tokens"] = [{"id": 256 + i, "content": text, **flags} for i, text in enumerate(_CONTROL)]
    return data
