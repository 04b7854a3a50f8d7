"""The compiled kernels: built by this machine's own compiler at first use, kept, and loaded.

The file's name holds a hash of the sources and of everything else it depends on, so that another version of either
builds its own. OpenMP's functions are left unresolved and found in the copy that torch has loaded: with a second
copy there would be two teams of threads that fight for the same cores.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.model.native.structs import bind
from engine.paths import cache_dir

_logger = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent
_SOURCE = "kernels.cpp"
# -fopenmp only here, where it is compiled: at the link it would bind another copy of OpenMP. No contraction: whether
# a product and a sum become one instruction must not depend on how many rows are computed together.
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=off"),
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16", "-mfma", "-mf16c"),
)
_INSTRUCTIONS = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_vnni", "avx512_bf16")
_COMPILERS = ("g++", "c++")  # torch has GCC's OpenMP, which another compiler's code does not call
_MAX_COMPILE_S = 120.0
_CHECKSUM_BYTES = 32


class NoNativeKernels(Exception):
    """The kernels cannot be had here; the text says why. The torch path does the work."""


@cache
def load_library() -> ctypes.CDLL:
    """The kernels; the first call on a machine compiles them, which takes some seconds. Raises ``NoNativeKernels``."""
    _check_machine()
    compiler = _compiler()
    try:
        file = cache_dir() / "native" / f"kernels-{_key(compiler)}.so"
        if not _is_whole(file):
            _compile(compiler, file)
        library = ctypes.CDLL(str(file))
        bind(library)
        library.midline_use_matrices(True)
        return library
    except (OSError, AttributeError) as error:
        raise NoNativeKernels(f"the compiled kernels cannot be loaded ({error})") from error


def _check_machine() -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NoNativeKernels("the compiled kernels are for Linux on x86-64")
    if not hasattr(torch.cpu, "get_capabilities"):
        raise NoNativeKernels(f"torch {torch.__version__} cannot tell what this CPU can; update it")
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    missing = [name for name in _INSTRUCTIONS if not capabilities.get(name)]
    if missing:
        raise NoNativeKernels(f"this CPU has no {', '.join(missing)}")


def _compiler() -> list[str]:
    """The words of a command."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    for words in [wanted] if wanted else [[name] for name in _COMPILERS]:
        found = shutil.which(words[0])
        if found is not None:
            return [found, *words[1:]]
    raise NoNativeKernels(f"there is no C++ compiler ({' '.join(wanted) or ', '.join(_COMPILERS)}): install g++")


def _key(compiler: list[str]) -> str:
    digest = hashlib.sha256()
    for path in [*sorted(_FOLDER.glob("*.h")), _FOLDER / _SOURCE]:
        digest.update(path.read_bytes())
    digest.update(repr(([os.path.realpath(compiler[0]), *compiler[1:]], _FLAGS, torch.__version__)).encode())
    return digest.hexdigest()[:16]


def _is_whole(file: Path) -> bool:
    """Whether it ends with its own checksum: a process that loads half a library is killed."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return False
    return _checksum(content[:-_CHECKSUM_BYTES]) == content[-_CHECKSUM_BYTES:]


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _compile(compiler: list[str], file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            objects, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            _call([*compiler, *_FLAGS, "-c", str(_FOLDER / _SOURCE), "-o", str(objects)])
            _call([*compiler, "-shared", str(objects), "-o", str(linked)])
            content = linked.read_bytes()
            linked.write_bytes(content + _checksum(content))
            linked.replace(file)  # whole or not at all, also when two processes build at once
    except OSError as error:
        raise NoNativeKernels(f"{file.parent} cannot be used ({error.strerror or error})") from error
    _logger.info("compiled kernels with %s", compiler[0])


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_MAX_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNativeKernels(f"{command[0]} did not compile the kernels ({error})") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise NoNativeKernels(f"{command[0]} did not compile the kernels ({first})")
