"""Token ids against the reference, round trips, and text that looks like markers."""

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter
from gguf.constants import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as ReferenceTokenizer
from tokenizers import models, normalizers, trainers

from engine.checkpoint.vocabulary import from_folder, from_gguf_path
from engine.errors import CheckpointError
from engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.tiny_checkpoints import CONTROL_TOKENS, tiny_tokenizer, write_tiny_folder, write_tiny_gguf

FIXTURES = (
    "def f(x1, y22, z333):\n    return 1234567890 + 0x1F\n",
    "a\r\n\tb\r\n\r\n\t\tc\r",
    "    x  =   1\t\n\n\n   ",
    "変数 = '日本語のテキスト'  # 한국어 中文",
    "emoji = '👩‍👩‍👧 🏳️‍🌈 é'",
    "it's WE'LL they've I'M\n!!!???\n\n  //--**",
    "\f\v\x00\x1b[0m\u2028\x85\ufeff",
)


@pytest.fixture(scope="module", params=["gguf", "tokenizer.json"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tiny")
    is_gguf = request.param == "gguf"
    return load_tokenizer(write_tiny_gguf(folder / "t.gguf") if is_gguf else write_tiny_folder(folder / "hf"))


@pytest.mark.parametrize("text", FIXTURES)
def test_ids_equal_the_reference(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == tiny_tokenizer().encode(text).ids
    assert tokenizer.decode(ids) == text


@settings(max_examples=200, derandomize=True)
@given(text=st.text())
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_markers_in_text_are_text(tokenizer: Tokenizer) -> None:
    for marker in CONTROL_TOKENS:
        text = f"x = '{marker}'\n"
        ids = tokenizer.encode(text)
        assert not any(tokenizer.is_control(i) for i in ids)
        assert tokenizer.decode(ids) == text
        marker_id = tokenizer.control_id(marker)
        assert marker_id is not None
        assert tokenizer.is_control(marker_id)
        assert tokenizer.all_bytes[marker_id] == b""


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert "\ufffd" in tokenizer.decode(tokenizer.encode("a\ud800b"))


def test_end_of_sequence_ids_are_known(tokenizer: Tokenizer) -> None:
    assert tokenizer.control_id("<|endoftext|>") in tokenizer.eos_ids


def test_an_unknown_pretokenizer_is_an_error_and_no_guess(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "odd.gguf", pre="of-tomorrow")
    with pytest.raises(CheckpointError, match=r"unknown pre-tokenizer 'of-tomorrow'; known are .*qwen2"):
        from_gguf_path(path)


def test_an_unknown_kind_of_tokenizer_is_an_error(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "t5.gguf", "qwen2")
    writer.add_tokenizer_model("t5")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="kind 't5'"):
        from_gguf_path(tmp_path / "t5.gguf")


def test_a_damaged_tokenizer_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    with pytest.raises(CheckpointError, match="kind 'Unigram'; BPE is supported"):
        from_folder(tmp_path)


def _sentencepiece_reference() -> ReferenceTokenizer:
    """A BPE with byte fallback as llama's: spaces are pieces, unknown characters become bytes."""
    tokenizer = ReferenceTokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["def add(a, b):", "    return a + b", "for i in range(10):"] * 4, trainer)
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = []  # bytes are pieces of the model, not markup
    return ReferenceTokenizer.from_str(json.dumps(plain))


def _write_sentencepiece(folder: Path, reference: ReferenceTokenizer) -> tuple[Path, Path]:
    vocabulary = reference.get_vocab()
    pieces = [*sorted(vocabulary, key=vocabulary.__getitem__), "<s>", "▁<PRE>"]
    num_plain = len(vocabulary)
    scores = [0.0 if i < 257 else -float(i) for i in range(len(pieces))]  # in the order in which they were merged
    types = [TokenType.NORMAL] * num_plain + [TokenType.CONTROL] * 2
    types[:257] = [TokenType.UNKNOWN, *([TokenType.BYTE] * 256)]
    path = folder / "sp.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(num_plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    data = json.loads(reference.to_str())
    data["added_tokens"] = [
        {
            "id": i,
            "content": text,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for i, text in ((0, "<unk>"), (num_plain, "<s>"), (num_plain + 1, "▁<PRE>"))
    ]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return path, folder


@pytest.mark.parametrize("kind", ["gguf", "tokenizer.json"])
def test_sentencepiece_vocabularies(tmp_path: Path, kind: str) -> None:
    reference = _sentencepiece_reference()
    path, folder = _write_sentencepiece(tmp_path, reference)
    tokenizer = from_gguf_path(path) if kind == "gguf" else from_folder(folder)
    for text in (*FIXTURES, "def add(a, b):\n    return a + b\n", "▁<PRE>"):
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text).ids
        assert tokenizer.decode(ids) == text.replace("▁", " ")  # SentencePiece cannot tell the two apart
    assert tokenizer.control_id("▁<PRE>") is not None
    assert tokenizer.bos_id == (tokenizer.control_id("<s>") if kind == "gguf" else None)
