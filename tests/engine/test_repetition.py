"""Texts that run in circles end where it can be told; what only repeats a little does not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.repetition import Repetition, ends_in_pattern
from engine.request import FinishReason, SamplingParams
from engine.textstream import TextStream

_NESTED = "".join(
    "    " * depth + line + "\n"
    for depth in range(9)
    for line in ("context = Context(", "before=window_before,", "after=window_after,")
)
_LONG_PART = "".join(
    f"if params.context == Source.NUMBER_{number} and is_wanted:\n    return []\n" for number in range(4)
)
_CODE = [
    "x = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\ny = [1, 1, 1, 1]\n",
    "# " + "-" * 100 + "\n# Title\n# " + "-" * 100 + "\n",
    "            }\n        }\n    }\n}\n",
    "".join(f"    case {number}:\n        return first(value)\n" for number in range(9)),
    "print(x)\nprint(x)\n",
    "        ),\n        (\n        ),\n        (\n        ),\n        (\n",
    _LONG_PART,
]


def _first_stop(text: str) -> int | None:
    """After how many characters, given one after the other."""
    watch = Repetition()
    return next((end for end, char in enumerate(text, 1) if watch.push(char)), None)


@pytest.mark.parametrize(
    ("text", "num_kept"),
    [
        ("self.counter.increase(1)\n" * 9, 3 * 25),
        ("x\nself.counter.increase(1)\n\n  self.total.increase(2)\n" * 9, 3 * 53),
        (_LONG_PART * 3, 2 * len(_LONG_PART)),
        (_NESTED, sum(len(line) + 1 for line in _NESTED.split("\n")[:9])),
        ("value = " + "_options" * 30, 8 + 80),
        ("return " + "models.get(" * 20, 7 + 88),
    ],
)
def test_circles_are_seen_as_soon_as_they_can_be(text: str, num_kept: int) -> None:
    assert _first_stop(text) == num_kept


@pytest.mark.parametrize("text", _CODE)
def test_code_may_repeat_itself_a_little(text: str) -> None:
    assert _first_stop(text) is None


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=8), st.sampled_from([_NESTED, _LONG_PART * 3, *_CODE]))
def test_at_line_ends_it_does_not_matter_in_which_pieces_a_text_comes(cuts: list[int], text: str) -> None:
    watch, pieces, start = Repetition(), list[str](), 0
    for cut in sorted(cuts):
        pieces.append(text[start : max(start, cut)])
        start = max(start, cut)
    assert any(map(watch.push, [*pieces, text[start:]])) == (_first_stop(text) is not None)


def test_a_ruler_is_no_pattern_but_letters_are() -> None:
    assert not ends_in_pattern("-" * 200, 40)
    assert ends_in_pattern("ab, " * 10, 40)
    assert not ends_in_pattern("ab, " * 9, 40)


def test_a_generation_ends_there_only_if_it_is_asked_to() -> None:
    for is_asked in (True, False):
        stream = TextStream(SamplingParams(stop_repetition=is_asked))
        text = ""
        for line in _NESTED.splitlines(keepends=True):
            text += stream.push(line.encode(), 0.0)
            if stream.finish_reason is not None:
                break
        assert stream.finish_reason == (FinishReason.REPETITION if is_asked else None)
        assert _NESTED.startswith(text)
        assert text.count("\n") == (9 if is_asked else _NESTED.count("\n"))
