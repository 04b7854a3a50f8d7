"""Where each of the decoder's parameters comes from, by container. Light: plain data.

The decoder's names are those of ``engine.model.decoder``. A fused parameter is read from several tensors that
are stacked along the output dimension, in this order.
"""

from engine.model.config import ModelConfig

# parameter of a layer -> the tensors it is stacked from, without their common prefix
_LAYER_GGUF = {
    "attn_norm": ("attn_norm.weight",),
    "qkv.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "qkv.bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "output.weight": ("attn_output.weight",),
    "output.bias": ("attn_output.bias",),
    "ffn_norm": ("ffn_norm.weight",),
    "gate_up.weight": ("ffn_gate.weight", "ffn_up.weight"),
    "down.weight": ("ffn_down.weight",),
}
_LAYER_HF = {
    "attn_norm": ("input_layernorm.weight",),
    "qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv.bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "output.weight": ("self_attn.o_proj.weight",),
    "output.bias": ("self_attn.o_proj.bias",),
    "ffn_norm": ("post_attention_layernorm.weight",),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down.weight": ("mlp.down_proj.weight",),
}
_TOP_GGUF = {"embedding": "token_embd.weight", "norm": "output_norm.weight", "head.weight": "output.weight"}
_TOP_HF = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head.weight": "lm_head.weight",
}

# parameter -> tensors it is stacked from
NameMap = dict[str, tuple[str, ...]]


def _name_map(config: ModelConfig, top: dict[str, str], layer: dict[str, tuple[str, ...]], prefix: str) -> NameMap:
    names: NameMap = {parameter: (tensor,) for parameter, tensor in top.items()}
    if config.is_tied:
        del names["head.weight"]
    for index in range(config.num_layers):
        for parameter, tensors in layer.items():
            if parameter == "qkv.bias" and not config.has_qkv_bias:
                continue
            if parameter == "output.bias" and not config.has_output_bias:
                continue
            stem = prefix.format(index)
            names[f"layers.{index}.{parameter}"] = tuple(stem + tensor for tensor in tensors)
    return names


def gguf_names(config: ModelConfig) -> NameMap:
    """The map for a GGUF file."""
    return _name_map(config, _TOP_GGUF, _LAYER_GGUF, "blk.{}.")


def hf_names(config: ModelConfig) -> NameMap:
    """The map for a Hugging Face checkpoint."""
    return _name_map(config, _TOP_HF, _LAYER_HF, "model.layers.{}.")
