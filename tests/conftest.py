"""A clean environment for every test, and the versions that matter in the header."""

import ctypes
import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# One thread: the unit tests' models are tiny, and thread pools of parallel test processes slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

_USER_MODELS = ("real_model", "real_model_large", "editor", "peer")
_SHOWN = ("torch", "tokenizers", "gguf", "pygls", "starlette")

# A shell starts background jobs with interrupts ignored, and the processes under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Name the versions that a failure may depend on."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in _SHOWN)
    return f"python {sys.version.split()[0]}, " + ", ".join(versions)


@pytest.fixture(autouse=True)
def _own_folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep tests out of the user's own settings, models and running services.

    Tests of the real model read the user's model folder, and run as the user would, with all threads.
    """
    for name in ("NO_COLOR", "FORCE_COLOR", "MIDLINE_ENGINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    home: Path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MIDLINE_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("MIDLINE_CONFIG", str(home / "config.toml"))
    if any(request.node.get_closest_marker(name) for name in _USER_MODELS):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("MIDLINE_CACHE_DIR", str(home / "cache"))


@pytest.fixture(scope="session")
def native_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The compiled kernels, built once for all tests; what they cannot be built for skips."""
    from engine.model.native import library  # imports torch, which the tests of light modules do without

    try:
        library._check_machine()
        library._compiler()
    except library.NoNativeKernels as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDLINE_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        return library.load_library()


@pytest.fixture(scope="module", params=[True, False], ids=["matrices", "vectors"])
def matrices(request: pytest.FixtureRequest, native_library: ctypes.CDLL) -> Iterator[bool]:
    """The kernels compute many rows with AMX, and without; what this CPU does not have skips."""
    if native_library.midline_use_matrices(request.param) != request.param:
        pytest.skip("this CPU has no AMX")
    yield request.param
    native_library.midline_use_matrices(True)
