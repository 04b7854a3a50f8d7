"""Packed weights on disk, so that a model is packed once: one file in the cache for each model and precision.

It is read into memory and checked by sums, two tensors at a time, and never mapped: what happens to the file later
must not end a running service. Whatever is wrong with it, the answer is the same: the weights are packed again.
"""

import json
import logging
import math
import os
import struct
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.packed import packed_path
from engine.model.config import ModelConfig
from engine.model.native.forms import Form
from engine.model.native.weights import LayerWeights, Weights

_logger = logging.getLogger(__name__)
_MAGIC = b"midline packed weights 1\n"
_LENGTH = struct.Struct("<QI")  # of the header, and its checksum
_ALIGNMENT = 64
_FREE_BYTES = 1 << 30
_DTYPES = {str(dtype): dtype for dtype in (torch.uint8, torch.float32, torch.bfloat16)}


def read_packed(model: Path, precision: str, config: ModelConfig) -> Weights | None:
    """The packed weights of a model; None when there are none, or none that are whole and of this very model."""
    path = packed_path(model, precision)
    try:
        with path.open("rb") as file:
            header = _read_header(file)
            if header["key"] != _key(model):
                _logger.warning("the packed weights of %s are of another version of it and are made again", model)
                return None
            tensors = _read_tensors(file.fileno(), header["tensors"])
        weights = _assembled(tensors, header["forms"], header["num_layers"])
        weights.check(config)
        return weights
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - there is nothing that a damaged header cannot provoke
        _logger.warning("%s is damaged (%s); the weights are packed again", path, error)
        return None


def write_packed(model: Path, precision: str, weights: Weights) -> None:
    """Keep packed weights for the next start; a disk that is full is no reason to fail."""
    path = packed_path(model, precision)
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = os.statvfs(path.parent) if hasattr(os, "statvfs") else None
        if free and free.f_bavail * free.f_frsize < weights.num_bytes + _FREE_BYTES:
            _logger.warning("%s has no room for the packed weights of %s; each start packs them", path.parent, model)
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".part", delete=False) as file:
            part = Path(file.name)
            _write(file, _key(model), weights)
        part.replace(path)
        part = None
    except OSError as error:
        _logger.warning("the packed weights of %s cannot be kept (%s); each start packs them", model, error)
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _key(model: Path) -> list[list[Any]]:
    """Names, sizes and times of the model's files."""
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _named_tensors(weights: Weights) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """All tensors by name, and what else there is to know of the forms."""
    named: dict[str, Tensor | Form] = {name: getattr(weights, name) for name in ("embedding", "norm", "head")}
    for index, layer in enumerate(weights.layers):
        named |= {f"layers.{index}.{field.name}": getattr(layer, field.name) for field in fields(layer)}
    tensors: dict[str, Tensor] = {}
    forms: dict[str, list[int]] = {}
    for name, value in named.items():
        if isinstance(value, Tensor):
            tensors[name] = value
            continue
        forms[name] = [value.kind, value.outputs, value.inputs]
        parts = {"data": value.data, "scales": value.scales, "bias": value.bias}
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items() if tensor is not None}
    return tensors, forms


def _write(file: Any, key: list[list[Any]], weights: Weights) -> None:
    tensors, forms = _named_tensors(weights)
    raw = {name: _bytes(tensor) for name, tensor in tensors.items()}
    with ThreadPoolExecutor(2) as pool:
        sums = list(pool.map(zlib.crc32, raw.values()))
    table, offset = {}, 0
    for (name, tensor), checksum in zip(tensors.items(), sums, strict=True):
        table[name] = [str(tensor.dtype), list(tensor.shape), offset, checksum]
        offset += -(-len(raw[name]) // _ALIGNMENT) * _ALIGNMENT
    header = {"key": key, "num_layers": len(weights.layers), "forms": forms, "tensors": table}
    text = json.dumps(header).encode()
    file.write(_MAGIC + _LENGTH.pack(len(text), zlib.crc32(text)) + text)
    start = file.tell()
    for name, (_, _, position, _) in table.items():
        file.seek(start + position)
        file.write(raw[name])


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(torch.uint8).view(-1).numpy().data)


def _read_header(file: Any) -> dict[str, Any]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as such a file does")
    length, checksum = _LENGTH.unpack(file.read(_LENGTH.size))
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise ValueError("the header's checksum is wrong")
    header: dict[str, Any] = json.loads(text)
    for row in header["tensors"].values():
        row[2] += file.tell()
    return header


def _read_tensors(descriptor: int, table: dict[str, list[Any]]) -> dict[str, Tensor]:
    size = os.fstat(descriptor).st_size

    def read(row: list[Any]) -> Tensor:
        dtype, shape, offset, checksum = row
        if math.prod(shape) * _DTYPES[dtype].itemsize > size - offset:
            raise ValueError("it ends too early")
        out = torch.empty(shape, dtype=_DTYPES[dtype])
        raw = _bytes(out)
        position = 0
        while position < len(raw):  # a single read stops at 2 GiB
            count = os.preadv(descriptor, [raw[position:]], offset + position)
            if count == 0:
                raise ValueError("it ends too early")
            position += count
        if zlib.crc32(raw) != checksum:
            raise ValueError("a checksum is wrong")
        return out

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(table, pool.map(read, table.values()), strict=True))


def _assembled(tensors: dict[str, Tensor], forms: dict[str, list[int]], num_layers: int) -> Weights:
    def part(name: str) -> Any:
        if name not in forms:
            return tensors[name]
        kind, outputs, inputs = map(int, forms[name])
        data, scales, bias = tensors[f"{name}.data"], tensors.get(f"{name}.scales"), tensors.get(f"{name}.bias")
        return Form(kind, outputs, inputs, data, scales, bias)

    names = [field.name for field in fields(LayerWeights)]
    layers = tuple(LayerWeights(**{name: part(f"layers.{i}.{name}") for name in names}) for i in range(num_layers))
    return Weights(part("embedding"), layers, part("norm"), part("head"))
