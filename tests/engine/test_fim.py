"""Prompt formats: which family a vocabulary has, what each looks like, and what happens when text is too long."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.prefix_index import common_length
from engine.checkpoint.vocabulary import from_gguf_path
from engine.config import PROMPT_FORMATS
from engine.errors import CheckpointError, RequestError
from engine.fim import FAMILIES, LEFT_TO_RIGHT, FimFamily, PromptBuilder, detect_family, family_named
from engine.healing import Vocabulary
from engine.request import FileContext
from engine.tokenizer import Tokenizer
from tests.support.tiny_checkpoints import CONTROL_TOKENS, write_tiny_gguf

_PIECES = (
    *("a", "b", " ", "  ", "\t", "\n", "\r\n", "\n    ", "return", " x", "self", ".", "(", "):", "==", "12", "_"),
    *("é", "日本", "😀", "e\u0301", "'s", '"', "<|fim_middle|>", "<|", "|>", "for i in range(10):\n        "),
)
typed_texts = st.lists(st.sampled_from(_PIECES), max_size=14).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_gguf_path(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "t.gguf"))


def _tokenizer_for(family: FimFamily, folder: Path) -> Tokenizer:
    markers = tuple(dict.fromkeys((*family.markers, *family.file_markers, "<s>")))
    return from_gguf_path(write_tiny_gguf(folder / f"{family.name}.gguf", control=markers))


def _builder(tokenizer: Tokenizer, max_tokens: int, family: FimFamily = FAMILIES[0]) -> PromptBuilder:
    return PromptBuilder(family, Vocabulary.of(tokenizer), max_tokens)


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
    prompt = _builder(tokenizer, 256, family).infill("A\nx = ", "S", (), 16)
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
        _builder(tokenizer, 100)
    with pytest.raises(CheckpointError, match=r"'nope' is not a known prompt format; known are qwen"):
        family_named("nope")


def test_markers_in_the_user_s_text_stay_text(tokenizer: Tokenizer) -> None:
    text = "".join(CONTROL_TOKENS)
    prompt = _builder(tokenizer, 512).infill(text + "\n" + text, text, (), 16)
    control = [i for i in prompt.ids if tokenizer.is_control(i)]
    assert control == [tokenizer.control_ids[m] for m in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")]


@pytest.mark.parametrize(
    ("typed", "fed", "required"),
    [
        ("\t    ", "\t   ", b" "),  # indentation, as every editor leaves it
        ("\t", "", b"\t"),
        ("return ", "return", b" "),
        ("        i", "       ", b" i"),
        ("        .", "       ", b" ."),  # the space has a token of its own, but not where a text ends with it
        ("", "", b""),
    ],
)
def test_the_tail_that_may_change_is_required_and_not_fed(
    tokenizer: Tokenizer, typed: str, fed: str, required: bytes
) -> None:
    builder = _builder(tokenizer, 256)
    prompt = builder.infill("if x:\n" + typed, "\n", (), 16)
    middle = prompt.ids.index(tokenizer.control_ids["<|fim_middle|>"])
    assert (tokenizer.decode(prompt.ids[middle + 1 :]), prompt.required) == (fed, required)


@settings(max_examples=150, derandomize=True)
@given(typed=typed_texts, more=typed_texts)
def test_what_is_fed_keeps_its_tokens_whatever_is_typed_next(tokenizer: Tokenizer, typed: str, more: str) -> None:
    prompt = _builder(tokenizer, 512).infill("x\n" + typed, "\n", (), 16, anchor=2)
    fed = prompt.ids[prompt.ids.index(tokenizer.control_ids["<|fim_middle|>"]) + 1 :]
    assert b"".join(tokenizer.all_bytes[i] for i in fed) + prompt.required == typed.encode()
    if not typed.endswith((" ", "\t")):
        assert tokenizer.encode(typed + more)[: len(fed)] == fed
    else:
        assert prompt.required == typed[-1:].encode()
        if more.strip() and not more[0].isspace():  # the run is over
            assert tokenizer.encode(typed + more)[: len(fed)] == fed


def test_a_word_s_beginning_is_required_whole(tokenizer: Tokenizer) -> None:
    """So that its usual token can be chosen, whatever tokens its beginning has."""
    builder = _builder(tokenizer, 256)
    assert len(tokenizer.encode("impor")) > 1 == len(tokenizer.encode("import"))
    for length in range(1, len("import")):
        prompt = builder.infill("a\n" + "import"[:length], "\n", (), 16)
        assert prompt.ids[-1] == tokenizer.control_ids["<|fim_middle|>"]
        assert prompt.required == b"import"[:length]


def test_what_no_token_goes_on_from_is_fed(tokenizer: Tokenizer) -> None:
    """The tokens of a character that no longer token begins with, also where it has several."""
    assert len(tokenizer.encode("😀")) > 1
    prompt = _builder(tokenizer, 256).infill("a😀", "\n", (), 16)
    assert (tokenizer.decode(prompt.ids), prompt.required) == ("\na😀", b"")


def test_half_a_surrogate_pair_is_borne(tokenizer: Tokenizer) -> None:
    prompt = _builder(tokenizer, 256).infill("a\n\ud83d", "\ude00", (), 16)
    assert _shown(tokenizer, prompt.ids).endswith("\ufffd")
    assert prompt.required == b""


def test_nothing_is_required_without_healing(tokenizer: Tokenizer) -> None:
    builder = _builder(tokenizer, 256)
    for typed in ("    ", "retur", "x "):
        prompt = builder.infill("a\n" + typed, "", (), 16, heal=False)
        assert _shown(tokenizer, prompt.ids).endswith("<|fim_middle|>" + typed)
        assert prompt.required == b""
    prompt = builder.continuation("a retur", 16, heal=False)
    assert (tokenizer.decode(prompt.ids), prompt.required) == ("a retur", b"")


def test_a_continuation_is_healed_but_never_left_empty(tokenizer: Tokenizer) -> None:
    builder = _builder(tokenizer, 256)
    prompt = builder.continuation("for i in  ", 16)
    assert (tokenizer.decode(prompt.ids), prompt.required) == ("for i in ", b" ")
    for text in ("for", " ", "\n"):
        prompt = builder.continuation(text, 16)
        assert (tokenizer.decode(prompt.ids), prompt.required) == (text, b"")


def test_typing_only_appends_within_a_line(tokenizer: Tokenizer) -> None:
    builder = _builder(tokenizer, 256)
    before = builder.infill("a = 1\nfor i", "\nb", (), 16).ids
    after = builder.infill("a = 1\nfor i in range", "\nb", (), 16).ids
    assert after[: len(before)] == before


def test_other_files_come_first_in_the_family_s_own_format(tokenizer: Tokenizer) -> None:
    builder = _builder(tokenizer, 256)
    files = (FileContext("a.py", "A"), FileContext("b.py", "B" * 1000), FileContext("c.py", "C"))
    shown = _shown(tokenizer, builder.infill("x", "", files, 16).ids)
    assert shown.startswith("<|repo_name|>\n<|file_sep|>a.py\nA\n<|file_sep|>\n<|fim_prefix|>")
    assert "BBB" not in shown


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen", "<|fim_prefix|>A\nif<|fim_suffix|>S<|fim_middle|> x:\n   "),
        ("seed-coder", "<[fim-suffix]>S<[fim-prefix]>A\nif<[fim-middle]> x:\n   "),
        ("starcoder", "<fim_prefix><fim_suffix>S<fim_middle>A\nif x:\n   "),
        ("left-to-right", "A\nif x:\n   "),
    ],
)
def test_the_typed_segment_begins_at_the_anchor(tmp_path: Path, name: str, expected: str) -> None:
    family = family_named(name)
    tokenizer = _tokenizer_for(family, tmp_path)
    prompt = _builder(tokenizer, 256, family).infill("A\nif x:\n    ", "S", (), 16, anchor=len("A\nif"))
    assert _shown(tokenizer, prompt.ids) == expected
    assert prompt.required == b" "


def test_nothing_is_healed_across_the_anchor(tokenizer: Tokenizer) -> None:
    prompt = _builder(tokenizer, 256).infill("a\nretur", "S", (), 16, anchor=len("a\nretur"))
    assert _shown(tokenizer, prompt.ids) == "<|fim_prefix|>a\nretur<|fim_suffix|>S<|fim_middle|>"
    assert prompt.required == b""


def _num_computed(prompts: list[list[int]]) -> list[int]:
    """Tokens of each prompt but the first that none of the ten before it began with; the last one always counts."""
    return [
        max(1, len(prompt) - max(common_length(prompt, earlier) for earlier in prompts[max(0, at - 10) : at]))
        for at, prompt in enumerate(prompts)
        if at
    ]


@settings(max_examples=40, derandomize=True, deadline=None)
@given(typed=typed_texts)
def test_a_keystroke_costs_what_was_typed(tokenizer: Tokenizer, typed: str) -> None:
    """Also over line ends, because the anchor stays."""
    builder, before = _builder(tokenizer, 1024), "def f(x):\n" * 3
    prompts = [
        builder.infill(before + typed[:length], "\nend\n", (), 16, anchor=len(before)).ids
        for length in range(len(typed) + 1)
    ]
    computed = _num_computed(prompts)
    assert max(computed, default=0) <= 8
    assert sum(computed) <= len(computed) + 2 * len(tokenizer.encode(typed))


@pytest.mark.parametrize("line", ["    x = add(a, b)\n", "for i in range(10):\n", "return x + y; "])
def test_where_a_text_is_cut_stays_for_many_keystrokes(tokenizer: Tokenizer, line: str) -> None:
    """A context that holds neither the file nor what is typed: most keystrokes leave every cut where it is."""
    before, typed, suffix = ("".join(f"{i:03}{line}" for i in range(at, at + 40)) for at in (0, 40, 80))
    builder = _builder(tokenizer, 300)
    lengths = range(len(typed))
    prompts = [builder.infill(before + typed[:n], suffix, (), 16, anchor=len(before)).ids for n in lengths]
    moved = sum(count > 8 for count in _num_computed(prompts))
    assert 0 < moved <= len(typed) // 20


@pytest.mark.parametrize("line", ["    x = add(a, b)\n", "for i in range(10):\n", "é = 1\n"])
def test_where_a_text_is_cut_stays_also_without_an_anchor(tokenizer: Tokenizer, line: str) -> None:
    """Then the text before the cursor's line grows by each line that is typed."""
    before, typed, suffix = ("".join(f"{i:03}{line}" for i in range(at, at + 40)) for at in (0, 40, 80))
    builder = _builder(tokenizer, 300)
    starts = [builder.infill(before + typed[:n], suffix, (), 16).ids[:40] for n in range(len(typed))]
    moved = sum(start != former for former, start in pairwise(starts))
    assert 0 < moved <= 1 + len(typed) // 64


_lines = st.lists(st.text(alphabet="ab (é😀", max_size=12), max_size=60).map("\n".join)


@settings(max_examples=150, derandomize=True)
@given(prefix=_lines, suffix=_lines, max_tokens=st.integers(24, 200))
def test_a_prompt_fits_and_is_cut_at_lines(tokenizer: Tokenizer, prefix: str, suffix: str, max_tokens: int) -> None:
    builder = _builder(tokenizer, max_tokens)
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
    builder = _builder(tokenizer, 100)
    for text in ("😀" * 600, "x" * 5000):
        assert 0 < len(builder.continuation(text, 80).ids) <= 20


def test_left_to_right_feeds_what_there_is(tmp_path: Path) -> None:
    tokenizer = from_gguf_path(write_tiny_gguf(tmp_path / "t.gguf"))
    builder = _builder(tokenizer, 100, LEFT_TO_RIGHT)
    prompt = builder.infill("for", "suffix that is not shown", (), 16)
    assert (tokenizer.decode(prompt.ids), prompt.required) == ("for", b"")
    with pytest.raises(RequestError, match="the prompt is empty"):
        builder.infill("", "x", (), 16)


def test_an_answer_that_fills_the_context_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"max_tokens is 100; the context of 100 tokens leaves no room"):
        _builder(tokenizer, 100).infill("a", "b", (), 100)
