"""Prompt formats: which family a vocabulary has, what each looks like, and what happens when text is too long."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.vocabulary import from_gguf_path
from engine.config import PROMPT_FORMATS
from engine.errors import CheckpointError, RequestError
from engine.fim import FAMILIES, LEFT_TO_RIGHT, FimFamily, PromptBuilder, detect_family, family_named
from engine.request import FileContext
from engine.tokenizer import Tokenizer
from tests.support.tiny_checkpoints import CONTROL_TOKENS, write_tiny_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_gguf_path(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "t.gguf"))


def _tokenizer_for(family: FimFamily, folder: Path) -> Tokenizer:
    markers = tuple(dict.fromkeys((*family.markers, *family.file_markers, "<s>")))
    return from_gguf_path(write_tiny_gguf(folder / f"{family.name}.gguf", control=markers))


def _shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    """A prompt with its markers as text."""
    names = {i: text for text, i in tokenizer.control_ids.items()}
    return "".join(names.get(i) or tokenizer.decode([i]) for i in ids)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen", "<|fim_prefix|>A\n<|fim_suffix|>S<|fim_middle|>x ="),
        ("deepseek", "<s><｜fim▁begin｜>A\n<｜fim▁hole｜>S<｜fim▁end｜>x ="),
        ("codellama", "<s>▁<PRE>▁<SUF>S▁<MID> A\nx ="),
        ("seed-coder", "<[fim-suffix]>S<[fim-prefix]>A\n<[fim-middle]>x ="),
        ("mellum", "<fim_suffix>S<fim_prefix>A\n<fim_middle>x ="),
        ("codeqwen", "<fim_prefix>A\n<fim_suffix>S<fim_middle>x ="),
        ("starcoder", "<fim_prefix><fim_suffix>S<fim_middle>A\nx ="),
        ("codestral", "<s>[SUFFIX]S[PREFIX]A\nx ="),
        ("aixcoder", "<s>▁<AIX-SPAN-PRE>▁<AIX-SPAN-POST>S\n▁<AIX-SPAN-MIDDLE>A\nx ="),
        ("left-to-right", "A\nx ="),
    ],
)
def test_each_family_s_prompt(tmp_path: Path, name: str, expected: str) -> None:
    family = family_named(name)
    tokenizer = _tokenizer_for(family, tmp_path)
    prompt = PromptBuilder(family, tokenizer, 256).infill("A\nx = ", "S", (), 16)
    assert _shown(tokenizer, prompt.ids) == expected
    assert prompt.required == b" "


def test_every_family_is_in_the_table_above() -> None:
    assert [family.name for family in (*FAMILIES, LEFT_TO_RIGHT)] == list(PROMPT_FORMATS)
    assert len(FAMILIES) == 9
    assert len({family.name for family in (*FAMILIES, LEFT_TO_RIGHT)}) == 10


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.is_detected], ids=lambda f: f.name)
def test_families_are_detected_by_their_markers(tmp_path: Path, family: FimFamily) -> None:
    tokenizer = _tokenizer_for(family, tmp_path)
    architecture = family.architectures[0] if family.architectures else "llama"
    assert detect_family(tokenizer, architecture, "m") is family


def test_a_vocabulary_without_markers_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    tokenizer = from_gguf_path(write_tiny_gguf(tmp_path / "t.gguf", control=("<|endoftext|>",)))
    with pytest.raises(CheckpointError, match=r"m.gguf has no fill-in-the-middle tokens; .*left-to-right"):
        detect_family(tokenizer, "qwen2", "m.gguf")
    with pytest.raises(CheckpointError, match=r"'qwen' needs the tokens <\|fim_prefix\|>"):
        PromptBuilder(family_named("qwen"), tokenizer, 100)
    with pytest.raises(CheckpointError, match=r"'nope' is not a known prompt format; known are qwen"):
        family_named("nope")


def test_markers_in_the_user_s_text_stay_text(tokenizer: Tokenizer) -> None:
    text = "".join(CONTROL_TOKENS)
    prompt = PromptBuilder(family_named("qwen"), tokenizer, 512).infill(text + "\n" + text, text, (), 16)
    control = [i for i in prompt.ids if tokenizer.is_control(i)]
    assert control == [tokenizer.control_ids[m] for m in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")]


@pytest.mark.parametrize(
    ("typed", "fed", "required"),
    [
        ("\t    ", "\t   ", b" "),  # indentation, as every editor leaves it
        ("\t", "", b"\t"),
        ("return ", "return", b" "),
        ("", "", b""),
    ],
)
def test_the_tail_that_may_change_is_required_and_not_fed(
    tokenizer: Tokenizer, typed: str, fed: str, required: bytes
) -> None:
    builder = PromptBuilder(family_named("qwen"), tokenizer, 256)
    prompt = builder.infill("if x:\n" + typed, "\n", (), 16)
    middle = prompt.ids.index(tokenizer.control_ids["<|fim_middle|>"])
    assert (tokenizer.decode(prompt.ids[middle + 1 :]), prompt.required) == (fed, required)


@settings(max_examples=200, derandomize=True)
@given(typed=st.text(alphabet="ab (é😀日\t", max_size=12))
def test_what_is_fed_and_what_is_required_are_what_was_typed(tokenizer: Tokenizer, typed: str) -> None:
    prompt = PromptBuilder(family_named("qwen"), tokenizer, 256).infill("x\n" + typed, "\n", (), 16)
    middle = prompt.ids.index(tokenizer.control_ids["<|fim_middle|>"])
    fed = b"".join(tokenizer.all_bytes[i] for i in prompt.ids[middle + 1 :])
    assert fed + prompt.required == typed.encode()
    if typed.endswith((" ", "\t")):
        assert prompt.required == typed[-1:].encode()
    elif typed.isascii() and typed:  # a word that may go on
        assert prompt.required == tokenizer.all_bytes[tokenizer.encode(typed)[-1]]


def test_a_continuation_is_healed_but_never_left_empty(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(family_named("qwen"), tokenizer, 256)
    prompt = builder.continuation("for i in  ", 16)
    assert (tokenizer.decode(prompt.ids), prompt.required) == ("for i in ", b" ")
    for text in ("for", " ", "\n"):
        prompt = builder.continuation(text, 16)
        assert (tokenizer.decode(prompt.ids), prompt.required) == (text, b"")


def test_typing_only_appends_within_a_line(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(family_named("qwen"), tokenizer, 256)
    before = builder.infill("a = 1\nfor i", "\nb", (), 16).ids
    after = builder.infill("a = 1\nfor i in range", "\nb", (), 16).ids
    assert after[: len(before)] == before


def test_other_files_come_first_in_the_family_s_own_format(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(family_named("qwen"), tokenizer, 256)
    files = (FileContext("a.py", "A"), FileContext("b.py", "B" * 1000), FileContext("c.py", "C"))
    shown = _shown(tokenizer, builder.infill("x", "", files, 16).ids)
    assert shown.startswith("<|repo_name|>\n<|file_sep|>a.py\nA\n<|file_sep|>\n<|fim_prefix|>")
    assert "BBB" not in shown


_lines = st.lists(st.text(alphabet="ab (é😀", max_size=12), max_size=60).map("\n".join)


@settings(max_examples=150, derandomize=True)
@given(prefix=_lines, suffix=_lines, max_tokens=st.integers(24, 200))
def test_a_prompt_fits_and_is_cut_at_lines(tokenizer: Tokenizer, prefix: str, suffix: str, max_tokens: int) -> None:
    builder = PromptBuilder(family_named("qwen"), tokenizer, max_tokens)
    prompt = builder.infill(prefix, suffix, (), 8)
    assert len(prompt.ids) + 8 <= max_tokens
    markers = [tokenizer.control_ids[m] for m in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")]
    first, second, third = (prompt.ids.index(i) for i in markers)
    shown_prefix = tokenizer.decode(prompt.ids[first + 1 : second])
    shown_suffix = tokenizer.decode(prompt.ids[second + 1 : third])
    typed = tokenizer.decode(prompt.ids[third + 1 :]) + prompt.required.decode()
    line_start = prefix.rfind("\n") + 1
    assert prefix[:line_start].endswith(shown_prefix)
    assert suffix.startswith(shown_suffix)
    assert prefix[line_start:].endswith(typed)
    if shown_prefix and len(shown_prefix) < line_start and "\n" in shown_prefix[:-1]:
        assert prefix[line_start - len(shown_prefix) - 1] == "\n"


def test_a_long_line_of_a_continuation_is_cut_to_the_room_there_is(tokenizer: Tokenizer) -> None:
    builder = PromptBuilder(family_named("qwen"), tokenizer, 100)
    for text in ("😀" * 600, "x" * 5000):
        assert 0 < len(builder.continuation(text, 80).ids) <= 20


def test_left_to_right_feeds_what_there_is(tmp_path: Path) -> None:
    tokenizer = from_gguf_path(write_tiny_gguf(tmp_path / "t.gguf"))
    builder = PromptBuilder(LEFT_TO_RIGHT, tokenizer, 100)
    prompt = builder.infill("for", "suffix that is not shown", (), 16)
    assert (tokenizer.decode(prompt.ids), prompt.required) == ("for", b"")
    with pytest.raises(RequestError, match="the prompt is empty"):
        builder.infill("", "x", (), 16)


def test_an_answer_that_fills_the_context_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"max_tokens is 100; the context of 100 tokens leaves no room"):
        PromptBuilder(family_named("qwen"), tokenizer, 100).infill("a", "b", (), 100)
