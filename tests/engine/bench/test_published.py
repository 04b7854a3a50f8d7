"""The model of the published shape is exactly that, and what is said of the published system is kept apart."""

from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from engine.bench.published import NUM_PARAMETERS, OFFLINE_KV_MB, SERVING_KV_MB, write_published_model
from engine.bench.roofline import layer_weights
from engine.bench.settings import QUICK_SERVING, OfflineSettings, ServingSettings, is_published_workload
from engine.checkpoint.source import open_checkpoint


def test_the_model_has_the_published_shape(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_published_model(tmp_path / "model"))
    shape, tokenizer = checkpoint.config, checkpoint.load_tokenizer()
    with safe_open(tmp_path / "model" / "model.safetensors", "np") as file:
        assert sum(file.get_tensor(name).size for name in file.keys()) == NUM_PARAMETERS == 5_838_080  # noqa: SIM118
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (6, 8, 2, 32)
    assert shape.vocab_size == tokenizer.vocab_size == 260
    assert tokenizer.decode(tokenizer.encode("déjà\n")) == "déjà\n"
    assert sum(tokenizer.is_control(i) for i in range(260)) == 4
    block_bytes = 16 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4
    assert (SERVING_KV_MB * 2**20 / block_bytes, OFFLINE_KV_MB * 2**20 / block_bytes) == (1024, 4096)
    # all matrices but the embedding and the head
    assert layer_weights(shape) == NUM_PARAMETERS - 2 * 260 * 256 - 13 * 256


def test_the_same_seed_writes_the_same_model(tmp_path: Path) -> None:
    first, second = (write_published_model(tmp_path / name) / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_published_figures_stand_only_beside_the_same_workload() -> None:
    assert is_published_workload(ServingSettings(caps=(2,), seed=5, out="/x"))
    assert is_published_workload(OfflineSettings(orders=("sorted",)))
    assert not is_published_workload(QUICK_SERVING)
    assert not is_published_workload(replace(ServingSettings(), rate_per_s=8.0))
    assert not is_published_workload(ServingSettings(is_superseding=True))
