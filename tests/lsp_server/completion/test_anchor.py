"""That typing only appends to the prompt, and that whatever else happens divides it anew."""

import pytest

from lsp_server.completion.anchor import Anchor, anchored
from lsp_server.config import ContextConfig
from tests.support.cursor import situation

_CONTEXT = ContextConfig()


def _anchor(drawn: str, former: Anchor | None = None) -> Anchor:
    return anchored(former, situation(drawn), _CONTEXT)


@pytest.mark.parametrize(
    "later",
    [
        "a\nx = 1║\nb",
        "a\n║\nb",
        "a\nx = f(║)\nb",
        "a\nx = f(1)║\nb",
        "a\nx = 1\ny = ║\nb",
        "a\nif x {\n    ║\n}\nb",
        "a\nif x {║}\nb",
    ],
)
def test_it_stays_while_text_is_typed(later: str) -> None:
    anchor = _anchor("a\nx = ║\nb")
    assert (anchor.before, anchor.after) == ("a\n", "\nb")
    assert _anchor(later, anchor) is anchor


@pytest.mark.parametrize(
    ("later", "before", "after"),
    [
        ("a║\nb", "", "\nb"),  # the line before was joined
        ("a2\nx = ║\nb", "a2\n", "\nb"),  # edited before
        ("a\nx = ║\nb2", "a\n", "\nb2"),  # and after
        ("a\nx = ║ + 1\nb", "a\n", " + 1\nb"),  # code on the rest of the line
        ("a\nx = \nb║", "a\nx = \n", ""),  # a jump
        ("a\n" + "x" * 3000 + "║\nb", "a\n", "\nb"),  # too much was typed
    ],
)
def test_it_moves_to_the_start_of_the_line(later: str, before: str, after: str) -> None:
    anchor = _anchor("a\nx = ║\nb")
    moved = _anchor(later, anchor)
    assert moved is not anchor
    assert (moved.before, moved.after) == (before, after)


def test_windows_stay_as_they_were() -> None:
    context = ContextConfig(max_prefix_chars=100, max_suffix_chars=50)
    lines = "".join(f"line {i}\n" for i in range(100))
    anchor = anchored(None, situation(f"{lines}x = ║\n{lines}"), context)
    assert lines.endswith(anchor.window_before)
    assert 50 <= len(anchor.window_before) <= 100
    assert f"\n{lines}".startswith(anchor.window_after)
    assert 0 < len(anchor.window_after) <= 50
    typed = "".join(f"more {i}\n" for i in range(20))
    assert anchored(anchor, situation(f"{lines}x = 1\n{typed}║\n{lines}"), context) is anchor


def test_what_the_windows_leave_out_is_known_nearest_last() -> None:
    context = ContextConfig(max_prefix_chars=100, max_suffix_chars=50)
    lines = "".join(f"line {i}\n" for i in range(100))
    anchor = anchored(None, situation(f"{lines}x = ║\n{lines}"), context)
    below, above = anchor.beyond
    assert above + anchor.window_before == anchor.before
    assert anchor.window_after + below == anchor.after
    assert anchored(None, situation("a\nx = ║\nb"), context).beyond == ()
    giant = "y" * 20_000 + "\n"
    assert all(0 < len(text) <= 6000 for text in anchored(None, situation(f"{giant}║\n{giant}"), context).beyond)
