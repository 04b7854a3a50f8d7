"""Places in code: behind the line that opens a function, with enough text around them, and never the same twice."""

from pathlib import Path

import pytest

from engine.bench.code_samples import MIN_CHARS_AFTER, MIN_CHARS_BEFORE, CodeSample, code_samples, typing_at
from engine.errors import ConfigError

_LINE = "value = 1  # filling\n"
_BEFORE, _AFTER = _LINE * (MIN_CHARS_BEFORE // len(_LINE) + 1), _LINE * (MIN_CHARS_AFTER // len(_LINE) + 1)


@pytest.mark.parametrize(
    "header",
    ["def f(x):\n", "    async def f(x) -> int:\n", "class A(B):\n", "pub fn f() {\n", "export function f() {\n"],
)
def test_a_file_is_cut_behind_the_line_that_opens_a_function(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.code").write_text(_BEFORE + header + _AFTER)
    assert code_samples(str(tmp_path / "*"), 1, 0, ()) == [CodeSample(_BEFORE + header, _AFTER)]


def test_pythons_own_library_is_the_default_and_the_seed_decides() -> None:
    samples = code_samples("", 60, 0, ("<|fim_",))
    assert samples == code_samples("", 60, 0, ("<|fim_",)) != code_samples("", 60, 1, ("<|fim_",))
    assert len({(sample.before, sample.after) for sample in samples}) == 60
    for sample in samples:
        assert len(sample.before) >= MIN_CHARS_BEFORE and len(sample.after) >= MIN_CHARS_AFTER
        assert "<|fim_" not in sample.before + sample.after


def test_folders_are_searched_with_two_stars(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.py").write_text(_BEFORE + "def f():\n" + _AFTER)
    assert len(code_samples(str(tmp_path / "**" / "*.py"), 1, 0, ())) == 1


@pytest.mark.parametrize(
    ("content", "unwanted"),
    [
        ((_BEFORE + _AFTER).encode(), ()),
        (("def f():\n" + _BEFORE).encode(), ()),
        ((_BEFORE + "def f():\n").encode(), ()),
        ((_BEFORE + "def f():\n<|marker|>\n" + _AFTER).encode(), ("<|marker|>",)),
        ((_BEFORE + "def f():\n" + _AFTER).encode("utf-16"), ()),
        (None, ()),
    ],
    ids=["no function", "too early", "too late", "marker", "no text", "no file"],
)
def test_without_enough_places_it_is_said_what_is_needed(
    tmp_path: Path, content: bytes | None, unwanted: tuple[str, ...]
) -> None:
    if content is not None:
        (tmp_path / "a.py").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--data is '.*': \d files with 0 places to write at, 1 are needed: "):
        code_samples(str(tmp_path / "*.py"), 1, 0, unwanted)


def test_a_line_that_takes_some_typing_is_typed() -> None:
    typing = typing_at(CodeSample("def f(x):\n", "    pass\n\n    return x.something(1)  \nrest\n"))
    assert typing.prefix == "def f(x):\n    pass\n\n"
    assert (typing.indent, typing.line, typing.suffix) == ("    ", "return x.something(1)", "  \nrest\n")
    assert typing_at(CodeSample("a\n", "b\nc")).line == "b"
