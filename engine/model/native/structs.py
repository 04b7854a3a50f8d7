"""The structures of ``kernels.cpp``, field by field."""

import ctypes
from ctypes import Structure, c_float, c_int64, c_void_p


class FormStruct(Structure):
    """How one weight matrix is kept."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "outputs", "inputs")),
        *((name, c_void_p) for name in ("data", "scales", "bias")),
    ]


class ShapeStruct(Structure):
    """What all layers have in common."""

    _fields_ = [
        *((name, c_int64) for name in ("hidden", "num_heads", "num_kv_heads", "head_dim", "ffn")),
        ("eps", c_float),
    ]


class LayerStruct(Structure):
    """One layer's parameters."""

    _fields_ = [
        *((name, FormStruct) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attn_norm", "ffn_norm")),
    ]


class SequenceStruct(Structure):
    """Some rows of a pass that belong to one sequence."""

    _fields_ = [
        *((name, c_int64) for name in ("first_row", "num_rows", "first_position")),
        ("blocks", c_void_p),
    ]


class PassStruct(Structure):
    """What one pass computes, and memory to compute in."""

    _fields_ = [
        *((name, c_int64) for name in ("num_rows", "num_sequences", "num_threads", "most_inputs")),
        *((name, c_void_p) for name in ("sequences", "positions", "storage_rows", "cos", "sin")),
        *((name, c_void_p) for name in ("activations", "scales", "sums", "heads", "attended", "gated", "queries")),
        ("scratch", c_void_p),
    ]


def bind(library: ctypes.CDLL) -> None:
    """Say what the functions take, so that a wrong call is an error instead of a crash."""
    pointer = c_void_p
    library.midline_layer.argtypes = [pointer] * 6
    library.midline_attention.argtypes = [pointer] * 4
    library.midline_product.argtypes = [pointer, pointer, pointer, pointer, c_float, pointer, pointer, c_int64]
    library.midline_best.argtypes = [*[pointer] * 4, c_float, c_int64, *[pointer] * 4]
    library.midline_pack_int8.argtypes = [pointer, c_int64, c_int64, pointer, pointer]
    library.midline_use_matrices.argtypes, library.midline_use_matrices.restype = [c_int64], c_int64
    for name in ("layer", "attention", "product", "best", "pack_int8"):
        getattr(library, f"midline_{name}").restype = None
