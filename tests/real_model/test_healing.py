"""What healing and the append-only prompt do for the text: HumanEval's holes with the cursor where an editor has it."""

import re
from collections.abc import Sequence

import pytest

from engine.engine import Engine
from tests.real_model.conftest import load
from tests.support import fills
from tests.support.fills import Cursor, Fill, append_only, compare, exact, fill, passed, unhealed, usual_order
from tests.support.humaneval import Hole, passes_tests

pytestmark = pytest.mark.timeout(2400)
_LARGE = "qwen2.5-coder-1.5b"


@pytest.fixture(scope="module")
def large_engine() -> Engine:
    return load(_LARGE)


def _after_indentations(engine: Engine) -> Sequence[Fill]:
    """Fills with healing, which get the indentation right, whatever else."""
    cursors = fills.after_indentations(100)
    healed = fill(engine, cursors, append_only)
    compare(fill(engine, cursors, unhealed), healed)
    assert all(one.is_indented for one in healed)
    return healed


def _check_spans(engine: Engine, count: int) -> None:
    """The cursor is in the middle of a word as often as not; healing must not cost anything."""
    cursors = fills.in_spans(count)
    healed, fed_as_is = fill(engine, cursors, append_only), fill(engine, cursors, unhealed)
    compare(fed_as_is, healed)
    assert exact(healed) >= exact(fed_as_is)


def _check_half_lines(engine: Engine, count: int) -> None:
    """A prompt to which typing only appends is as good as the order that the models are trained with."""
    cursors = fills.in_half_lines(count)
    appended, usual = fill(engine, cursors, append_only), fill(engine, cursors, usual_order)
    compare(usual, appended)
    assert exact(appended) >= exact(usual) - 0.03
    assert passed(appended) >= passed(usual) - 0.03


@pytest.mark.real_model
def test_after_the_indentation(default_engine: Engine) -> None:
    assert passed(_after_indentations(default_engine)) >= 0.60


@pytest.mark.real_model_large
def test_large_model_after_the_indentation(large_engine: Engine) -> None:
    assert passed(_after_indentations(large_engine)) >= 0.85


@pytest.mark.real_model
def test_some_random_spans(default_engine: Engine) -> None:
    _check_spans(default_engine, 40)


@pytest.mark.real_model_large
def test_all_random_spans(default_engine: Engine) -> None:
    _check_spans(default_engine, 164)


@pytest.mark.real_model_large
def test_large_model_in_all_random_spans(large_engine: Engine) -> None:
    _check_spans(large_engine, 164)


@pytest.mark.real_model
def test_some_half_typed_lines(default_engine: Engine) -> None:
    _check_half_lines(default_engine, 40)


@pytest.mark.real_model_large
def test_more_half_typed_lines(default_engine: Engine) -> None:
    _check_half_lines(default_engine, 120)


@pytest.mark.real_model_large
def test_large_model_in_half_typed_lines(large_engine: Engine) -> None:
    _check_half_lines(large_engine, 120)


def test_cursors_stand_in_their_holes() -> None:
    for make in (fills.at_line_starts, fills.after_indentations, fills.in_half_lines, fills.in_spans):
        cursors = make(100)
        assert len({cursor.hole for cursor in cursors}) == 100
        assert all(cursor.hole.missing.startswith(cursor.typed) for cursor in cursors)
        assert all(passes_tests(cursor.hole, cursor.hole.missing) for cursor in cursors[:5])
        assert all(("\n" in cursor.hole.missing) <= (make is fills.in_spans) for cursor in cursors)
    assert all(cursor.typed.isspace() for cursor in fills.after_indentations(100))
    halves = fills.in_half_lines(100)
    assert all(len(cursor.typed) >= len(cursor.hole.indent) for cursor in halves)
    assert sum(0 < len(cursor.typed.strip()) < len(cursor.hole.missing.strip()) for cursor in halves) >= 99


def test_a_fill_that_goes_on_with_the_program_ends_with_what_was_missing() -> None:
    for cursor in fills.in_spans(164):
        suffix = cursor.hole.suffix
        for rest in (suffix, re.sub(r"^\s*\n", "\n", suffix)):  # also without the blank lines
            text = cursor.hole.missing + rest + "\n\n\ndef main():\n"
            end = min(at for stop in cursor.sampling.stop if (at := text.find(stop)) >= 0)
            assert Fill(cursor, text[:end], is_passed=True).is_exact


def test_the_ways_differ_in_what_is_before_the_suffix_and_healed() -> None:
    for cursor in (fills.in_half_lines(1)[0], fills.in_spans(1)[0]):
        request = append_only(cursor)
        assert request.prefix + cursor.hole.missing[len(cursor.typed) :] == cursor.hole.prefix + cursor.hole.missing
        assert (request.suffix, request.anchor, request.heal) == (cursor.hole.suffix, None, True)
        assert (unhealed(cursor).prefix, unhealed(cursor).heal) == (request.prefix, False)
        assert usual_order(cursor).anchor == len(request.prefix)
    assert fills.whole_line(fills.at_line_starts(1)[0]).suffix == fills.load_holes(1)[0].suffix[1:]


@pytest.mark.parametrize(
    ("text", "is_exact", "begins_right", "is_indented"),
    [
        ("\n  a\n  b", True, True, True),
        ("\n  a \n  c", False, True, True),
        ("\n  a\n  b \n", True, True, True),
        ("\n  a", False, True, True),
        ("\n  ab\n  b", False, False, True),
        (" a\n  b", False, False, False),
        ("", False, False, True),
    ],
)
def test_fills_are_compared_as_they_are(text: str, is_exact: bool, begins_right: bool, is_indented: bool) -> None:
    hole = Hole("x", "y", "\n  a\n  b", "", "")
    one = Fill(Cursor(hole, "", append_only(fills.in_spans(1)[0]).sampling), text, is_passed=False)
    assert (one.is_exact, one.begins_right, one.is_indented) == (is_exact, begins_right, is_indented)


def test_the_paired_test_tells_a_loss_from_chance() -> None:
    lost, won, kept = (True, False), (False, True), (True, True)
    assert fills.loss_by_chance([kept] * 10 + [won] * 10) == 1.0
    assert fills.loss_by_chance([kept] * 10) == 1.0
    assert fills.loss_by_chance([kept] * 5 + [lost] * 5) == 1 / 32
    assert fills.loss_by_chance([lost, kept, won]) == 0.75
