import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.context.window import window_after, window_before

TEXT = st.text(alphabet="ab \n", max_size=300)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(TEXT, st.integers(0, 120))
def test_window_before_is_a_bounded_end(text: str, max_chars: int) -> None:
    window = window_before(text, max_chars)
    assert text.endswith(window)
    assert len(window) == len(text) if len(text) <= max_chars else len(window) <= max_chars


@settings(derandomize=True, max_examples=200, deadline=None)
@given(TEXT, st.integers(0, 120))
def test_window_after_is_a_bounded_beginning(text: str, max_chars: int) -> None:
    window = window_after(text, max_chars)
    assert text.startswith(window)
    assert len(window) == len(text) if len(text) <= max_chars else len(window) <= max_chars


def test_start_stays_while_lines_are_typed_and_moves_by_32_lines() -> None:
    lines = [f"line {number:03}\n" for number in range(400)]  # 9 characters each
    starts = [window_before("".join(lines[:count]), 2000)[:8] for count in range(250, 350)]
    moves = [int(start[5:]) for start in starts]
    assert all(move % 32 == 0 for move in moves)
    assert len(set(moves)) <= 5


def test_long_lines_shrink_the_step_but_not_the_border() -> None:
    text = "".join(f"{number:02}" + "x" * 97 + "\n" for number in range(60))
    window = window_before(text, 1000)
    assert 500 <= len(window) <= 1000
    assert window[:2].isdigit()


def test_giant_line_is_cut() -> None:
    assert window_before("a\n" + "x" * 5000, 100) == "x" * 100
    assert window_after("x" * 5000 + "\na", 100) == "x" * 100


@pytest.mark.parametrize(("suffix", "window"), [("\nab\ncd\nef", "\nab\ncd"), ("x\nabc", "x\nabc"), ("", "")])
def test_window_after_ends_at_a_line(suffix: str, window: str) -> None:
    assert window_after(suffix, 7) == window
