"""Models from the user's model folder; a test is skipped, with the remedy, where they have not been downloaded."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ModelNotDownloadedError
from engine.paths import models_dir


def require(name: str) -> Path:
    """Path of a downloaded model; skips the test without it, except in CI, where that is a failure."""
    try:
        return resolve_model(name).path
    except ModelNotDownloadedError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def load(name: str, precision: str = "auto") -> Engine:
    """The engine as a user has it, with all cores."""
    require(name)
    return Engine.load(EngineConfig(model=name, precision=precision, num_threads=os.cpu_count() or 1))


@pytest.fixture(scope="session")
def default_engine() -> Iterator[Engine]:
    """The default model, loaded once."""
    yield load("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def user_models() -> Path:
    """The user's model folder."""
    return models_dir()
