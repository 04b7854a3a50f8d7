"""One run of the benchmark: a language server and an engine of its own, all sessions, and the engine's counts.

The engine keeps its state in a folder that ends with the run: it shares nothing with the user's engine, nor with the
run before, so that no run finds what another has cached.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ServiceError
from engine.request import Lane
from engine.service.client import HealthReport, ServiceClient
from engine.service.registration import Registration, is_process_alive, read_registration
from lsp_server.bench.measures import TokenCounts
from lsp_server.bench.player import Keystroke, Player
from lsp_server.bench.sessions import TypingSession
from lsp_server.completion.ablation import VARIABLE
from lsp_server.editor import Editor, run_beside

_LOAD_TIMEOUT_S = 180.0
_END_TIMEOUT_S = 10.0
_IDLE_EXIT_S = 60.0
"""The engine ends by itself should this process be killed."""
_COUNTERS = ("computed", "wasted")
Say = Callable[[str], None]


@dataclass(frozen=True)
class RunResult:
    """What a run has brought."""

    keystrokes: list[Keystroke]
    num_saved_chars: list[int]
    """Of each session."""
    has_records: bool
    """Whether the keystrokes have what the server says of them."""
    health: HealthReport
    counts: TokenCounts


async def run_sessions(model: str, sessions: Sequence[TypingSession], ablation: str, say: Say) -> RunResult:
    """Play all sessions, with something switched off unless ``ablation`` is empty. Raises ``ServiceError``."""
    # its last files may be written while it is removed
    with tempfile.TemporaryDirectory(prefix="midline-", ignore_cleanup_errors=True) as folder:
        editor, results = Editor("midline-bench"), list[RunResult]()

        async def work() -> None:
            environment = {"MIDLINE_STATE_DIR": folder, VARIABLE: ablation}
            await editor.start(model, environment, {"service": {"idle_exit_s": _IDLE_EXIT_S}})
            await editor.wait_until_ready(_LOAD_TIMEOUT_S)
            results.append(await _play_all(editor, sessions, Path(folder), say))

        try:
            await run_beside(editor, asyncio.create_task(work()))
        finally:
            await _end_service(Path(folder))
    return results[0]


async def _play_all(editor: Editor, sessions: Sequence[TypingSession], state: Path, say: Say) -> RunResult:
    player = Player(editor)
    registration = _registration(state)
    if registration is None:
        raise ServiceError("the engine of the benchmark has ended; run: midline doctor")
    async with aclosing(ServiceClient(registration.address, registration.token)) as client:
        health, before = await client.health(), _totals(await client.metrics())
        for number, session in enumerate(sessions, 1):
            say(f"  session {number} of {len(sessions)}: {session.file.name}")
            await player.play(session)
        if _registration(state) != registration:
            raise ServiceError("the engine ended while it was measured, and was started again; run: midline doctor")
        after = _totals(await client.metrics())
    has_records = player.records.lay_beside()
    idle = after["computed", Lane.BULK] - before["computed", Lane.BULK]
    computed, wasted = (after[name, Lane.INTERACTIVE] - before[name, Lane.INTERACTIVE] for name in _COUNTERS)
    counts = TokenCounts(computed, wasted, idle)
    return RunResult(player.keystrokes, player.num_saved_chars, has_records, health, counts)


def _totals(metrics: str) -> dict[tuple[str, Lane], float]:
    """The counters of tokens, by name and lane; 0 for those that have not counted yet."""
    totals = {}
    for name in _COUNTERS:
        for lane in Lane:
            found = re.search(rf'^midline_{name}_tokens_total\{{lane="{lane.value}"\}} (\S+)$', metrics, re.MULTILINE)
            totals[name, lane] = float(found[1]) if found else 0.0
    return totals


def _registration(state: Path) -> Registration | None:
    files = sorted((state / "services").glob("*.json"))
    return read_registration(files[0]) if files else None


async def _end_service(state: Path) -> None:
    """Ask the engine to exit, and wait for that a while."""
    registration = _registration(state)
    if registration is None or registration.error:
        return
    async with aclosing(ServiceClient(registration.address, registration.token)) as client:
        await client.shutdown()
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while is_process_alive(registration.pid) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.05)
