"""The demo's document: its lines are typed into, and the real language server is asked after every key."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types

from lsp_server.editor import Editor, suggested_text


@dataclass(frozen=True)
class Ghost:
    """A suggestion as an editor would show it."""

    text: str
    latency_ms: float
    """From the key to the answer."""


class DemoEditor(Editor):
    """Types into one document, all ASCII, and asks after every key; older requests are left to the server."""

    def __init__(self, file_name: str, lines: list[str]) -> None:
        super().__init__("midline-demo")
        self.lines = list(lines)
        self._uri = (Path.cwd() / file_name).as_uri()

    def open_example(self) -> None:
        """Open the document."""
        self.open(self._uri, "python", "\n".join(self.lines))

    def insert(self, line: int, column: int, text: str) -> tuple[int, int]:
        """Insert at a position; returns the position after it."""
        self.change(self._uri, types.Position(line, column), types.Position(line, column), text)
        before, after = self.lines[line][:column], self.lines[line][column:]
        new_lines = (before + text + after).split("\n")
        self.lines[line : line + 1] = new_lines
        return line + len(new_lines) - 1, len(new_lines[-1]) - len(after)

    def set_line(self, line: int, text: str) -> None:
        """Replace a line's text."""
        self.change(self._uri, types.Position(line, 0), types.Position(line, len(self.lines[line])), text)
        self.lines[line] = text

    async def suggestion(self, line: int, column: int) -> Ghost:
        """Ask for a suggestion; the text is empty when there is none."""
        started = time.monotonic()
        answer = await asyncio.wrap_future(self.ask(self._uri, types.Position(line, column)).answer)
        return Ghost(suggested_text(answer), (time.monotonic() - started) * 1000.0)
