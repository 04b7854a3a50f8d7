"""The published system that serves the same two workloads: its model's shape and its figures. Light.

The figures are those of snowch/llm-serving-from-scratch (bench/results, 2026-09-13). Its model has random weights as
well, so that only the shape matters.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

CONDITIONS = "4 vCPUs, torch 2.14, float32"
NUM_PARAMETERS = 5_838_080
CONTEXT_TOKENS = 2048
SERVING_KV_MB = 48
"""The published 1024 blocks of 16 tokens."""
OFFLINE_KV_MB = 192
"""The published 4096 blocks."""

SERVING_ROWS: tuple[dict[str, float], ...] = (
    {"cap": 1, "ttft_p50_ms": 554.2, "ttft_p95_ms": 818.7, "output_tokens_per_s": 126.63, "in_time_share": 0.0},
    {"cap": 4, "ttft_p50_ms": 175.9, "ttft_p95_ms": 338.2, "output_tokens_per_s": 170.72, "in_time_share": 0.125},
    {"cap": 16, "ttft_p50_ms": 61.1, "ttft_p95_ms": 89.3, "output_tokens_per_s": 171.04, "in_time_share": 0.417},
    {"cap": 64, "ttft_p50_ms": 42.3, "ttft_p95_ms": 80.0, "output_tokens_per_s": 172.05, "in_time_share": 0.75},
)
OFFLINE_ROWS: tuple[dict[str, float], ...] = (
    {"cap": 1, "wall_s": 14.619, "output_tokens_per_s": 135.92, "kv_peak_share": 0.036},
    {"cap": 4, "wall_s": 8.080, "output_tokens_per_s": 245.92, "kv_peak_share": 0.036},
    {"cap": 16, "wall_s": 7.998, "output_tokens_per_s": 248.45, "kv_peak_share": 0.036},
    {"cap": 64, "wall_s": 6.388, "output_tokens_per_s": 311.07, "kv_peak_share": 0.038},
)

_NUM_LAYERS = 6
_HIDDEN = 256
_FFN = 1024
_NUM_HEADS = 8
_NUM_KV_HEADS = 2
_HEAD_DIM = 32
_CONTROL = ("<|endoftext|>", "<|begin|>", "<|end|>", "<|pad|>")
_VOCAB = 256 + len(_CONTROL)


def write_published_model(folder: Path, seed: int = 0) -> Path:
    """Write a Hugging Face folder with random weights and a vocabulary of all bytes; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "num_hidden_layers": _NUM_LAYERS,
        "hidden_size": _HIDDEN,
        "intermediate_size": _FFN,
        "num_attention_heads": _NUM_HEADS,
        "num_key_value_heads": _NUM_KV_HEADS,
        "head_dim": _HEAD_DIM,
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
    weights = {name: _random(rng, shape) for name, shape in _parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _parameters() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes; matrices are ``[out, in]``."""
    yield "model.embed_tokens.weight", (_VOCAB, _HIDDEN)
    yield "model.norm.weight", (_HIDDEN,)
    yield "lm_head.weight", (_VOCAB, _HIDDEN)
    for index in range(_NUM_LAYERS):
        at = f"model.layers.{index}."
        yield at + "input_layernorm.weight", (_HIDDEN,)
        yield at + "post_attention_layernorm.weight", (_HIDDEN,)
        for name, heads in (("q", _NUM_HEADS), ("k", _NUM_KV_HEADS), ("v", _NUM_KV_HEADS)):
            yield f"{at}self_attn.{name}_proj.weight", (heads * _HEAD_DIM, _HIDDEN)
        yield at + "self_attn.o_proj.weight", (_HIDDEN, _NUM_HEADS * _HEAD_DIM)
        yield at + "mlp.gate_proj.weight", (_FFN, _HIDDEN)
        yield at + "mlp.up_proj.weight", (_FFN, _HIDDEN)
        yield at + "mlp.down_proj.weight", (_HIDDEN, _FFN)


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    return np.asarray(rng.standard_normal(shape) * shape[-1] ** -0.5, dtype=np.float32)


def _tokenizer() -> dict[str, object]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data: dict[str, object] = json.loads(tokenizer.to_str())
    data["added_tokens"] = [{"id": 256 + i, "content": text, **flags} for i, text in enumerate(_CONTROL)]
    return data
