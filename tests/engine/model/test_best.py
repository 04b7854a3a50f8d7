"""The likeliest tokens, against all logits."""

from pathlib import Path

import pytest
import torch

from engine.model.best import best_of, joined
from tests.support.kv import Rig
from tests.support.tiny_checkpoints import write_tiny_gguf


@pytest.mark.parametrize("size", [1, 7, 512, 513, 2000])
def test_the_first_of_the_largest_and_its_logarithm(size: int) -> None:
    logits = torch.randint(-3, 4, (9, size), generator=torch.Generator().manual_seed(size)).float()
    found = best_of(logits)
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert found.token_ids == expected
    logprobs = logits.log_softmax(dim=1)[torch.arange(9), expected]
    assert found.logprobs == pytest.approx(logprobs.tolist(), abs=1e-5)
    assert joined([best_of(logits[:4]), best_of(logits[4:])]) == found


def test_many_rows_are_scored_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Rig(write_tiny_gguf(tmp_path / "tiny.gguf", seed=1)).decoder
    hidden = torch.randn(100, decoder.config.hidden_size, generator=torch.Generator().manual_seed(0))
    whole, most = best_of(decoder.logits(hidden)[:, :300]), []
    logits = decoder.logits

    def counting(rows: torch.Tensor) -> torch.Tensor:
        most.append(len(rows))
        return logits(rows)

    monkeypatch.setattr(decoder, "logits", counting)
    found = decoder.best(hidden, 300)
    assert found.token_ids == whole.token_ids
    assert found.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert sum(most) == 100 and max(most) <= 32
    assert found.logits == {}
    kept = decoder.best(hidden, 300, [0, 31, 32, 99])
    assert kept == found
    expected = logits(hidden)[:, :300]
    assert all(torch.allclose(own, expected[row], atol=1e-4) for row, own in kept.logits.items())
    assert list(kept.logits) == [0, 31, 32, 99]
