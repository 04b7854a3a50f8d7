"""Packed weights on disk: what was written is read again, and whatever is wrong with the file, it is made again."""

import errno
import json
import logging
import os
import random
import resource
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from engine.checkpoint.packed import packed_files, packed_path
from engine.checkpoint.source import open_checkpoint
from engine.model.native import load, packed_file
from engine.model.native.load import load_native_decoder
from engine.model.native.packed_file import read_packed, write_packed
from engine.model.native.weights import PRECISIONS, Packer, Weights
from tests.support.native import NATIVE_SHAPE
from tests.support.tiny_checkpoints import write_tiny_folder, write_tiny_gguf

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.fixture(autouse=True)
def _keep_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_LEAST_KEPT_BYTES", 0)
    monkeypatch.setattr(packed_file, "_FREE_BYTES", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", NATIVE_SHAPE, block_type=GGMLQuantizationType.Q4_0)


def _load(model: Path, precision: str = "mixed") -> Weights:
    decoder, _ = load_native_decoder(open_checkpoint(model), model, precision, 64)
    return decoder.weights


def _is_same(one: Weights, other: Weights) -> bool:
    (tensors, forms), (other_tensors, other_forms) = map(packed_file._named_tensors, (one, other))
    return (
        forms == other_forms
        and tensors.keys() == other_tensors.keys()
        and all(tensor.dtype == other_tensors[name].dtype for name, tensor in tensors.items())
        and all(torch.equal(tensor, other_tensors[name]) for name, tensor in tensors.items())
    )


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def _check_made_again(model: Path, caplog: pytest.LogCaptureFixture, warning: str) -> None:
    """One warning, the right weights, and nothing to say the next time."""
    expected = Packer(open_checkpoint(model), "mixed").pack()
    assert _is_same(_load(model), expected)
    (message,) = _warnings(caplog)
    assert warning in message
    again = read_packed(model, "mixed", open_checkpoint(model).config)
    assert again is not None and _is_same(again, expected)
    assert _warnings(caplog) == []
    assert [file.suffix for file in packed_path(model, "mixed").parent.iterdir()] == [".packed"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("block_type", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.F32])
def test_a_model_is_packed_once(
    tmp_path: Path, precision: str, block_type: GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", NATIVE_SHAPE, block_type=block_type)
    first = _load(model, precision)
    monkeypatch.setattr(Packer, "pack", lambda _: 1 // 0)
    assert _is_same(_load(model, precision), first)
    with pytest.raises(ZeroDivisionError):  # each precision has its own file
        _load(model, next(name for name in PRECISIONS if name != precision))


def test_a_small_model_is_not_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("MIDLINE_CACHE_DIR", str(model.parent / "cache"))
    _load(model)
    assert not packed_path(model, "mixed").exists()


def test_a_folder_is_known_by_all_its_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_tiny_folder(tmp_path / "model", NATIVE_SHAPE)
    _load(folder)
    assert packed_path(folder, "mixed").exists()
    (folder / "more.json").write_text("{}")
    _check_made_again(folder, caplog, "another version")


@pytest.mark.parametrize("change", ["time", "size"])
def test_another_version_of_the_model(model: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    _load(model)
    if change == "time":
        os.utime(model, ns=(0, model.stat().st_mtime_ns + 1))
    else:
        stat = model.stat()
        write_tiny_gguf(model, NATIVE_SHAPE, seed=1)
        os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    _check_made_again(model, caplog, "are of another version of it and are made again")


def test_a_flipped_bit_anywhere(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = _load(model)
    path, config = packed_path(model, "mixed"), open_checkpoint(model).config
    whole, pick = path.read_bytes(), random.Random(1)
    header_size = whole.index(b"}}") + 40
    num_refused = 0
    for index in range(200):
        damaged = bytearray(whole)
        damaged[pick.randrange(header_size if index % 2 else len(whole))] ^= 1 << pick.randrange(8)
        path.write_bytes(damaged)
        found = read_packed(model, "mixed", config)
        assert found is None or _is_same(found, expected)  # between two tensors nothing stands
        assert len(_warnings(caplog)) == (found is None)
        num_refused += found is None
    assert num_refused > 180
    path.write_bytes(whole[:3000] + b"!" + whole[3001:])
    _check_made_again(model, caplog, "is damaged")


def test_a_file_that_ends_too_early(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    _load(model)
    path, config = packed_path(model, "mixed"), open_checkpoint(model).config
    whole = path.read_bytes()
    for size in (0, 1, 24, 25, 30, 40, 41, 500, 3000, 40_000, len(whole) - 70, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert read_packed(model, "mixed", config) is None
        assert len(_warnings(caplog)) == 1
    _check_made_again(model, caplog, "is damaged")


@pytest.mark.parametrize(
    "content", [b"", b"GGUF" * 1000, b"\x00" * 5000, b"midline packed weights 1\n" + b"\xff" * 100]
)
def test_a_foreign_file(model: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    _load(model)
    packed_path(model, "mixed").write_bytes(content)
    _check_made_again(model, caplog, "is damaged")


def _set(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def edit(header: dict[str, Any]) -> None:
        place: Any = header
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return edit


_QKV = "layers.0.qkv.data"
_LIES = {
    "fewer layers": _set("num_layers", to=1),
    "more layers": _set("num_layers", to=10**12),
    "no layers": _set("num_layers", to=0),
    "layers in words": _set("num_layers", to="two"),
    "more outputs": _set("forms", "layers.0.qkv", 1, to=1024),
    "fewer outputs": _set("forms", "layers.0.qkv", 1, to=32),
    "more inputs": _set("forms", "layers.1.down", 2, to=256),
    "outputs of another form": _set("forms", "layers.0.output", to=[1, 32, 512]),
    "other kind": _set("forms", "layers.0.qkv", 0, to=0),
    "unknown kind": _set("forms", "head", 0, to=7),
    "short form": _set("forms", "head", to=[0]),
    "form in words": _set("forms", "head", to="abc"),
    "nothing where a form was": _set("forms", "head", to=None),
    "huge shape": _set("tensors", _QKV, 1, to=[1 << 60]),
    "shape beyond all numbers": _set("tensors", _QKV, 1, to=[1 << 70, 1 << 70]),
    "negative shape": _set("tensors", _QKV, 1, to=[-1]),
    "twice negative shape": _set("tensors", _QKV, 1, to=[-8, -8]),
    "empty shape": _set("tensors", _QKV, 1, to=[]),
    "shape of a part": _set("tensors", _QKV, 1, to=[64]),
    "norm of a part": _set("tensors", "layers.0.attn_norm", 1, to=[16]),
    "embedding of a part": _set("tensors", "embedding", 1, to=[8, 64]),
    "other dtype": _set("tensors", _QKV, 0, to="torch.float32"),
    "unknown dtype": _set("tensors", _QKV, 0, to="torch.float8"),
    "dtype that is a list": _set("tensors", _QKV, 0, to=[1]),
    "norm in another dtype": _set("tensors", "norm", 0, to="torch.uint8"),
    "offset behind the end": _set("tensors", _QKV, 2, to=1 << 40),
    "offset beyond all numbers": _set("tensors", _QKV, 2, to=1 << 80),
    "negative offset": _set("tensors", _QKV, 2, to=-(1 << 20)),
    "offset in words": _set("tensors", _QKV, 2, to="64"),
    "short row": _set("tensors", _QKV, to=["torch.uint8"]),
    "a list of tensors": _set("tensors", to=[]),
    "no tensors": _set("tensors", to={}),
    "no key": _set("key", to=None),
}


@pytest.mark.parametrize("name", _LIES)
def test_a_header_that_lies(model: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """With checksums that fit: they protect from damage, not from a program that wrote something else."""
    _load(model)
    _edit_header(packed_path(model, "mixed"), _LIES[name], model)
    _check_made_again(model, caplog, "another version" if name == "no key" else "is damaged")


def _edit_header(path: Path, edit: Callable[[dict[str, Any]], None], model: Path) -> None:
    start = len(packed_file._MAGIC) + packed_file._LENGTH.size
    content = path.read_bytes()
    length, _ = packed_file._LENGTH.unpack(content[len(packed_file._MAGIC) : start])
    data = content[start + length :]
    header = json.loads(content[start : start + length])
    edit(header)
    for row in header["tensors"].values() if isinstance(header["tensors"], dict) else ():
        _mend_checksum(row, data)
    text = json.dumps(header).encode()
    path.write_bytes(packed_file._MAGIC + packed_file._LENGTH.pack(len(text), zlib.crc32(text)) + text + data)


def _mend_checksum(row: list[Any], data: bytes) -> None:
    """Where the row can be read at all."""
    try:
        dtype, shape, offset, _ = row
        size = torch.empty(shape, dtype=packed_file._DTYPES[dtype], device="meta").nbytes
        if 0 <= offset <= offset + size <= len(data):
            row[3] = zlib.crc32(data[offset : offset + size])
    except (LookupError, ValueError, TypeError, RuntimeError):
        return


def test_a_json_that_is_no_header(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    _load(model)
    path, config = packed_path(model, "mixed"), open_checkpoint(model).config
    for text in (b"[]", b"1", b"null", b"{}", b"[" * 100_000, b"\xff", b'{"key": 1e999}'):
        path.write_bytes(packed_file._MAGIC + packed_file._LENGTH.pack(len(text), zlib.crc32(text)) + text)
        assert read_packed(model, "mixed", config) is None
        assert len(_warnings(caplog)) == 1
    path.write_bytes(packed_file._MAGIC + packed_file._LENGTH.pack(1 << 63, 0) + b"{}")
    _check_made_again(model, caplog, "is damaged")


def test_a_file_of_another_model_under_this_name(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The key fits, the shapes do not."""
    other = write_tiny_gguf(model.parent / "other.gguf", replace(NATIVE_SHAPE, own_head_dim=128))
    write_packed(model, "mixed", Packer(open_checkpoint(other), "mixed").pack())
    _check_made_again(model, caplog, "other shapes than the model")


def test_a_disk_that_fills_up(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here a limit of the operating system on the file's size, which is met while it is written."""
    expected = Packer(open_checkpoint(model), "mixed").pack()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        assert _is_same(_load(model), expected)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (message,) = _warnings(caplog)
    assert "cannot be kept" in message and "each start packs them" in message
    assert list(packed_path(model, "mixed").parent.iterdir()) == []


def test_too_little_room_is_seen_before(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_file, "_FREE_BYTES", 1 << 60)
    _load(model)
    (message,) = _warnings(caplog)
    assert "has no room for the packed weights" in message
    assert list(packed_path(model, "mixed").parent.iterdir()) == []


def test_a_folder_that_cannot_be_written(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    expected = Packer(open_checkpoint(model), "mixed").pack()
    assert _is_same(_load(model), expected)
    (message,) = _warnings(caplog)
    assert "Read-only file system" in message


def test_a_file_where_the_folder_should_be(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = packed_path(model, "mixed").parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")
    assert _is_same(_load(model), Packer(open_checkpoint(model), "mixed").pack())
    assert 1 <= len(_warnings(caplog)) <= 2
    assert packed_files(model) == []


def test_several_that_pack_at_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each reads nothing, or the whole."""
    config, weights = open_checkpoint(model).config, _load(model)

    def both(index: int) -> bool:
        if index % 2:
            write_packed(model, "mixed", weights)
        found = read_packed(model, "mixed", config)
        return found is not None and _is_same(found, weights)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(both, range(24)))
    assert _warnings(caplog) == []
    assert len(list(packed_path(model, "mixed").parent.iterdir())) == 1


def test_the_files_of_a_model_are_its_own(tmp_path: Path) -> None:
    models = [
        write_tiny_gguf(folder / "a[1]*.gguf", NATIVE_SHAPE) for folder in (tmp_path, tmp_path / "b", tmp_path / "c")
    ]
    for model in models:
        _load(model, "int8")
    _load(models[0], "int4")
    assert set(packed_files(models[0])) == {packed_path(models[0], precision) for precision in ("int8", "int4")}
    assert packed_files(models[1]) == [packed_path(models[1], "int8")]
    unfinished = packed_path(models[0], "int8").with_suffix(".part")
    unfinished.write_text("")
    assert unfinished in packed_files(models[0])
