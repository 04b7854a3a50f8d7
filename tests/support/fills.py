"""What a model writes into holes with the cursor in different places, and whether one way is worse than another."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.engine import Engine
from engine.request import CompletionRequest, SamplingParams
from tests.support.humaneval import Hole, load_holes, load_spans, passes_tests, white_space

_LINE = SamplingParams(max_tokens=96, stop=("\n",))
_SPAN = SamplingParams(max_tokens=128)  # the longest span with the line after it has 106


@dataclass(frozen=True)
class Cursor:
    """A cursor in a hole, behind what has been ``typed`` of the missing part."""

    hole: Hole
    typed: str
    sampling: SamplingParams


def at_line_starts(count: int) -> list[Cursor]:
    """Nothing of the missing line is there."""
    return [Cursor(hole, "", _LINE) for hole in load_holes(count)]


def after_indentations(count: int) -> list[Cursor]:
    """As an editor leaves it behind Enter."""
    return [Cursor(hole, hole.indent, _LINE) for hole in load_holes(count)]


def in_half_lines(count: int) -> list[Cursor]:
    """Behind a quarter, half and three quarters of each third line's characters, the indentation not counted."""
    cursors = []
    for index, hole in enumerate(load_holes(count)):
        num_chars = len(hole.missing) - len(hole.indent)
        num_typed = len(hole.indent) + num_chars * (1 + index % 3) // 4
        cursors.append(Cursor(hole, hole.missing[: max(1, num_typed)], _LINE))
    return cursors


def in_spans(count: int) -> list[Cursor]:
    """Anywhere, mostly in the middle of a line, and what is missing may be several lines.

    Small models rarely end such a fill by themselves, but go on with what stands after the hole, and then with
    whatever may follow. So a fill ends where the next line of the program begins, or the function ends.
    """
    return [Cursor(hole, "", replace(_SPAN, stop=_ends(hole.suffix))) for hole in load_spans(count)]


def _ends(suffix: str) -> tuple[str, ...]:
    """The first line after the hole that is not blank, with its indentation, and what is not within a function."""
    if not suffix.strip():
        return ("\n\n",)
    code = suffix.lstrip()
    line_start = suffix.rfind("\n", 0, len(suffix) - len(code))
    line_end = suffix.find("\n", len(suffix) - len(code))
    return suffix[max(line_start, 0) : line_end + 1], "\n\n\n"


Way = Callable[[Cursor], CompletionRequest]


def append_only(cursor: Cursor) -> CompletionRequest:
    """As the engine does it by itself: what was typed of the cursor's line is the last part of the prompt, healed."""
    return CompletionRequest(cursor.hole.prefix + cursor.typed, cursor.hole.suffix, cursor.sampling)


def unhealed(cursor: Cursor) -> CompletionRequest:
    """The same order, with the text before the cursor fed as it is."""
    return replace(append_only(cursor), heal=False)


def usual_order(cursor: Cursor) -> CompletionRequest:
    """Everything before the cursor stands before the suffix, as models are trained; so there is nothing to heal."""
    request = append_only(cursor)
    return replace(request, anchor=len(request.prefix))


def whole_line(cursor: Cursor) -> CompletionRequest:
    """The benchmark's own convention: the model writes the line's end, too, up to which its answer is taken."""
    return replace(append_only(cursor), suffix=cursor.hole.suffix.removeprefix("\n"))


@dataclass(frozen=True)
class Fill:
    """``text`` in place of the missing part, what was typed included; white space at its end does not count."""

    cursor: Cursor
    text: str
    is_passed: bool

    @property
    def is_exact(self) -> bool:
        return self.text.rstrip() == self.cursor.hole.missing.rstrip()

    @property
    def is_indented(self) -> bool:
        return white_space(self.text) == self.cursor.hole.indent

    @property
    def begins_right(self) -> bool:
        """Whether it agrees up to the end of the first line that is not blank."""
        return _first_line(self.text) == _first_line(self.cursor.hole.missing)


def _first_line(text: str) -> str:
    num_blank = len(text) - len(text.lstrip())
    end = text.find("\n", num_blank)
    return text[: len(text) if end < 0 else end].rstrip()


def fill(engine: Engine, cursors: Sequence[Cursor], way: Way) -> list[Fill]:
    """Fill the holes, greedily and many together, and run the tests; prints the shares."""
    texts = [answer.text for answer in engine.complete_all(map(way, cursors))]
    filled = [cursor.typed + text for cursor, text in zip(cursors, texts, strict=True)]
    passes = [passes_tests(cursor.hole, text) for cursor, text in zip(cursors, filled, strict=True)]
    fills = list(map(Fill, cursors, filled, passes))
    print(
        f"\n{engine.info.model} {engine.info.dtype} {way.__name__} n={len(fills)}: exact {exact(fills):.4f}, "
        f"pass@1 {passed(fills):.4f}, first line {share([f.begins_right for f in fills]):.4f}, "
        f"indented {share([f.is_indented for f in fills]):.4f}"
    )
    return fills


def exact(fills: Sequence[Fill]) -> float:
    """Share of the fills that are the missing part to the character."""
    return share([fill.is_exact for fill in fills])


def passed(fills: Sequence[Fill]) -> float:
    """Share of the fills with which the tests pass."""
    return share([fill.is_passed for fill in fills])


def share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def compare(before: Sequence[Fill], after: Sequence[Fill]) -> tuple[float, float]:
    """``loss_by_chance`` of exact fills and of passed ones; prints what was lost and won."""
    chances = []
    for name in ("is_exact", "is_passed"):
        pairs = [(getattr(old, name), getattr(new, name)) for old, new in zip(before, after, strict=True)]
        chances.append(loss_by_chance(pairs))
        print(
            f"{name}: {pairs.count((True, False))} lost, {pairs.count((False, True))} won, {chances[-1]:.3f} by chance"
        )
    return chances[0], chances[1]


def loss_by_chance(pairs: Sequence[tuple[bool, bool]]) -> float:
    """The probability that as many are lost, or more, when losing and winning one are equally likely.

    ``pairs`` are outcomes before and after. McNemar's test in its exact, one-sided form: of the pairs that differ,
    the lost ones are binomial.
    """
    num_lost, num_won = pairs.count((True, False)), pairs.count((False, True))
    num_different = num_lost + num_won
    return sum(math.comb(num_different, k) for k in range(num_lost, num_different + 1)) / 2**num_different
