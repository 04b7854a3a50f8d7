"""One contract over both containers: a checkpoint's configuration, and its parameters one at a time.

``read_into`` fills a given tensor, so that the loader decides dtype and memory. Nothing may be left over or
missing: a tensor the decoder does not use, or a parameter without tensor, is an error before anything is read.
"""

import json
import math
from pathlib import Path
from typing import Protocol

import torch
from gguf.constants import GGMLQuantizationType
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint import vocabulary
from engine.checkpoint.blocks import dequantize_into, has_groups, read_groups
from engine.checkpoint.gguf import GGUFFile
from engine.checkpoint.groups import Groups, stacked
from engine.checkpoint.names import NameMap, gguf_names, hf_names
from engine.errors import CheckpointError
from engine.model.config import ModelConfig, config_from_gguf, config_from_json
from engine.tokenizer import Tokenizer

_ROPE_FACTORS = "rope_freqs.weight"
# tensors beside the parameters: rotary factors, and what old exporters wrote although the configuration says it
_OTHER_SUFFIXES = (".rotary_emb.inv_freq", ".attn_rot_embd.weight", _ROPE_FACTORS)


class Checkpoint(Protocol):
    """An open checkpoint."""

    config: ModelConfig

    def load_tokenizer(self) -> Tokenizer:
        """The checkpoint's own tokenizer. Raises ``CheckpointError``."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter the decoder has."""

    def read_into(self, parameter: str, out: Tensor) -> None:
        """Fill ``out`` (of the parameter's shape, any float dtype) with the parameter."""

    def groups(self, parameter: str) -> Groups | None:
        """The parameter's four-bit weights, where the file has all of them in such groups."""

    def four_bit_share(self) -> float:
        """Of the layers' products, the share of weights for which ``groups`` has an answer."""

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies, float32 ``[head_dim / 2]``, where the file carries them."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a ``.gguf`` file or a Hugging Face folder. Raises ``CheckpointError``."""
    return HFCheckpoint(path) if path.is_dir() else GGUFCheckpoint(GGUFFile(path))


def _check_num_layers(config: ModelConfig, num_tensors: int, source: str) -> None:
    """Damaged files claim billions of layers, whose names alone would fill the memory."""
    if not 0 < config.num_layers <= num_tensors:
        raise CheckpointError(f"{source} claims {config.num_layers} layers, but has {num_tensors} tensors")


def _match(names: NameMap, present: set[str], source: str) -> None:
    wanted = {tensor for tensors in names.values() for tensor in tensors}
    left_over = {name for name in present - wanted if not name.endswith(_OTHER_SUFFIXES)}
    for what, difference in (("lacks", wanted - present), ("has unexpected", left_over)):
        if difference:
            some = ", ".join(sorted(difference)[:3])
            raise CheckpointError(f"{source} {what} {len(difference)} tensors, such as {some}")


def _stacked(shapes: list[tuple[int, ...]], name: str, source: str) -> tuple[int, ...]:
    if len({shape[1:] for shape in shapes}) != 1:
        raise CheckpointError(f"{source}: the parts of {name} have the shapes {shapes}, which cannot be stacked")
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


class GGUFCheckpoint:
    """A GGUF file as a checkpoint."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(f"{file.path} has no token embedding; it is not a language model")
        self.config = config_from_gguf(file.metadata, file.tensors, embedding.shape[0], str(file.path))
        _check_num_layers(self.config, len(file.tensors), str(file.path))
        self._names = gguf_names(self.config)
        _match(self._names, set(file.tensors), str(file.path))

    def load_tokenizer(self) -> Tokenizer:
        """From the file's metadata."""
        return vocabulary.from_gguf(self._file)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape; stacked parameters have the sum of their parts' rows."""
        tensors = self._file.tensors
        return {
            parameter: _stacked([tensors[part].shape for part in parts], parameter, str(self._file.path))
            for parameter, parts in self._names.items()
        }

    def read_into(self, parameter: str, out: Tensor) -> None:
        """Dequantise the parts one after the other into ``out``."""
        row = 0
        for part in self._names[parameter]:
            info = self._file.tensors[part]
            rows = out[row : row + info.shape[0]]
            dequantize_into(rows, self._file.raw(part), info.block_type)
            self._file.release(part)
            if self._is_permuted(part):
                _unpermute(rows, self.config.head_dim)
            row += info.shape[0]

    def groups(self, parameter: str) -> Groups | None:
        """Those of the parts, one after the other; None when one of the parts has other blocks."""
        found = []
        for part in self._names[parameter]:
            groups = read_groups(self._file.raw(part), self._file.tensors[part].block_type)
            if groups is None:
                return None
            self._file.release(part)
            if self._is_permuted(part):
                for own in (groups.values, groups.scales, groups.minima):
                    _unpermute(own, self.config.head_dim)
            found.append(groups)
        return stacked(found)

    def four_bit_share(self) -> float:
        """By the tensors' block types."""
        sizes = {name: math.prod(shape) for name, shape in self.parameter_shapes().items() if len(shape) == 2}
        layers = {name: size for name, size in sizes.items() if name.startswith("layers.")}
        types = self._file.tensors
        is_four = {name: all(has_groups(types[part].block_type) for part in self._names[name]) for name in layers}
        return sum(size for name, size in layers.items() if is_four[name]) / sum(layers.values())

    def _is_permuted(self, part: str) -> bool:
        return self.config.architecture == "llama" and (".attn_q." in part or ".attn_k." in part)

    def rope_factors(self) -> Tensor | None:
        """The file's ``rope_freqs.weight``, which llama 3.1 exports carry."""
        info = self._file.tensors.get(_ROPE_FACTORS)
        if info is None:
            return None
        out = torch.empty(info.shape, dtype=torch.float32)
        dequantize_into(out, self._file.raw(_ROPE_FACTORS), GGMLQuantizationType(info.block_type))
        return out


def _unpermute(rows: Tensor, head_dim: int) -> None:
    """Undo, in place, the row order that llama GGUFs use for ggml's interleaved rotary pairs.

    The exporter turns each head's rows ``[2, head_dim/2]`` into ``[head_dim/2, 2]``; we rotate halves.
    """
    shape = rows.shape
    interleaved = rows.reshape(-1, head_dim // 2, 2, *shape[1:])
    rows.copy_(interleaved.transpose(1, 2).reshape(shape).clone())


class HFCheckpoint:
    """A Hugging Face folder of safetensors as a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"cannot read {folder / 'config.json'}: {error.strerror}") from error
        except ValueError as error:
            raise CheckpointError(f"{folder / 'config.json'} is not valid JSON: {error}") from error
        if not isinstance(data, dict):
            raise CheckpointError(f"{folder / 'config.json'} holds no JSON object")
        self.config = config_from_json(data, str(folder))
        self._where: dict[str, str] = {}  # tensor -> file
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{folder} has no .safetensors file")
        for file in files:
            with self._open(file.name) as tensors:
                self._where.update(dict.fromkeys(tensors.keys(), file.name))
        if self.config.is_tied:
            self._where.pop("lm_head.weight", None)  # some exporters write the shared tensor twice
        _check_num_layers(self.config, len(self._where), str(folder))
        self._names = hf_names(self.config)
        _match(self._names, set(self._where), str(folder))

    def load_tokenizer(self) -> Tokenizer:
        """From ``tokenizer.json``."""
        return vocabulary.from_folder(self._folder)

    def _open(self, file: str) -> safe_open:
        try:
            return safe_open(self._folder / file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {self._folder / file}: {error}; download it again") from error

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape; stacked parameters have the sum of their parts' rows."""
        shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(set(self._where.values())):
            with self._open(file) as tensors:
                for name, where in self._where.items():
                    if where == file:
                        shapes[name] = tuple(tensors.get_slice(name).get_shape())
        return {
            parameter: _stacked([shapes[part] for part in parts], parameter, str(self._folder))
            for parameter, parts in self._names.items()
        }

    def read_into(self, parameter: str, out: Tensor) -> None:
        """Copy the parts one after the other into ``out``, converting the dtype."""
        row = 0
        for part in self._names[parameter]:
            with self._open(self._where[part]) as tensors:
                tensor = tensors.get_tensor(part)
            out[row : row + tensor.shape[0]].copy_(tensor)
            row += tensor.shape[0]

    def groups(self, parameter: str) -> Groups | None:
        """None: such a folder has floating-point weights."""
        return None

    def four_bit_share(self) -> float:
        """None of them."""
        return 0.0

    def rope_factors(self) -> Tensor | None:
        """None: the configuration says how frequencies are scaled."""
        return None
