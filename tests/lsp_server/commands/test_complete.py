import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import ModelNotDownloadedError, ServiceError
from lsp_server.backends.base import BackendState
from lsp_server.commands.complete import parse_location, run_complete, situation_at, wait_until_ready
from lsp_server.errors import UsageError
from tests.support.lsp_session import private_folders
from tests.support.scripted_backend import ScriptedBackend


@pytest.fixture(autouse=True)
def _private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in private_folders(tmp_path).items():
        monkeypatch.setenv(name, value)
    yield


@pytest.mark.parametrize(
    ("location", "parsed"),
    [
        ("a.py:1:2", (Path("a.py"), 1, 2)),
        ("C:\\x\\a.py:10:20", (Path("C:\\x\\a.py"), 10, 20)),
        ("odd:name:3.py:1:1", (Path("odd:name:3.py"), 1, 1)),
        ("a b.py:0:0", (Path("a b.py"), 0, 0)),
    ],
)
def test_location_is_read_from_the_right(location: str, parsed: tuple[Path, int, int]) -> None:
    assert parse_location(location) == parsed


@pytest.mark.parametrize("location", ["", "a.py", "a.py:1", "a.py:1:x", "a.py:-1:1", "a.py:1:1:", ":1:1", "a.py:١:1"])
def test_other_forms_are_refused(location: str) -> None:
    with pytest.raises(UsageError, match=r"is not FILE:LINE:COL, for example"):
        parse_location(location)


@pytest.mark.parametrize(
    ("content", "line", "column", "before", "after"),
    [
        (b"ab\ncd\n", 1, 1, "", "ab\ncd\n"),
        (b"ab\ncd\n", 2, 3, "ab\ncd", "\n"),
        (b"ab\ncd\n", 3, 1, "ab\ncd\n", ""),
        (b"", 1, 1, "", ""),
        (b"a\r\nb\rc", 3, 2, "a\nb\nc", ""),
        ("😀é\n".encode(), 1, 2, "😀", "é\n"),
        (b"\xef\xbb\xbfab", 1, 2, "a", "b"),
        (b"a\xff\n", 1, 3, "a\ufffd", "\n"),
        (b"a\x0cb\n", 1, 3, "a\x0c", "b\n"),
    ],
)
def test_line_and_column_count_characters(
    tmp_path: Path, content: bytes, line: int, column: int, before: str, after: str
) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(content)
    situation = situation_at(file, line, column)
    assert (situation.prefix, situation.suffix, situation.is_explicit) == (before, after, True)


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        (0, 1, "line 0 is outside {}; it has lines 1 to 2"),
        (3, 1, "line 3 is outside {}; it has lines 1 to 2"),
        (1, 0, "column 0 is outside line 1 of {}; it has columns 1 to 3"),
        (1, 4, "column 4 is outside line 1 of {}; it has columns 1 to 3"),
    ],
)
def test_position_outside_names_the_range(tmp_path: Path, line: int, column: int, message: str) -> None:
    file = tmp_path / "a.py"
    file.write_text("ab\n")
    with pytest.raises(UsageError) as caught:
        situation_at(file, line, column)
    assert str(caught.value) == message.format(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\0b")
    for name, message in [("none", "no such file"), ("", "is a directory"), ("binary", "is a binary file")]:
        with pytest.raises(UsageError, match=message):
            situation_at(tmp_path / name, 1, 1)
    with pytest.raises(UsageError, match="cannot read"):
        situation_at(Path("a\0b"), 1, 1)


def test_model_that_is_not_downloaded_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = ")
    with pytest.raises(ModelNotDownloadedError, match="midline models pull"):
        run_complete(f"{tmp_path / 'a.py'}:1:5", as_json=False, model=None)
    assert not (tmp_path / "state").exists()


def test_disabled_is_an_empty_suggestion_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("x = ")
    (tmp_path / "config.toml").write_text("enabled = false")
    run_complete(f"{tmp_path / 'a.py'}:1:5", as_json=True, model=None)
    output = capsys.readouterr()
    answer = json.loads(output.out)
    assert (answer["text"], answer["reason"]) == ("", "disabled")
    assert set(answer["timing"]) == {
        "total_ms", "first_token_ms", "prompt_tokens", "cached_tokens", "generated_tokens"
    }  # fmt: skip
    assert output.err == "midline: no suggestion (disabled)\n"


@pytest.mark.parametrize(("text", "reason"), [("", "empty_document"), ("x" * 6000, "line_too_long")])
def test_a_place_without_suggestions_needs_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (tmp_path / "a.py").write_text(text)
    run_complete(f"{tmp_path / 'a.py'}:1:1", as_json=False, model=None)  # it is not downloaded
    assert capsys.readouterr() == ("", f"midline: no suggestion ({reason})\n")
    assert not (tmp_path / "state").exists()


async def test_waiting_ends_when_ready_failed_or_late() -> None:
    await wait_until_ready(ScriptedBackend(), timeout_s=10)
    with pytest.raises(ServiceError, match="out of memory"):
        await wait_until_ready(ScriptedBackend(state=BackendState.FAILED, message="out of memory"), timeout_s=10)
    with pytest.raises(ServiceError, match="was not loaded within 0 s; run: midline doctor"):
        await wait_until_ready(ScriptedBackend(state=BackendState.LOADING), timeout_s=0)
