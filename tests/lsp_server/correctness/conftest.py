"""Small models, each loaded twice: to serve, and to judge."""

import pytest

from tests.support.fluent import write_fluent_gguf
from tests.support.tiny_checkpoints import write_tiny_gguf
from tests.support.twins import Twins


@pytest.fixture(scope="package")
def fluent(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """Says something like code."""
    return Twins(write_fluent_gguf(tmp_path_factory.mktemp("fluent") / "m.gguf"))


@pytest.fixture(scope="package")
def suffix_first(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """The same, in another order: what was typed follows the text before it."""
    path = tmp_path_factory.mktemp("suffix_first") / "m.gguf"
    return Twins(write_fluent_gguf(path, control=("<s>", "[SUFFIX]", "[PREFIX]", "<|endoftext|>")), "codestral")


@pytest.fixture(scope="package")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """Says noise: its tokens are hardly ever those of its text."""
    return Twins(write_tiny_gguf(tmp_path_factory.mktemp("noisy") / "m.gguf", seed=2))
