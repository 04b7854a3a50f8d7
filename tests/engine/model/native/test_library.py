"""How the kernels are built, kept and loaded, and that an engine runs where they cannot be."""

import ctypes
import errno
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError
from engine.model.linear import can_int8
from engine.model.native import library
from engine.model.native.library import NoNativeKernels, load_library
from engine.paths import cache_dir
from engine.request import CompletionRequest, SamplingParams
from tests.support.native import NATIVE_SHAPE
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

# what the cache of one process would answer from the first time on
_load_anew = load_library.__wrapped__


def _kept() -> list[Path]:
    return sorted((cache_dir() / "native").glob("*"))


@pytest.fixture
def compiler(native_library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the machine's compiler, but is quick: it has the kernels already. Returns its list of calls."""
    built, calls = Path(native_library._name).read_bytes()[: -library._CHECKSUM_BYTES], tmp_path / "calls"
    (tmp_path / "built.so").write_bytes(built)
    calls.touch()
    _script(
        tmp_path / "fast++",
        f'echo "$@" >> {calls}; for last; do true; done; cp {tmp_path}/built.so "$last"',
        monkeypatch,
    )
    return calls


def _script(path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def _num_calls(calls: Path) -> int:
    return len(calls.read_text().splitlines())


def test_kernels_are_built_once_and_only_the_library_is_kept(compiler: Path) -> None:
    for _ in range(3):
        assert _load_anew().midline_layer.argtypes
        assert _num_calls(compiler) == 2  # compiling and linking
    (kept,) = _kept()
    assert (kept.name[:8], kept.suffix) == ("kernels-", ".so")


def test_openmp_is_left_to_the_copy_that_torch_has(compiler: Path) -> None:
    """With -fopenmp at the link there would be a second team of threads."""
    _load_anew()
    compiling, linking = compiler.read_text().splitlines()
    assert "-fopenmp" in compiling and "-fopenmp" not in linking
    with open("/proc/self/maps", encoding="utf-8") as maps:
        copies = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    assert len(copies) == 1


def test_other_sources_flags_compilers_and_versions_build_their_own(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _load_anew()
    sources = tmp_path / "sources"
    shutil.copytree(library._FOLDER, sources)
    monkeypatch.setattr(library, "_FOLDER", sources)
    _load_anew()
    assert len(_kept()) == 1  # the same in another place
    (sources / "numbers.h").write_text((sources / "numbers.h").read_text() + "\n")
    _load_anew()
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, "-O1"))
    _load_anew()
    monkeypatch.setattr("torch.__version__", "9.9")
    _load_anew()
    shutil.copy(os.environ["CXX"], tmp_path / "other++")
    monkeypatch.setenv("CXX", str(tmp_path / "other++"))
    _load_anew()
    assert len(_kept()) == 5
    assert _num_calls(compiler) == 10


@pytest.mark.parametrize("damage", ["empty", "short", "half", "flipped", "foreign"])
def test_a_damaged_library_is_built_again(compiler: Path, damage: str) -> None:
    """Half a library would kill the process that loads it."""
    _load_anew()
    (kept,) = _kept()
    whole = kept.read_bytes()
    flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    contents = {
        "empty": b"",
        "short": whole[:20],
        "half": whole[: len(whole) // 2],
        "flipped": flipped,
        "foreign": b"text\n" * 99,
    }
    kept.unlink()  # the old one is mapped
    kept.write_bytes(contents[damage])
    assert _load_anew().midline_layer.argtypes
    assert kept.read_bytes() == whole
    assert _num_calls(compiler) == 4


def test_a_library_that_is_no_library_is_told(compiler: Path, tmp_path: Path) -> None:
    (tmp_path / "built.so").write_bytes(b"no library")
    with pytest.raises(NoNativeKernels, match=r"the compiled kernels cannot be loaded \(.*"):
        _load_anew()


def test_a_library_without_the_functions_is_told(compiler: Path, tmp_path: Path) -> None:
    source = tmp_path / "other.cpp"
    source.write_text("")
    real = next(filter(None, map(shutil.which, library._COMPILERS)))
    subprocess.run([real, "-shared", "-fPIC", str(source), "-o", str(tmp_path / "built.so")], check=True)
    with pytest.raises(NoNativeKernels, match=r"cannot be loaded .*midline_layer"):
        _load_anew()


def test_without_a_compiler(native_library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoNativeKernels, match=r"there is no C\+\+ compiler \(g\+\+, c\+\+\): install g\+\+"):
        _load_anew()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoNativeKernels, match=r"there is no C\+\+ compiler \(no-such-compiler\): install"):
        _load_anew()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'k.cpp:3: error: unknown option' >&2; exit 1", "fails did not compile .*k.cpp:3: error: unknown option"),
        ("echo 'something else' >&2; exit 7", r"fails did not compile the kernels \(exit code 7\)"),
        ("printf '\\377 error: \\377\\n' >&2; exit 1", "fails did not compile the kernels .*error"),
        ("exit 0", r"cannot be (used|loaded) \(.*"),  # and there is no file
        ("sleep 30", r"fails did not compile .*timed out"),
    ],
)
def test_a_compiler_that_fails(
    native_library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    monkeypatch.setattr(library, "_MAX_COMPILE_S", 0.5)
    _script(tmp_path / "fails", "exec " + body if body.startswith("sleep") else body, monkeypatch)
    with pytest.raises(NoNativeKernels, match=message) as caught:
        _load_anew()
    assert "\n" not in str(caught.value)
    assert _kept() == []


def test_a_compiler_that_cannot_be_run(native_library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _script(tmp_path / "odd", "", monkeypatch)
    (tmp_path / "odd").write_bytes(b"\x7fELF nothing")
    with pytest.raises(NoNativeKernels, match=r"odd did not compile the kernels .*format"):
        _load_anew()


def test_a_cache_that_cannot_be_used(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_dir().parent.mkdir(parents=True, exist_ok=True)
    cache_dir().write_text("")  # a file where the folder should be
    with pytest.raises(NoNativeKernels, match="Not a directory"):
        _load_anew()
    cache_dir().unlink()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    with pytest.raises(NoNativeKernels, match=r"native cannot be used .Read-only file system"):
        _load_anew()


def test_sources_that_were_not_installed(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path / "nowhere")
    with pytest.raises(NoNativeKernels, match=r"cannot be loaded .*kernels\.cpp"):
        _load_anew()


@pytest.mark.parametrize("name", ["avx512_vnni", "avx512_bf16"])
def test_a_cpu_without_the_instructions(native_library: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {**dict.fromkeys(library._INSTRUCTIONS, True), name: 0})
    with pytest.raises(NoNativeKernels, match=f"this CPU has no {name}"):
        _load_anew()


def test_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.cpu.get_capabilities", raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(NoNativeKernels, match="cannot tell what this CPU can"):
        _load_anew()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(NoNativeKernels, match="are for Linux on x86-64"):
        _load_anew()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(NoNativeKernels, match="are for Linux on x86-64"):
        _load_anew()


def _break_compiler(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("CXX", "no-such-compiler")


def _break_cpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("torch.cpu.get_capabilities", dict)


def _break_platform(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("platform.machine", lambda: "aarch64")


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        (_break_platform, "the compiled kernels are for Linux on x86-64"),
        (_break_cpu, "this CPU has no avx512_f"),
        (_break_compiler, "there is no C++ compiler (no-such-compiler)"),
    ],
)
def test_an_engine_runs_without_the_kernels_and_says_why(
    native_library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: object, reason: str
) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", NATIVE_SHAPE))
    monkeypatch.setattr("engine.model.kernels.load_library", _load_anew)
    obstacle(monkeypatch)  # type: ignore[operator]
    engine = Engine.load(EngineConfig(model=model, max_context_tokens=256))
    assert engine.info.kernels.startswith(f"torch: {reason}")
    assert engine.info.dtype == ("int8" if can_int8() else "bfloat16")
    request = CompletionRequest("def f(x):\n    ", "\n", SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(engine.complete_all([request])[0].token_ids) >= 5
    with pytest.raises(ConfigError, match="precision is 'mixed', which cannot be had here") as caught:
        Engine.load(EngineConfig(model=model, precision="mixed"))
    assert reason in str(caught.value)


def test_an_engine_with_the_kernels(native_library: object, tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", NATIVE_SHAPE))
    for precision, dtype in (("auto", "mixed"), ("int8", "int8"), ("mixed", "mixed"), ("int4", "int4")):
        info = Engine.load(EngineConfig(model=model, precision=precision, max_context_tokens=256)).info
        assert (info.kernels, info.dtype) == ("native", dtype)
    odd = str(write_tiny_gguf(tmp_path / "odd.gguf", TinyShape()))
    assert "not made for this model's shape" in Engine.load(EngineConfig(model=odd)).info.kernels


def test_several_that_build_at_once(compiler: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: _load_anew(), range(8)))
    assert all(one.midline_layer.argtypes for one in loaded)
    assert [file.suffix for file in _kept()] == [".so"]
