"""A buffer in an editor: the text and cursor a person sees, kept without any code of the server.

Every edit goes to the server as a range in the negotiated encoding, as editors send it.
"""

import asyncio
from typing import Any

from lsp_server.completion.request import Situation
from tests.support.lsp_session import LspSession, inline_params

_NUM_CODE_UNIT_BYTES = {"utf-8": 1, "utf-16": 2, "utf-32": 4}
_CODECS = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}


class Screen:
    """One open document. Offsets are indices into ``text``; the cursor never stands inside a ``\\r\\n``."""

    def __init__(
        self, session: LspSession, text: str, cursor: int = 0, uri: str = "file:///a.py", encoding: str = "utf-16"
    ) -> None:
        self.session, self.uri, self.text = session, uri, text
        self.version = 1
        self.eol = "\r\n" if "\r\n" in text else "\n"
        self._encoding = encoding
        self._undo: list[tuple[str, int]] = []
        self.cursor = self.snapped(cursor)
        session.open(text, uri)

    @property
    def situation(self) -> Situation:
        """What a completion is about."""
        prefix, suffix = _seen(self.text[: self.cursor]), _seen(self.text[self.cursor :])
        return Situation(prefix.removeprefix("\ufeff"), suffix, "python", self.uri)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and character of an offset."""
        before = _lf_keeping_length(self.text)[:offset]
        line_start = before.rfind("\n") + 1
        line_bytes = self.text[line_start:offset].encode(_CODECS[self._encoding], "surrogatepass")
        return before.count("\n"), len(line_bytes) // _NUM_CODE_UNIT_BYTES[self._encoding]

    def snapped(self, offset: int) -> int:
        """Out of a ``\\r\\n``, if it is in one."""
        return offset - (self.text[offset - 1 : offset + 1] == "\r\n")

    def replace(self, start: int, end: int, text: str) -> None:
        """An edit anywhere; the cursor stays with the text around it."""
        start, end = self.snapped(start), self.snapped(end)
        self._undo.append((self.text, self.cursor))
        self._send(start, end, text)
        if self.cursor >= end:
            self.cursor += len(text) - (end - start)
        elif self.cursor > start:
            self.cursor = start
        self.cursor = self.snapped(self.cursor)

    def type(self, text: str, closed: str = "") -> None:
        """Text at the cursor, and behind it what the editor closes by itself."""
        at = self.cursor
        self.replace(at, at, text + closed)
        self.cursor = self.snapped(at + len(text))

    def accept(self, text: str) -> None:
        """Suggested text, which has ``\\n`` for line ends."""
        self.type(text.replace("\n", self.eol))

    def backspace(self, count: int = 1) -> None:
        self.replace(max(0, self.cursor - count), self.cursor, "")

    def enter(self) -> None:
        """A new line, indented like this one."""
        line = self.situation.line_prefix
        self.type(self.eol + line[: len(line) - len(line.lstrip(" \t"))])

    def jump(self, offset: int) -> None:
        self.cursor = self.snapped(offset)

    def undo(self) -> None:
        """Back to the text before the last edit, as one edit of the part that differs."""
        if not self._undo:
            return
        former, cursor = self._undo.pop()
        start = 0
        while start < min(len(former), len(self.text)) and former[start] == self.text[start]:
            start += 1
        end = 0
        while end < min(len(former), len(self.text)) - start and former[-1 - end] == self.text[-1 - end]:
            end += 1
        if start != self.snapped(start) or len(self.text) - end != self.snapped(len(self.text) - end):
            start = end = 0
        self._send(start, len(self.text) - end, former[start : len(former) - end])
        self.cursor = cursor

    def ask(self, is_explicit: bool = False) -> "asyncio.Future[dict[str, Any]]":
        """Ask for a suggestion at the cursor."""
        line, character = self.position(self.cursor)
        params = inline_params(line, character, self.uri, 1 if is_explicit else 2)
        return self.session.start_request("textDocument/inlineCompletion", params)

    async def suggested(self, is_explicit: bool = False) -> str:
        """The text suggested at the cursor, which must be for insertion there; empty when there is none."""
        here = self.position(self.cursor)
        return inserted((await asyncio.wait_for(self.ask(is_explicit), 60))["result"], here)

    def close(self) -> None:
        self.session.notify("textDocument/didClose", {"textDocument": {"uri": self.uri}})

    def _send(self, start: int, end: int, text: str) -> None:
        first, last = self.position(start), self.position(end)
        self.text = self.text[:start] + text + self.text[end:]
        self.version += 1
        place = {
            "start": {"line": first[0], "character": first[1]},
            "end": {"line": last[0], "character": last[1]},
        }
        self.session.notify(
            "textDocument/didChange",
            {
                "textDocument": {"uri": self.uri, "version": self.version},
                "contentChanges": [{"range": place, "text": text}],
            },
        )


def inserted(result: dict[str, Any], here: tuple[int, int]) -> str:
    """The text of an inline completion's only item, whose range must be empty and at ``here``."""
    if not result["items"]:
        return ""
    (item,) = result["items"]
    place = {"line": here[0], "character": here[1]}
    assert item["range"] == {"start": place, "end": place}
    text: str = item["insertText"]
    assert text and "\r" not in text
    return text


def _seen(text: str) -> str:
    """As a model may see it: one kind of line end, no halves of characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _lf_keeping_length(text: str) -> str:
    """Every line end as one ``\\n`` at the place of its last character."""
    return text.replace("\r\n", " \n").replace("\r", "\n")
