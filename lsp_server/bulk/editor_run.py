"""A bulk run for somebody who sits in an editor: in the background, watched while it goes on, kept until it is applied.

Knows no protocol. The model has its own process, the work beside it its own thread; both give way to whoever types.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path

from engine.checkpoint.store import resolve_model
from engine.config import MAX_NICENESS, EngineConfig
from engine.errors import MidlineError
from engine.machine.auto import settled
from engine.service.registration import normalised
from lsp_server.bulk import worker
from lsp_server.bulk.background import Background
from lsp_server.bulk.editor_files import EditorFiles
from lsp_server.bulk.events import Event, Loaded, Loading, Planned, Settled
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole
from lsp_server.bulk.journal import Journal, default_path
from lsp_server.bulk.old_journals import remove_old_journals
from lsp_server.bulk.requests import RequestOptions, model_identity
from lsp_server.bulk.run import RunOptions, run
from lsp_server.bulk.select import Selection, SelectOptions, select
from lsp_server.bulk.wording import counted
from lsp_server.errors import JournalInUseError, UsageError
from lsp_server.logs import log_failure

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where holes are looked for."""

    root: Path
    """The workspace folder as the editor calls it: maybe by a link."""
    paths: tuple[Path, ...]
    """Empty: everywhere."""
    options: SelectOptions
    files: EditorFiles

    def select(self) -> Selection:
        """Look. Raises ``UsageError``."""
        return select(self.root, self.paths, self.options, read=self.files.read)


@dataclass(frozen=True)
class Job:
    """What a run is to do."""

    place: Place
    engine: EngineConfig
    requests: RequestOptions = field(default_factory=RequestOptions)
    context_chars: int = 0
    max_batch: int = 0
    is_sequential: bool = False
    worker_command: Sequence[str] = field(default_factory=lambda: worker.COMMAND)


class RunState(str, Enum):
    """Where a run stands."""

    PREPARING = "preparing"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class EditorRun:
    """One run, begun when it is made; to be made in a running loop. It never raises: see ``error``."""

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.state = RunState.PREPARING
        self.error = ""
        """One line, when it has failed."""
        self.is_usage_error = False
        """Whether the error is in what was asked for."""
        self.holes: tuple[Hole, ...] = ()
        """As soon as it is no more ``PREPARING``."""
        self.num_failed = 0
        self.changed = asyncio.Event()
        """Set whenever there is something new to show."""
        self._fills: dict[Hole, Fill] = {}
        self._stage = "looking for holes"
        self._planned = asyncio.Event()
        self._home = asyncio.get_running_loop()
        self._work = Background(self._fill(job))
        self._work.ended.add_done_callback(self._end)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self._work.ended.done()

    @property
    def is_preparing(self) -> bool:
        """Whether it is still looking for holes, or measuring this machine."""
        return not self._planned.is_set()

    @property
    def fills(self) -> list[Fill]:
        """Of the holes that are settled, in the order of the holes."""
        return [self._fills[hole] for hole in self.holes if hole in self._fills]

    @property
    def num_filled(self) -> int:
        """Of the settled holes, those with a usable fill."""
        return len(self._fills) - self.num_failed

    @property
    def percentage(self) -> int:
        """Of the holes, those that are settled."""
        return 100 * len(self._fills) // len(self.holes) if self.holes else 0

    @property
    def stage(self) -> str:
        """What it does at the moment, for a person."""
        return self._stage or f"{len(self._fills)} of {counted(len(self.holes), 'holes')}{self._failed}"

    @property
    def outcome(self) -> str:
        """What has come of it, for a person."""
        return self.error or f"{self.num_filled} of {counted(len(self.holes), 'holes')} filled{self._failed}"

    @property
    def _failed(self) -> str:
        return f", {self.num_failed} failed" if self.num_failed else ""

    def cancel(self) -> None:
        """Let it end; what is filled by then is kept, here and in the journal."""
        self._work.cancel()

    async def planned(self) -> None:
        """Wait until the holes are known, or the run is over."""
        await self._planned.wait()

    async def ended(self) -> None:
        """Wait until the run is over."""
        await asyncio.wait([self._work.ended])

    async def _fill(self, job: Job) -> None:
        """In the background."""
        selection = job.place.select()
        if not selection.holes:
            kinds = " or ".join(job.place.options.kinds)
            raise UsageError(f"no {kinds} in {counted(selection.num_files, 'files')} of {job.place.root.name}")
        engine = normalised(settled(replace(job.engine, niceness=MAX_NICENESS)))
        options = RunOptions(
            engine=engine,
            model_identity=model_identity(resolve_model(engine.model), engine),
            context=job.place.files.context(job.place.root, job.context_chars),
            requests=job.requests,
            max_batch=job.max_batch,
            is_sequential=job.is_sequential,
            worker_command=job.worker_command,
        )
        with Journal.open(default_path(job.place.root)) as journal:
            remove_old_journals()
            await run(selection.holes, journal, options, partial(self._pass_on, selection))

    def _pass_on(self, selection: Selection, event: Event) -> None:
        self._home.call_soon_threadsafe(self._hear, selection, event)

    def _hear(self, selection: Selection, event: Event) -> None:
        if isinstance(event, Planned):
            self.holes, self.state, self._stage = selection.holes, RunState.RUNNING, ""
            self._planned.set()
        elif isinstance(event, Loading):
            self._stage = f"loading {event.model}"
        elif isinstance(event, Loaded):
            self._stage = ""
        elif isinstance(event, Settled):
            self._fills[event.fill.hole] = event.fill
            self.num_failed += event.fill.state is not FillState.FILLED
        self.changed.set()

    def _end(self, ended: "asyncio.Future[None]") -> None:
        if ended.cancelled():
            self.state = RunState.CANCELLED
        elif (error := ended.exception()) is not None:
            self.state, self.error = RunState.FAILED, _line_of(error)
            self.is_usage_error = isinstance(error, UsageError)
        else:
            self.state = RunState.DONE
        self._planned.set()
        self.changed.set()


def _line_of(error: BaseException) -> str:
    if isinstance(error, JournalInUseError):
        return "another bulk run works on this workspace; wait for its end"
    if isinstance(error, MidlineError):
        return str(error)
    log_failure(_logger, "a bulk run", error)
    return "internal error; see Midline's log"
