"""Token ids against the reference, round trips, and text that looks like markers."""

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter
from gguf.constants import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as ReferenceTokenizer

from engine.checkpoint.pretokenizers import PATTERNS
from engine.checkpoint.source import open_checkpoint
from engine.checkpoint.vocabulary import from_folder, from_gguf_path
from engine.errors import CheckpointError
from engine.tokenizer import Tokenizer
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
    path = write_tiny_gguf(folder / "t.gguf") if is_gguf else write_tiny_folder(folder / "hf")
    return open_checkpoint(path).load_tokenizer()


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
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_end_of_sequence_ids_are_known(tokenizer: Tokenizer) -> None:
    assert tokenizer.control_id("<|endoftext|>") in tokenizer.eos_ids


@pytest.mark.parametrize("text", FIXTURES)
def test_patterns_split_as_independent_pretokenizers_do(text: str) -> None:
    """The tokenizers library has GPT-2's rule built in, and one that splits digits off."""
    references = {
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=True)]
        ),
    }
    for name, reference in references.items():
        ours = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ]
        )
        assert ours.pre_tokenize_str(text) == reference.pre_tokenize_str(text)


_SPACES = ("        ", "\t\t")


def _with_space_tokens(folder: Path, kind: str) -> Tokenizer:
    """A vocabulary with runs of white space as added tokens, behind the markers."""
    if kind == "gguf":
        path = write_tiny_gguf(folder / "t.gguf", control=(*CONTROL_TOKENS, *_SPACES))
        return from_gguf_path(path)
    write_tiny_folder(folder / "hf")
    data = json.loads((folder / "hf/tokenizer.json").read_text())
    last = data["added_tokens"][-1]
    data["added_tokens"] += [{**last, "id": last["id"] + 1 + i, "content": t} for i, t in enumerate(_SPACES)]
    (folder / "hf/tokenizer.json").write_text(json.dumps(data))
    return from_folder(folder / "hf")


@pytest.mark.parametrize("kind", ["gguf", "tokenizer.json"])
def test_runs_of_space_that_are_added_tokens_keep_their_ids(tmp_path: Path, kind: str) -> None:
    tokenizer = _with_space_tokens(tmp_path, kind)
    text = "a        b\t\tc<|endoftext|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not any(tokenizer.is_control(i) for i in ids)
    assert [tokenizer.all_bytes[i] for i in ids if i >= tokenizer.vocab_size - 2] == [b" " * 8, b"\t\t"]


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
    for model in (None, {"type": "BPE"}, {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
        with pytest.raises(CheckpointError, match=r"tokenizer.json has an unusable tokenizer"):
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
