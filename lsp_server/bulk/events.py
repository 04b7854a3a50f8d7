"""What happens during a run, as plain data: for the progress display, for other programs, for the language server."""

from dataclasses import dataclass

from engine.bulk.wire import Progress, Ready
from lsp_server.bulk.fills import Fill
from lsp_server.bulk.report import Report


@dataclass(frozen=True)
class Planned:
    """The holes are known; nothing has been computed yet."""

    num_holes: int
    num_files: int


@dataclass(frozen=True)
class Loading:
    """The engine's process starts: not everything was in the journal."""

    model: str


@dataclass(frozen=True)
class Loaded:
    """The model is there."""

    ready: Ready


@dataclass(frozen=True)
class Settled:
    """One more hole has its outcome, in any order."""

    fill: Fill
    num_settled: int
    num_failed: int


@dataclass(frozen=True)
class Computing:
    """How the engine gets on."""

    progress: Progress


@dataclass(frozen=True)
class Checking:
    """The user's command runs on the workspace; the first time without any fill."""

    num_runs: int
    """This one included."""
    num_fills: int
    """In the files at the moment."""


@dataclass(frozen=True)
class Done:
    """The last event."""

    report: Report


Event = Planned | Loading | Loaded | Settled | Computing | Checking | Done
