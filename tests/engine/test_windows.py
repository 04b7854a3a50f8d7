"""Cutting texts to a number of tokens: always within it, at lines, and seldom elsewhere than before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.vocabulary import from_gguf_path
from engine.tokenizer import Tokenizer
from engine.windows import Windows
from tests.support.tiny_checkpoints import write_tiny_gguf

_PIECES = ("x = 1", "\n", "    return", "é", "😀", "a" * 40, "\r\n", " ")
_texts = st.lists(st.sampled_from(_PIECES), max_size=80).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return from_gguf_path(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "t.gguf"))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(text=_texts, max_tokens=st.integers(0, 60))
def test_an_end_fits_and_begins_at_a_line(tokenizer: Tokenizer, text: str, max_tokens: int) -> None:
    windows = Windows(tokenizer)
    shown = windows.tail(text, max_tokens)
    assert text.endswith(shown)
    assert windows.count(shown) <= max_tokens
    if windows.count(text) <= max_tokens and len(text) <= 16 * max_tokens:
        assert shown == text
    elif "\n" in shown[:-1]:
        assert text[len(text) - len(shown) - 1] == "\n"


@settings(max_examples=200, derandomize=True, deadline=None)
@given(text=_texts, max_tokens=st.integers(0, 60))
def test_a_start_fits_and_ends_at_a_line(tokenizer: Tokenizer, text: str, max_tokens: int) -> None:
    windows = Windows(tokenizer)
    shown = windows.head(text, max_tokens)
    assert text.startswith(shown)
    assert windows.count(shown) <= max_tokens
    if shown != text and "\n" in shown:
        assert shown.endswith("\n")


@pytest.mark.parametrize("max_tokens", [100, 128, 250])
def test_an_end_is_cut_in_large_steps(tokenizer: Tokenizer, max_tokens: int) -> None:
    """While lines are appended it grows at its end, until a step is due; and it never loses most of what fits."""
    windows, text, starts = Windows(tokenizer), "    x = add(a, b)\n", []
    for _ in range(200):
        text += "y = x\n"
        starts.append(len(text) - len(windows.tail(text, max_tokens)))
        assert starts[-1] == 0 or windows.count(text[starts[-1] :]) >= max_tokens // 3
    assert starts == sorted(starts)
    assert 0 < len(set(starts)) - 1 <= len(text) // (max_tokens // 2)


def test_a_line_longer_than_the_room_is_cut_in_the_same_steps(tokenizer: Tokenizer) -> None:
    windows = Windows(tokenizer)
    starts = {length - len(windows.tail("ab" * (length // 2), 64)) for length in range(400, 800, 2)}
    assert len(starts) <= 1 + 400 // 32
