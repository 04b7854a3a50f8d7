"""What the catalogue says of a model's size is what its file says; of those that are on this machine."""

from dataclasses import replace

import pytest

from engine.checkpoint.catalogue import CatalogueEntry, load_catalogue
from engine.checkpoint.source import open_checkpoint
from engine.checkpoint.store import resolve_model
from engine.machine.auto import is_here
from engine.machine.predict import size_of
from tests.real_model.conftest import require

pytestmark = pytest.mark.real_model


@pytest.mark.parametrize("entry", load_catalogue().values(), ids=lambda entry: entry.name)
def test_the_catalogue_knows_the_size(entry: CatalogueEntry) -> None:
    if not is_here(entry) and entry.name != "qwen2.5-coder-0.5b":
        pytest.skip(f"{entry.name} is not here")
    require(entry.name)
    checkpoint = open_checkpoint(resolve_model(entry.name).path)
    size = size_of(checkpoint.config, checkpoint.four_bit_share())
    assert replace(size, four_bit_share=round(size.four_bit_share, 4)) == entry.size
    assert (checkpoint.config.context_tokens >= entry.context_tokens) and entry.num_parameters > size.layer_weights
