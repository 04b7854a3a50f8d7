"""Reads the GGUF container: key-values, tensor table, and raw tensor bytes as memory-mapped views.

Light: imports no torch. It knows the container only; what the blocks mean is in ``blocks``.
``gguf.GGUFReader`` reads the same but takes seconds for a vocabulary of 150,000 strings, because it keeps a
numpy view per string; a test compares the two.
Format: the GGUF specification, versions 2 and 3, little endian.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.errors import CheckpointError

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_COUNT = 1 << 24  # more keys, tensors or array elements than any real file has

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Row-major: the last dimension is contiguous (GGUF itself lists them the other way round)."""
    block_type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GGUFFile:
    """An open GGUF file. The mapping lives as long as a view of it does.

    Raises ``CheckpointError`` when the file is not GGUF, of an unknown version, or shorter than it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                head = file.read(4)
                if head != _MAGIC:
                    raise CheckpointError(f"{path} is not a GGUF file: it starts with {head!r}, not {_MAGIC!r}")
                self._buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read_tables()
        except (struct.error, IndexError) as error:
            raise CheckpointError(
                f"{path} is truncated: its header goes on past the end at {len(self._buffer)} bytes; download it again"
            ) from error

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Bytes of a tensor as ``[rows, bytes per row]``, a read-only view into the mapped file."""
        info = self.tensors[name]
        flat = np.frombuffer(self._buffer, dtype=np.uint8, count=info.num_bytes, offset=info.offset)
        return flat.reshape(math.prod(info.shape[:-1]), -1)

    def release(self, name: str) -> None:
        """Give the memory of a tensor's mapped pages back, now that they have been read."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        info = self.tensors[name]
        start = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE  # only pages that hold nothing else
        length = (info.offset + info.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            self._buffer.madvise(mmap.MADV_DONTNEED, start, length)

    def _read_tables(self) -> None:
        version, num_tensors, num_keys = struct.unpack_from("<IQQ", self._buffer, 4)
        if version not in (2, 3):
            raise CheckpointError(f"{self.path} has GGUF version {version}; versions 2 and 3 are supported")
        if num_tensors > _MAX_COUNT or num_keys > _MAX_COUNT:
            raise CheckpointError(f"{self.path} is damaged: it claims {num_tensors} tensors and {num_keys} keys")
        self._position = 24
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<I"))
        rows = [self._tensor_row() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise CheckpointError(f"{self.path} is damaged: its alignment is {alignment!r}")
        data_start = -(-self._position // alignment) * alignment
        for name, shape, block_type, offset in rows:
            self._add_tensor(name, shape, block_type, data_start + offset)

    def _tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dims = self._scalar("<I")
        if num_dims > 4:
            raise CheckpointError(f"{self.path}: tensor {name!r} has {num_dims} dimensions; at most 4 are possible")
        shape = tuple(self._scalar("<Q") for _ in range(num_dims))[::-1]
        return name, shape, self._scalar("<I"), self._scalar("<Q")

    def _add_tensor(self, name: str, shape: tuple[int, ...], type_id: int, offset: int) -> None:
        try:
            block_type = GGMLQuantizationType(type_id)
        except ValueError:
            raise CheckpointError(f"{self.path}: tensor {name!r} has the unknown block type {type_id}") from None
        block_size, type_size = GGML_QUANT_SIZES[block_type]
        row = shape[-1] if shape else 1
        if row % block_size:
            raise CheckpointError(
                f"{self.path}: rows of {name!r} have {row} values, no multiple of {block_type.name}'s {block_size}"
            )
        num_values = math.prod(shape)
        num_bytes = num_values // block_size * type_size
        if offset + num_bytes > len(self._buffer):
            raise CheckpointError(
                f"{self.path} is truncated: tensor {name!r} ends at byte {offset + num_bytes},"
                f" the file at {len(self._buffer)}; download it again"
            )
        self.tensors[name] = TensorInfo(name, shape, block_type, offset, num_bytes)

    def _scalar(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self._buffer, self._position)
        self._position += struct.calcsize(layout)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        end = self._position + length
        if end > len(self._buffer):
            raise IndexError(end)
        text = self._buffer[self._position : end].decode("utf-8", errors="surrogateescape")
        self._position = end
        return text

    def _strings(self, count: int) -> list[str]:
        """Many strings: a vocabulary has 300,000, and a call for each takes longer than reading the weights."""
        buffer, at, size = self._buffer, self._position, len(self._buffer)
        length_of, width = struct.Struct("<Q").unpack_from, 8
        strings = []
        for _ in range(count):
            start = at + width
            at = start + length_of(buffer, at)[0]
            if at > size:
                raise IndexError(at)
            strings.append(buffer[start:at].decode("utf-8", "surrogateescape"))
        self._position = at
        return strings

    def _value(self, type_id: int) -> Any:
        if type_id == GGUFValueType.STRING:
            return self._string()
        if type_id == GGUFValueType.ARRAY:
            item_type, length = self._scalar("<I"), self._scalar("<Q")
            if length > len(self._buffer) - self._position:  # each value has a byte at least
                raise CheckpointError(f"{self.path} is damaged: it claims an array of {length} values")
            return self._array(item_type, length)
        layout = _SCALARS.get(type_id)  # type: ignore[call-overload]  # an IntEnum key equals the plain number
        if layout is None:
            raise CheckpointError(f"{self.path} is damaged: it has a value of unknown type {type_id}")
        return self._scalar(layout)

    def _array(self, item_type: int, length: int) -> list[Any]:
        layout = _SCALARS.get(item_type)  # type: ignore[call-overload]
        if item_type == GGUFValueType.ARRAY:
            raise CheckpointError(f"{self.path} is damaged: it has an array of arrays")
        if item_type == GGUFValueType.STRING:
            return self._strings(length)
        if layout is None:
            return [self._value(item_type) for _ in range(length)]
        values = struct.unpack_from(f"<{length}{layout[1]}", self._buffer, self._position)
        self._position += struct.calcsize(f"<{length}{layout[1]}")
        return list(values)
