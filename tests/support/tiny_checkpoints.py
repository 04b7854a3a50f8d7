"""Tiny random checkpoints in both containers, with a real byte-level BPE tokenizer and the qwen markers.

The same seed gives the same weights in a GGUF file and in a Hugging Face folder, so that one can be compared with
the other, and either with ``transformers``. Fast enough for every test (no torch, no transformers).
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType, TokenType
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from engine.checkpoint.pretokenizers import PATTERNS

CONTROL_TOKENS = (
    "<|endoftext|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
_CORPUS = [
    "def add(a, b):\n    return a + b\n\n\nclass Point:\n    def __init__(self, x, y):\n        self.x = x\n",
    "for i in range(10):\n    print(i)\n    if i == 3:\n        break\n",
    "import os\nimport sys\n\nfrom pathlib import Path\n\nwith open(path) as file:\n    return file.read()\n",
]


@dataclass(frozen=True)
class TinyShape:
    """A decoder small enough for a unit test."""

    architecture: str = "qwen2"
    num_layers: int = 2
    hidden_size: int = 64
    ffn_size: int = 128
    num_heads: int = 4
    num_kv_heads: int = 2
    context_tokens: int = 2048
    rope_theta: float = 10000.0
    rms_eps: float = 2.0**-20  # exact in float32, in which GGUF stores it
    is_tied: bool = False
    has_bias: bool = False
    """Biases in all attention products, as some llama checkpoints have; qwen2 has its own always."""
    own_head_dim: int = 0
    """Numbers per attention head where that is not the hidden size divided by the heads."""
    num_padding_tokens: int = 0
    """Rows of the embedding beyond the vocabulary; negative ones are missing."""

    @property
    def head_dim(self) -> int:
        """Numbers per attention head."""
        return self.own_head_dim or self.hidden_size // self.num_heads


@functools.cache
def tiny_tokenizer(vocab_size: int = 400) -> Tokenizer:
    """A byte-level BPE tokenizer trained on a few lines, without control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS["qwen2"]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def tiny_pieces(control: tuple[str, ...] = CONTROL_TOKENS) -> list[str]:
    """All pieces by id, control tokens last."""
    vocabulary = tiny_tokenizer().get_vocab()
    return [*sorted(vocabulary, key=vocabulary.__getitem__), *control]


def tiny_merges() -> list[str]:
    """The merges in GGUF's notation."""
    merges = json.loads(tiny_tokenizer().to_str())["model"]["merges"]
    return [" ".join(merge) if isinstance(merge, list) else merge for merge in merges]


def tiny_weights(shape: TinyShape, vocab_size: int, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random parameters under their Hugging Face names, row-major ``[out, in]``."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def vector(size: int, mean: float = 0.0) -> npt.NDArray[np.float32]:
        return (mean + 0.1 * rng.standard_normal(size)).astype(np.float32)

    hidden, kv, heads = shape.hidden_size, shape.num_kv_heads * shape.head_dim, shape.num_heads * shape.head_dim
    vocab_size += shape.num_padding_tokens
    weights = {"model.embed_tokens.weight": matrix(vocab_size, hidden), "model.norm.weight": vector(hidden, 1.0)}
    if not shape.is_tied:
        weights["lm_head.weight"] = matrix(vocab_size, hidden)
    for index in range(shape.num_layers):
        at = f"model.layers.{index}."
        weights[at + "input_layernorm.weight"] = vector(hidden, 1.0)
        weights[at + "post_attention_layernorm.weight"] = vector(hidden, 1.0)
        for name, rows in (("q", heads), ("k", kv), ("v", kv)):
            weights[f"{at}self_attn.{name}_proj.weight"] = matrix(rows, hidden)
            if shape.architecture == "qwen2" or shape.has_bias:
                weights[f"{at}self_attn.{name}_proj.bias"] = vector(rows)
        weights[at + "self_attn.o_proj.weight"] = matrix(hidden, heads)
        if shape.has_bias:
            weights[at + "self_attn.o_proj.bias"] = vector(hidden)
        weights[at + "mlp.gate_proj.weight"] = matrix(shape.ffn_size, hidden)
        weights[at + "mlp.up_proj.weight"] = matrix(shape.ffn_size, hidden)
        weights[at + "mlp.down_proj.weight"] = matrix(hidden, shape.ffn_size)
    return weights


def write_tiny_folder(folder: Path, shape: TinyShape = TinyShape(), seed: int = 0) -> Path:  # frozen
    """Write a Hugging Face folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = tiny_pieces()
    config = {
        "architectures": [{"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[shape.architecture]],
        "model_type": shape.architecture,
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "vocab_size": len(pieces) + shape.num_padding_tokens,
        "head_dim": shape.head_dim,
        "attention_bias": shape.has_bias,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.is_tied,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": pieces.index("<|endoftext|>"),
        "bos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tiny_weights(shape, len(pieces), seed), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = json.loads(tiny_tokenizer().to_str())
    first = len(pieces) - len(CONTROL_TOKENS)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] = [{"id": first + i, "content": text, **flags} for i, text in enumerate(CONTROL_TOKENS)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    inner = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    stem, kind = name.rsplit(".", 1)
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, index, rest = stem.split(".", 3)
    return f"blk.{index}.{inner[rest]}.{kind}"


def _permuted(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """The row order that llama exports use for queries and keys."""
    rows = weight.shape[0]
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_tiny_gguf(
    path: Path,
    shape: TinyShape = TinyShape(),  # frozen
    seed: int = 0,
    *,
    block_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    control: tuple[str, ...] = CONTROL_TOKENS,
    pre: str = "qwen2",
    rope: dict[str, object] | None = None,
    rope_factors: npt.NDArray[np.float32] | None = None,
    weights: dict[str, npt.NDArray[np.float32]] | None = None,
) -> Path:
    """Write a GGUF file whose matrices are stored as ``block_type``; returns its path.

    ``rope`` holds further ``rope.*`` keys, ``rope_factors`` the divisors of the rotary frequencies. ``weights`` take
    the place of the random ones.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pieces = tiny_pieces(control)
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.ffn_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_key_length(shape.head_dim)
    for key, value in (rope or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{shape.architecture}.rope.{key}", value)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    num_plain = len(pieces) - len(control)
    writer.add_token_types([TokenType.NORMAL] * num_plain + [TokenType.CONTROL] * len(control))
    writer.add_token_merges(tiny_merges())
    if "<|endoftext|>" in control:
        writer.add_eos_token_id(pieces.index("<|endoftext|>"))
    for name, weight in (weights or tiny_weights(shape, len(pieces), seed)).items():
        if shape.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            weight = _permuted(weight, shape.num_heads if ".q_proj." in name else shape.num_kv_heads)
        if weight.ndim == 2 and block_type is not GGMLQuantizationType.F32:
            writer.add_tensor(_gguf_name(name), gguf.quantize(weight, block_type), raw_dtype=block_type)
        else:
            writer.add_tensor(_gguf_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
