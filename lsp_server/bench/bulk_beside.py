"""``midline bulk`` in a process of its own, as somebody would start it who goes on typing meanwhile."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ServiceError
from lsp_server.bench.bulk_workspace import MAX_TOKENS


@dataclass
class Beside:
    """What was done so far, without the times in which the model was loaded."""

    seconds: float = 0.0
    num_tokens: int = 0
    """Read and written."""
    num_answers: int = 0


@contextlib.asynccontextmanager
async def bulk_beside(root: Path, model: str, context_chars: int) -> AsyncIterator[Beside]:
    """Fills the holes below ``root``, once more when all are filled, until the context is left.

    It is entered when the model is loaded. Raises ``ServiceError`` when that, or the rest, is not possible.
    """
    beside, has_begun = Beside(), asyncio.Event()
    options = ("--max-tokens", str(MAX_TOKENS), "--context-chars", str(context_chars), "--progress", "json")
    command = (sys.executable, "-m", "lsp_server", "bulk", "--root", str(root), "--model", model, *options)
    working = asyncio.create_task(_go_on(command, beside, has_begun))
    beginning = asyncio.create_task(has_begun.wait())
    try:
        await asyncio.wait((working, beginning), return_when=asyncio.FIRST_COMPLETED)
        if not has_begun.is_set():
            await working
        yield beside
    finally:
        for task in (working, beginning):
            task.cancel()
        results = await asyncio.gather(working, beginning, return_exceptions=True)
    if isinstance(results[0], ServiceError):
        raise results[0]


async def _go_on(command: tuple[str, ...], beside: Beside, has_begun: asyncio.Event) -> None:
    while True:
        with tempfile.TemporaryDirectory(prefix="midline-bench-", ignore_cleanup_errors=True) as folder:
            files = ("--journal", str(Path(folder, "journal")), "--out", str(Path(folder, "out")))
            process = await asyncio.create_subprocess_exec(
                *command, *files, stderr=asyncio.subprocess.PIPE, start_new_session=True
            )
            try:
                await _listen(process, beside, has_begun)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()  # its engine ends when nobody reads what it says
                await process.wait()


async def _listen(process: asyncio.subprocess.Process, beside: Beside, has_begun: asyncio.Event) -> None:
    """Add up what the process says. Raises ``ServiceError`` when it ends before its holes are done."""
    assert process.stderr is not None
    before, event, text = Beside(**vars(beside)), dict[str, Any](), ""
    async for line in process.stderr:
        text = line.decode(errors="replace").strip()
        event = json.loads(text) if text.startswith("{") else {}
        if event.get("event") == "loaded":
            has_begun.set()
        elif event.get("event") == "computing":
            _add(beside, before, event, event["seconds"], event["num_done"])
        elif event.get("event") == "done":
            report = event["report"]
            num_answers = report["num_holes"] + report["num_second_attempts"]
            _add(beside, before, report["engine"], report["engine"]["compute_s"], num_answers)
    if event.get("event") != "done":
        raise ServiceError(f"midline bulk has ended: {text.removeprefix('midline: ')}")


def _add(beside: Beside, before: Beside, counts: dict[str, Any], seconds: float, num_answers: int) -> None:
    """A run's own counts so far to those of the runs before it."""
    beside.seconds = before.seconds + seconds
    beside.num_tokens = before.num_tokens + counts["num_computed_tokens"] + counts["num_generated_tokens"]
    beside.num_answers = before.num_answers + num_answers
