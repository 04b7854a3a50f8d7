"""Files that are hard to read: text of markers, odd characters and line ends, very long lines and files."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.fim import FAMILIES, FimFamily
from lsp_server import documents
from lsp_server.completion.request import EmptyReason
from lsp_server.config import ContextConfig
from tests.support.edit_session import EditSession, naming
from tests.support.fluent import write_fluent_gguf
from tests.support.lsp_session import INLINE_CLIENT, NO_DEBOUNCE, in_process_server
from tests.support.screen import Screen
from tests.support.scripted_backend import ScriptedBackend
from tests.support.twins import CONFIG, Twins, serving
from tests.support.typist import Typist


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_text_of_markers_is_text(tmp_path: Path, family: FimFamily) -> None:
    """In the file, and as it is typed: the model sees the template's own markers and no others."""
    control = tuple(dict.fromkeys((*family.markers, *family.file_markers, "<s>", "<|endoftext|>")))
    twins = Twins(write_fluent_gguf(tmp_path / "m.gguf", control=control), family.name)
    tokenizer = twins.cold.tokenizer
    names = {token: text for text, token in tokenizer.control_ids.items()}
    shown = [*(["<s>"] if family.has_bos else []), *family.markers]
    text = f"# {' '.join(control)}\ndef f(x):\n    y = \n    # {control[0]}\n# {''.join(control)}\n"
    async with serving(twins) as (running, backend):
        screen = Screen(running.session, text, text.index("y = ") + 4)
        session = EditSession(running, backend, twins.cold, screen, Typist(screen, 0, ()))
        for char in f"'{family.markers[-1]}<|endoftext|>' + ":
            screen.type(char)
            await session.ask(is_explicit=True)
        assert len(backend.requests) >= 10
        for request in backend.requests:
            prompt = twins.cold.prompt(request)
            assert [names[token] for token in prompt.ids if token in names] == shown
            assert tokenizer.decode(prompt.ids).count("<|endoftext|>") >= 2


_ODD_TEXT = (
    "\ufeff# first\r\n"
    'def f(x):\r\n\ts = "😀 e\u0301 👩\u200d👩\u200d👧"\n'
    "\t \treturn s\u2028\x0c + 'Ж日本'\r\r\n"
    "\n\rclass <|fim_middle|>:\r\n  y = x.𝒳\n"
    "    print(i)\r\n\r"
)
_ODD = (
    "😀",
    "e\u0301",
    "👩\u200d👧",
    "\t",
    "\r",
    "\r\n",
    "\n",
    "\u2028x",
    "Ж",
    "<|fim_suffix|>",
    "self.x",
    " = ",
    "y)",
)
_HALVES = ("\ud83d", "\ude00")


@pytest.mark.parametrize(
    ("encoding", "snippets", "seed"),
    [("utf-16", _ODD, 1), ("utf-16", (*_ODD, *_HALVES), 2), ("utf-8", _ODD, 3), ("utf-32", _ODD, 4)],
)
async def test_odd_characters_and_line_ends(fluent: Twins, encoding: str, snippets: tuple[str, ...], seed: int) -> None:
    """The server's text is the editor's, positions agree, and what is shown is what the model says of that text."""
    capabilities = {**INLINE_CLIENT, "general": {"positionEncodings": [encoding]}}
    async with serving(fluent, capabilities=capabilities) as (running, backend):
        screen = Screen(running.session, _ODD_TEXT, len(_ODD_TEXT) // 2, encoding=encoding)
        session = EditSession(running, backend, fluent.cold, screen, Typist(screen, seed, snippets))
        with naming(seed, session):
            await session.play(60)
        assert session.num["model"] >= 15 and session.num["stale"] == 0


def _many_lines(num_lines: int) -> tuple[str, int]:
    """A file, and the end of a line in its middle."""
    lines = [f"    value_{number} = compute(value_{number // 2}, {number})\n" for number in range(num_lines)]
    half = num_lines // 2
    return "".join([*lines[:half], "    x\n", *lines[half:]]), len("".join(lines[:half])) + 5


_TYPED = "self.value_1 = add(x, y) + 3"


async def _key_s(text: str, cursor: int, is_line_refused: bool = False) -> float:
    """CPU seconds of the fastest of some keys, each with its request, of a server whose model costs nothing."""
    durations_s = []
    async with in_process_server(ScriptedBackend(("!",)), NO_DEBOUNCE) as running:
        await running.session.initialize()
        screen = Screen(running.session, text, cursor)
        for char in _TYPED:
            screen.type(char)
            started_s = time.process_time()
            answer = await screen.ask()
            durations_s.append(time.process_time() - started_s)
            assert bool(answer["result"]["items"]) is not is_line_refused
    return min(durations_s)


async def test_a_key_in_20000_lines_costs_what_it_does_in_5000() -> None:
    """Both have more lines than are looked at around the cursor."""
    short_s = await _key_s(*_many_lines(5_000))
    long_s = await _key_s(*_many_lines(20_000))
    assert long_s < 4 * short_s + 0.002, (long_s, short_s)


def _counting_chars(patch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The lengths of the texts that a function of the document store is given from now on."""
    lengths: list[int] = []
    function: Callable[[str], object] = getattr(documents, name)

    def counting(text: str) -> object:
        lengths.append(len(text))
        return function(text)

    patch.setattr(documents, name, counting)
    return lengths


async def test_a_key_in_20000_lines_handles_its_own_line_and_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in characters, however fast the machine is."""
    num_split = _counting_chars(monkeypatch, "split_lines")
    num_cleaned = _counting_chars(monkeypatch, "clean_text")
    text, cursor = _many_lines(20_000)
    async with in_process_server(ScriptedBackend(("!",)), NO_DEBOUNCE) as running:
        await running.session.initialize()
        screen = Screen(running.session, text, cursor)
        await screen.suggested()
        num_split.clear()
        num_cleaned.clear()
        for char in _TYPED:
            screen.type(char)
            await screen.suggested()
    assert 0 < sum(num_split) < 100 * len(_TYPED)
    assert 0 < sum(num_cleaned) < 0.25 * len(text) * len(_TYPED)


async def test_20000_lines_are_read_once_and_a_key_computes_a_few_tokens(fluent: Twins) -> None:
    config = replace(CONFIG, context=ContextConfig())
    async with serving(fluent, config) as (running, backend):
        screen = Screen(running.session, *_many_lines(20_000))
        await screen.suggested()
        for char in _TYPED:
            screen.type(char)
            await screen.suggested()
        screen.enter()
        await screen.suggested()
        asked = [entry for entry in running.server.session.recent if entry.source == "model"]
        assert len(asked) >= 10
        assert not any(entry.is_reanchored for entry in asked)
        computed = sorted(entry.prompt_tokens - entry.cached_tokens for entry in asked[1:])
        assert min(entry.prompt_tokens for entry in asked) > 500
        assert computed[len(computed) // 2] <= 4 and computed[-1] <= 24
        for request in backend.requests:  # the windows end at line borders and move only with the anchor
            assert request.prefix[: request.anchor] == backend.requests[0].prefix[: backend.requests[0].anchor]
            assert request.prefix.startswith("    value_") and len(request.prefix) <= 4000 + len(_TYPED) + 10
            assert request.suffix == backend.requests[0].suffix
        said = fluent.cold.answer(backend.requests[-1]).text
        assert said.partition("\n")[0].rstrip() == (await screen.suggested()).partition("\n")[0]


async def test_a_line_of_100000_characters(fluent: Twins) -> None:
    """Nothing is asked in it, for little; below it all goes on, with what fits of it."""
    giant = "x = [" + "1234, " * 16_666 + "]"
    cheap_s = await _key_s("x = \ny = \n", 9)
    assert await _key_s(giant + "\n", 50_000, is_line_refused=True) < cheap_s + 0.02
    assert await _key_s(giant + "\ny = \n", len(giant) + 5) < cheap_s + 0.02
    config = replace(CONFIG, context=ContextConfig())
    async with serving(fluent, config) as (running, backend):
        screen = Screen(running.session, f"{giant}\n\ny = {giant[:9000]}\n", len(giant) + 1)
        for char in "y = x":
            screen.type(char)
            text = await screen.suggested()
            if running.server.session.recent[-1].source == "model":
                said = fluent.cold.answer(backend.requests[-1]).text
                assert said.partition("\n")[0].rstrip() == text.partition("\n")[0]
        assert len(backend.requests) >= 2
        assert {len(request.prefix) <= 4005 and len(request.suffix or "") <= 1000 for request in backend.requests} == {
            True
        }
        num_asked = len(backend.requests)
        screen.jump(50_000)
        for _ in range(3):
            screen.type("9")
            assert await screen.suggested(is_explicit=True) == ""
        assert running.server.session.recent[-1].outcome == EmptyReason.LINE_TOO_LONG.value
        assert len(backend.requests) == num_asked
