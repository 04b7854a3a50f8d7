"""The default model's tokenizer against ``transformers``, which reads the same GGUF file by its own code."""

from pathlib import Path

import pytest

from engine.checkpoint.vocabulary import from_gguf_path
from tests.engine.test_tokenizer import FIXTURES
from tests.real_model.conftest import require

pytestmark = pytest.mark.real_model
_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.filterwarnings("default")  # the reference library's own
def test_ids_equal_the_reference() -> None:
    from transformers import AutoTokenizer

    path = require("qwen2.5-coder-0.5b")
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer = from_gguf_path(path)
    texts = [*FIXTURES, *(file.read_text(encoding="utf-8") for file in sorted(_ROOT.glob("engine/*.py")))]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert tokenizer.decode(ids) == text
