import pytest

from lsp_server.completion.decide import Shape, has_closers_only, refusal, shape_of
from lsp_server.completion.request import EmptyReason
from lsp_server.config import MidlineConfig
from tests.support.cursor import situation


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        ("x = ║", None),
        ("║", EmptyReason.EMPTY_DOCUMENT),
        (" \n║\n\t", EmptyReason.EMPTY_DOCUMENT),
        ("x" * 5001 + "║", EmptyReason.LINE_TOO_LONG),
        ("x" * 3000 + "║" + "y" * 3000, EmptyReason.LINE_TOO_LONG),
        ("x" * 9000 + "\ny║", None),
        ("foo(║)", None),
        ('foo("║")', None),
        ("foo(║):", None),
        ("foo(║) {", None),
        ("x = ║y", EmptyReason.MID_LINE),
        ("foo(║, b)", EmptyReason.MID_LINE),
        ("foo(║)::", EmptyReason.MID_LINE),
    ],
)
def test_refusal(drawn: str, reason: EmptyReason | None) -> None:
    assert refusal(situation(drawn), MidlineConfig()) is reason


def test_explicit_request_passes_the_mid_line_gate() -> None:
    assert refusal(situation("x = ║y", is_explicit=True), MidlineConfig()) is None


def test_disabled_wins_over_all() -> None:
    assert refusal(situation("x║", is_explicit=True), MidlineConfig(enabled=False)) is EmptyReason.DISABLED


@pytest.mark.parametrize(
    ("drawn", "shape"),
    [
        ("x = ║", Shape()),
        ("x = ║)", Shape()),
        ("def f():\n    ║", Shape(True, 4)),
        ("def f():\n\t║", Shape(True, 4)),
        ("def f():\n║", Shape(True, 1)),
        ("x = 1\n║", Shape(True, 0)),
        ("    if x:║\n", Shape(True, 5)),
        ("if x then║", Shape(True, 1)),
        ("if x {║", Shape(True, 0, "}")),
        ("if x {║\n}", Shape(True, 1)),
        ("foo(║", Shape(True, 0, ")")),
        ("def f():║\n    return 1\n", Shape()),  # has its body
        ("    ║)", Shape()),
    ],
)
def test_shape(drawn: str, shape: Shape) -> None:
    assert shape_of(situation(drawn), "auto") == shape


def test_never_multiline() -> None:
    assert shape_of(situation("def f():\n    ║"), "never") == Shape()


@pytest.mark.parametrize("rest", ["", "  ", ")", "))", ']}"', ") {", "):", ");", " , "])
def test_closers(rest: str) -> None:
    assert has_closers_only(rest)


@pytest.mark.parametrize("rest", ["a", ")a", "::", ";;", "(", "\u00a0"])
def test_no_closers(rest: str) -> None:
    assert not has_closers_only(rest)
