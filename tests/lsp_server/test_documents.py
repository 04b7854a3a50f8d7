import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.documents import Document, DocumentStore, Edit, Position, PositionEncoding, clean_text, split_lines

UTF8, UTF16, UTF32 = PositionEncoding.UTF8, PositionEncoding.UTF16, PositionEncoding.UTF32

# Line ends, look-alikes that are none, one to four UTF-8 bytes, halves of surrogate pairs.
TEXT = st.text(alphabet=st.sampled_from(list("ab\n\r\t\f\v é€漢😀\u2028\x85\x1c\ufeff\u0301\ud83d\ude00")), max_size=30)
PLACE = st.builds(Position, st.integers(0, 6), st.integers(0, 12))


class SlowDocument:
    """The obviously right twin: a string, scanned from its start for every position."""

    def __init__(self, text: str, encoding: PositionEncoding) -> None:
        self.text = text
        self.encoding = encoding

    def apply(self, text: str, start: Position, end: Position) -> None:
        first, last = sorted((self.offset(start), self.offset(end)))
        self.text = self.text[:first] + text + self.text[last:]

    def offset(self, position: Position) -> int:
        offset = 0
        for _ in range(position.line):
            while offset < len(self.text) and self.text[offset] not in "\r\n":
                offset += 1
            if offset == len(self.text):
                return offset
            offset += 2 if self.text[offset : offset + 2] == "\r\n" else 1
        units = 0
        while offset < len(self.text) and self.text[offset] not in "\r\n":
            units += self.width(self.text[offset])
            if units > position.character:
                break
            offset += 1
        return offset

    def width(self, char: str) -> int:
        if self.encoding is UTF32:
            return 1
        if self.encoding is UTF16:
            return 2 if ord(char) > 0xFFFF else 1
        return len(char.encode("utf-8", "surrogatepass"))


@settings(derandomize=True, max_examples=400, deadline=None)
@given(TEXT, st.lists(st.tuples(TEXT, PLACE, PLACE), max_size=6), PLACE, st.sampled_from(PositionEncoding))
def test_edits_agree_with_slow_twin(
    text: str, edits: list[tuple[str, Position, Position]], cursor: Position, encoding: PositionEncoding
) -> None:
    document, twin = Document(text, encoding=encoding), SlowDocument(text, encoding)
    for number, (new_text, start, end) in enumerate(edits):
        document.change([Edit(new_text, start, end)], version=number)
        twin.apply(new_text, start, end)
        assert document.full_text() == twin.text
        assert document.num_lines == len(split_lines(twin.text))
    offset = twin.offset(cursor)
    before, after = document.around(cursor)
    assert before == clean_text(twin.text[:offset].removeprefix("\ufeff"))
    assert after == clean_text(twin.text[offset:])
    assert twin.offset(document.clamp(cursor)) == offset


@settings(derandomize=True, max_examples=200, deadline=None)
@given(TEXT)
def test_clean_text_can_be_encoded_and_has_lf_only(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode("utf-8")
    assert "\r" not in cleaned


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("a", ["a"]),
        ("a\n", ["a\n", ""]),
        ("a\r\nb\rc\n", ["a\r\n", "b\r", "c\n", ""]),
        ("\n\r", ["\n", "\r", ""]),
        ("a\fb\vc\x85d\u2028e\u2029f\x1cg", ["a\fb\vc\x85d\u2028e\u2029f\x1cg"]),
    ],
)
def test_only_lsp_line_ends_split(text: str, lines: list[str]) -> None:
    assert split_lines(text) == lines


@pytest.mark.parametrize(
    ("encoding", "character", "before"),
    [
        (UTF16, 1, "a"),
        (UTF16, 2, "a"),  # between the halves of the pair
        (UTF16, 3, "a😀"),
        (UTF16, 4, "a😀é"),
        (UTF16, 99, "a😀éb"),
        (UTF8, 1, "a"),
        (UTF8, 3, "a"),
        (UTF8, 5, "a😀"),
        (UTF8, 6, "a😀"),
        (UTF8, 7, "a😀é"),
        (UTF8, 99, "a😀éb"),
        (UTF32, 2, "a😀"),
        (UTF32, 99, "a😀éb"),
    ],
)
def test_characters_count_units_and_round_down(encoding: PositionEncoding, character: int, before: str) -> None:
    assert Document("a😀éb\r\nx", encoding=encoding).around(Position(0, character))[0] == before


def test_position_never_reaches_into_a_line_end() -> None:
    document = Document("abc\r\nd")
    for character in (3, 4, 5, 99):
        assert document.around(Position(0, character)) == ("abc", "\nd")


def test_line_beyond_the_end_is_the_end_of_the_document() -> None:
    assert Document("a\nb").around(Position(7, 0)) == ("a\nb", "")


def test_edit_that_joins_cr_and_lf_makes_one_line_end() -> None:
    document = Document("a\rb\nc")
    document.change([Edit("", Position(1, 0), Position(1, 1))], 2)
    assert document.full_text() == "a\r\nc"
    assert document.around(Position(1, 0)) == ("a\n", "c")


def test_edit_with_start_behind_end_is_ordered() -> None:
    document = Document("abcd")
    document.change([Edit("X", Position(0, 3), Position(0, 1))], 2)
    assert document.full_text() == "aXd"


def test_full_sync_replaces_everything() -> None:
    document = Document("old\ntext")
    document.change([Edit("new"), Edit("!", Position(0, 3), Position(0, 3))], 5)
    assert (document.full_text(), document.version) == ("new!", 5)


def test_halves_of_a_pair_sent_separately_are_joined_and_lone_ones_replaced() -> None:
    document = Document("")
    document.change([Edit("\ud83d", Position(0, 0), Position(0, 0))], 1)
    assert document.around(Position(0, 9))[0] == "\ufffd"
    document.change([Edit("\ude00", Position(0, 1), Position(0, 1))], 2)
    assert document.around(Position(0, 9))[0] == "😀"


def test_byte_order_mark_counts_in_positions_and_is_not_shown_to_the_model() -> None:
    assert Document("\ufeffab").around(Position(0, 2)) == ("a", "b")


@pytest.mark.parametrize(("text", "eol"), [("a\r\nb\nc", "\r\n"), ("a\rb", "\r"), ("a\n", "\n"), ("a", "\n")])
def test_eol_is_that_of_the_first_line(text: str, eol: str) -> None:
    assert Document(text).eol == eol


def test_text_around_is_bounded_in_lines_and_begins_at_a_window_step() -> None:
    text = "".join(f"{number}\n" for number in range(10_000))
    before, after = Document(text).around(Position(5000, 0))
    first = int(before.split("\n", 1)[0])
    assert first % 32 == 0
    assert 5000 - 2048 - 32 < first <= 5000 - 2048
    assert after.count("\n") == 2049


def test_store_keeps_encoding_and_forgets_closed_documents() -> None:
    store = DocumentStore()
    store.encoding = UTF8
    store.open("a", "é!", "python", 3)
    document = store.get("a")
    assert document is not None
    assert (document.version, document.language_id, document.around(Position(0, 2))[0]) == (3, "python", "é")
    store.close("a")
    store.close("a")
    assert store.get("a") is None


@pytest.mark.parametrize(
    "text",
    ["x = '0123456789' * 3 + '0123456789' * 3\n" * 20_000, "é" * 200_000, "😀" * 200_000, "a" * 5_000_000],
    ids=["20k lines", "long line", "long line of pairs", "5 MB line"],
)
def test_a_keystroke_costs_little_beside_opening(text: str) -> None:
    started_s = time.perf_counter()
    document = Document(text)
    opened_s = time.perf_counter()
    num_edits = 20
    for number in range(num_edits):
        document.change([Edit("y", Position(0, 50), Position(0, 50))], number)
    edit_s = (time.perf_counter() - opened_s) / num_edits
    assert edit_s < max(opened_s - started_s, 0.05)


def test_an_excerpt_is_around_the_last_change() -> None:
    document = Document("".join(f"line {i}\r\n" for i in range(1000)))
    assert document.excerpt(30).startswith("line 0\nline 1\n")
    document.change([Edit("X", Position(500, 0), Position(500, 0))], 2)
    excerpt = document.excerpt(60)
    assert "\nXline 500\n" in excerpt and len(excerpt) <= 60 and "\r" not in excerpt
    assert Document("short").excerpt(100) == "short" and Document("").excerpt(10) == ""
    assert Document("z" * 100_000).excerpt(50) == "z" * 50
    document.change([Edit("now two\nlines")], 3)
    assert document.excerpt(100) == "now two\nlines"


def test_the_others_end_with_the_latest() -> None:
    store = DocumentStore()
    for name in "abc":
        store.open(name, name, "", 1)
    assert store.change("a", [Edit("A")], 2) and not store.change("z", [], 1)
    assert [uri for uri, _ in store.others("b")] == ["c", "a"]
    store.open("c", "again", "", 1)
    assert [document.full_text() for _, document in store.others("b")] == ["A", "again"]
