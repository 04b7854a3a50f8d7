"""Sessions and who types them: whatever is suggested and accepted, in the end the file is what it was."""

import random
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.bench.page import Change, Key, KeyKind, Page
from lsp_server.bench.player import position_of
from lsp_server.bench.sessions import Blank, SourceFile, TypingSession, Visit, make_session, make_sessions
from lsp_server.bench.typist import Typist

CODE = '''import os


class Cart:
    """Things and what they cost."""

    def __init__(self, owner):
        self.items = []

        self.owner = owner  # isn't checked

    def total(self, discount=0.0):
        prices = {item["name"]: item["price"] for item in self.items}
        if not prices:
            return 0.0
        return sum(
            prices.values(),
        ) * (1 - discount)


print(Cart("Ann").total())
'''
_PIECES = st.sampled_from(
    [
        *"ab(){}[]\"':,.\\\t#",
        "word",
        " ",
        "    ",
        "\n",
        "\n\n",
        "\n    ",
        ":\n        ",
        "é",
        "😀",
        "if x:\n",
        "f(\n",
        ")\n",
    ]
)
TEXTS = st.lists(_PIECES, min_size=1, max_size=60).map("".join).filter(lambda text: any(map(str.isalnum, text)))


def _apply(text: str, change: Change) -> str:
    return text[: change.start] + change.text + text[change.end :]


def _play(session: TypingSession, rng: random.Random | None = None) -> tuple[str, Typist, Counter[KeyKind]]:
    """Type it; with ``rng``, suggestions come at random, right ones and others. Returns the text that LSP would see."""
    typist, kinds, now_ms = Typist(session), Counter[KeyKind](), 0.0
    text = typist.page.text
    while not typist.is_done:
        pause_ms = typist.pause_ms()
        assert pause_ms > 0
        now_ms += pause_ms
        stroke = typist.strike(now_ms)
        kinds[stroke.key.kind] += 1
        text = _apply(text, stroke.change)
        assert text == typist.page.text
        assert text.startswith(typist.page.text_before)
        assert kinds.total() < 20 * len(session.file.text) + 50
        if rng is not None and rng.random() < 0.6:
            rest = typist.page.field.rest if typist.page.field.is_right else "nonsense"
            typist.show(rest[: rng.randint(0, len(rest))] + rng.choice(("", "", "", "nonsense")), now_ms - 1000)
    return text, typist, kinds


@given(text=TEXTS, seed=st.integers(0, 10_000), num_chars=st.integers(1, 80), is_helped=st.booleans())
@settings(max_examples=250, deadline=None, derandomize=True)
def test_every_session_ends_with_the_file_as_it_was(text: str, seed: int, num_chars: int, is_helped: bool) -> None:
    session = make_session(SourceFile("a.py", "python", text), num_chars, seed)
    assert _play(session, random.Random(seed) if is_helped else None)[0] == text


@given(
    text=TEXTS,
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=8),
    seed=st.integers(0, 99),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_blanks_may_be_anywhere(text: str, shares: list[float], seed: int) -> None:
    borders = sorted(int(share * len(text)) for share in shares)
    pairs = list(zip(borders[::2], borders[1::2], strict=False))
    blanks = tuple(Blank(start, text[start:end]) for start, end in pairs)
    rng = random.Random(seed)
    visits = [Visit(number, rng.randint(0, len(blank.text))) for number, blank in enumerate(blanks)]
    visits += [Visit(number, len(blank.text)) for number, blank in enumerate(blanks)]
    session = TypingSession(SourceFile("a.py", "python", text), blanks, tuple(visits), seed)
    assert _play(session, rng)[0] == text


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_types_the_same_at_the_same_times(seed: int) -> None:
    file = SourceFile("cart.py", "python", CODE)
    assert make_session(file, 150, seed) == make_session(file, 150, seed)
    strokes = []
    for _ in range(2):
        typist, now_ms, played = Typist(make_session(file, 150, seed)), 0.0, []
        while not typist.is_done:
            now_ms += typist.pause_ms()
            played.append((now_ms, typist.strike(now_ms)))
        strokes.append(played)
    assert strokes[0] == strokes[1]
    assert strokes[0] != [] and make_session(file, 150, seed) != make_session(file, 150, seed + 1)


def test_sessions_take_every_file_once_before_any_twice() -> None:
    files = [SourceFile(f"{i}.py", "python", CODE) for i in range(3)]
    files.append(SourceFile("empty.py", "python", "\n# --\n"))
    names = [session.file.name for session in make_sessions(files, 6, 40, 1)]
    assert sorted(names[:3]) == sorted(names[3:]) == ["0.py", "1.py", "2.py"]
    assert make_sessions(files[3:], 2, 40, 1) == []


def test_a_person_pauses_errs_jumps_and_comes_back() -> None:
    sessions = make_sessions([SourceFile("cart.py", "python", CODE)], 40, 200, 3)
    pauses, kinds, num_jumps, num_chars = [], Counter[KeyKind](), 0, 0
    for session in sessions:
        typist, now_ms = Typist(session), 0.0
        num_chars += sum(len(blank.text) for blank in session.blanks)
        num_jumps += len(session.visits)
        while not typist.is_done:
            pauses.append(typist.pause_ms())
            now_ms += pauses[-1]
            kinds[typist.strike(now_ms).key.kind] += 1
    assert 160 < statistics.median(pauses) < 220 and max(pauses) > 1000
    assert 0.005 < kinds[KeyKind.BACKSPACE] / kinds.total() < 0.1
    assert kinds[KeyKind.ENTER] > 20
    assert num_jumps > sum(len(session.blanks) for session in sessions) > len(sessions)
    for session in sessions:
        for number, visit in enumerate(session.visits):
            is_left_early = visit.num_chars < len(session.blanks[visit.blank].text)
            assert not is_left_early or [later.blank for later in session.visits[number + 1 :]].index(visit.blank) == 1
    assert 0.6 * 200 * 40 < num_chars < 1.2 * 200 * 40


def test_typos_are_seen_and_taken_back() -> None:
    text = "the quick brown fox jumps over the lazy dog " * 20
    session = TypingSession(SourceFile("a.txt", "plaintext", text), (Blank(0, text),), (Visit(0, len(text)),), 0)
    done, _, kinds = _play(session)
    assert done == text
    assert 0.01 < kinds[KeyKind.BACKSPACE] / len(text) < 0.08
    assert kinds[KeyKind.CHAR] == len(text) + kinds[KeyKind.BACKSPACE]


def test_half_of_the_lines_accept_what_is_right_once_it_was_read() -> None:
    num_accepted_chars = []
    for seed in range(40):
        text = "value = compute_total(items)"
        session = TypingSession(SourceFile("a.py", "python", text), (Blank(0, text),), (Visit(0, len(text)),), seed)
        typist, now_ms = Typist(session), 0.0
        while not typist.is_done:
            now_ms += typist.pause_ms()
            stroke = typist.strike(now_ms)
            if len(typist.page.field.before) == 3 and typist.page.field.is_right:
                typist.show(typist.page.field.rest, now_ms)
            if stroke.key.kind is KeyKind.ACCEPT:
                num_accepted_chars.append(len(stroke.key.text))
                assert typist.page.text == text and 0 < typist.num_saved_chars == len(stroke.key.text) - 1
    assert 10 < len(num_accepted_chars) < 30
    assert min(num_accepted_chars) < max(num_accepted_chars) <= len(text) - 3  # typed on while it was read


def test_lines_that_are_indented_by_hand() -> None:
    text = "a\n        b\n\n\nc"
    session = TypingSession(SourceFile("a.py", "python", text), (Blank(0, text),), (Visit(0, len(text)),), 0)
    done, _, kinds = _play(session)
    assert done == text
    # blank lines are left without the indentation; its two steps are taken back before the last line
    assert kinds == {KeyKind.CHAR: 3, KeyKind.INDENT: 2, KeyKind.ENTER: 4, KeyKind.BACKSPACE: 2}


def test_an_answer_during_a_jump_is_for_the_place_before_it() -> None:
    text = "one = 1\ntwo = 2\n"
    blanks = (Blank(0, "one"), Blank(8, "two"))
    typist = Typist(
        TypingSession(SourceFile("a.py", "python", text), blanks, (Visit(1, 2), Visit(0, 3), Visit(1, 3)), 0)
    )
    for now_ms in (0.0, 1.0):
        assert typist.strike(now_ms).is_jump == (now_ms == 0.0)
    assert typist.is_right("o") and not typist.is_right("one")
    typist.show("o", 1.0)
    assert typist.pause_ms() > 300
    stroke = typist.strike(5000.0)
    assert stroke.is_jump and (stroke.key.kind, stroke.key.text) == (KeyKind.CHAR, "o") and typist.blank_number == 0
    assert typist.is_right("ne") and not typist.is_done


def _page(before: str, target: str, after: str = "") -> Page:
    text = before + target + after
    blank = Blank(len(before), target)
    return Page(TypingSession(SourceFile("a.py", "python", text), (blank,), (Visit(0, len(target)),), 0))


def _typed(page: Page, keys: str) -> str:
    """The text after keys: ``⏎`` Enter, ``⌫`` Backspace, ``→`` Tab; ``|`` stands for the cursor."""
    kinds = {"⏎": KeyKind.ENTER, "⌫": KeyKind.BACKSPACE, "→": KeyKind.INDENT}
    for char in keys:
        page.press(Key(kinds.get(char, KeyKind.CHAR), char))
    return page.text_before + "|" + page.text[len(page.text_before) :]


@pytest.mark.parametrize(
    ("before", "keys", "after", "text"),
    [
        ("", "f(", "", "f(|)"),
        ("", "f(a)", "", "f(a)|"),
        ("", "f([1])", "\n", "f([1])|\n"),
        ("", 'x = "a"', "", 'x = "a"|'),
        ("", "don't", "", "don't|"),
        ("", '"""', "", '"""|'),
        ("", "f(", "word", "f(|word"),
        ("    ", "if x:⏎", "", "    if x:\n        |"),
        ("", "    a⏎⏎b", "", "    a\n\n    b|"),
        ("", "if x:⏎⌫b", "", "if x:\nb|"),
        ("  ", "a⏎⌫", "", "  a\n|"),
        ("", "a⏎→→⌫b", "", "a\n    b|"),
        ("", "f(⏎", "", "f(\n    |)"),
    ],
)
def test_the_editor_closes_indents_and_takes_back(before: str, keys: str, after: str, text: str) -> None:
    assert _typed(_page(before, keys, after), keys) == text


def test_positions_are_in_utf_16() -> None:
    position = position_of("a\n😀é")
    assert (position.line, position.character) == (1, 3)


def test_where_the_cursor_goes_is_known_before_the_key() -> None:
    text = "first = 1\nsecond = 2\n"
    blanks = (Blank(8, "1"), Blank(19, "2"))
    session = TypingSession(SourceFile("a.py", "python", text), blanks, (Visit(1, 1), Visit(0, 1)), 0)
    typist, seen = Typist(session), []
    while not typist.is_done:
        before = typist.text_before_next
        stroke = typist.strike(0.0)
        seen.append((before, stroke.is_jump))
        if before is not None:
            assert typist.page.text_before.startswith(before) or stroke.key.kind is KeyKind.BACKSPACE
    jumps = [before for before, is_jump in seen if is_jump]
    assert jumps == ["first = \nsecond = ", "first = "]
    assert all((before is not None) == is_jump for before, is_jump in seen)
