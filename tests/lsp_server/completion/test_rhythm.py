import pytest

from lsp_server.completion.rhythm import Rhythm


def _typed(*pauses_s: float) -> Rhythm:
    rhythm, now_s = Rhythm(), 100.0
    rhythm.key(now_s)
    for pause_s in pauses_s:
        now_s += pause_s
        rhythm.key(now_s)
    return rhythm


def test_nothing_is_waited_for_before_anything_is_known() -> None:
    assert Rhythm().wait_ms(60) == 0


def test_a_fast_engine_waits_for_nobody() -> None:
    rhythm = _typed(*[0.2] * 20)
    rhythm.answered(150)
    assert rhythm.wait_ms(60) == 0


def test_a_slow_engine_waits_by_as_much_as_it_is_late_up_to_the_limit() -> None:
    rhythm = _typed(*[0.1] * 60)
    assert rhythm.pause_ms == pytest.approx(100, abs=1)
    rhythm.answered(130)
    assert rhythm.wait_ms(60) == pytest.approx(30, abs=1)
    for _ in range(50):
        rhythm.answered(700)
    assert rhythm.wait_ms(60) == 60
    assert rhythm.wait_ms(0) == 0


def test_one_long_answer_or_pause_changes_little() -> None:
    rhythm = _typed(*[0.15] * 60, 30.0, 0.15)
    assert rhythm.pause_ms == pytest.approx(150, abs=1)
    rhythm.answered(100)
    rhythm.answered(300)
    assert rhythm.answer_ms == pytest.approx(140)


def test_who_types_faster_is_followed() -> None:
    rhythm = _typed(*[0.3] * 40)
    rhythm.answered(200)
    assert rhythm.wait_ms(60) == 0
    for number in range(40):
        rhythm.key(1000 + number * 0.05)
    assert rhythm.wait_ms(60) == 60
