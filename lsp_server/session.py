"""The state of one connection: its client, settings, documents, backend and running completions.

Handlers in ``features`` unwrap messages, call this, and wrap the answers. It knows no protocol type but the
client's profile; what it has to tell the editor goes through ``EditorLink``.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from engine.config import ServiceConfig
from engine.errors import ConfigError
from lsp_server.backends.base import Backend, BackendState, BackendStatus
from lsp_server.clients import ClientProfile
from lsp_server.completion import idle
from lsp_server.completion.anchor import anchored
from lsp_server.completion.inflight import InFlight
from lsp_server.completion.pipeline import Track, complete
from lsp_server.completion.request import EmptyReason, Situation, Suggestion
from lsp_server.completion.rhythm import Rhythm
from lsp_server.config import MidlineConfig
from lsp_server.context.secret import is_secret
from lsp_server.documents import Document, DocumentStore, Edit, Position, clean_text
from lsp_server.logs import log_failure
from lsp_server.settings import merge

_logger = logging.getLogger(__name__)

_NUM_RECENT = 20
_NUM_OTHERS = 4
_OTHER_CHARS = 4000
_ENDED = (EmptyReason.SUPERSEDED, EmptyReason.CANCELLED, EmptyReason.DOCUMENT_CHANGED, EmptyReason.DOCUMENT_CLOSED)
_PROBLEMS = (BackendState.MODEL_MISSING, BackendState.FAILED)
_INTERNAL_ERROR = "internal error; see Midline's log"

BackendFactory = Callable[[ServiceConfig, Callable[[BackendStatus], None]], Backend]


@dataclass(frozen=True)
class Cursor:
    """Where and how a suggestion is asked for."""

    position: Position
    is_explicit: bool = False
    selected: Edit | None = None
    """The entry selected in the editor's list: the suggestion continues the text as if it had been taken."""


@dataclass(frozen=True)
class Outcome:
    """What became of a request, without any text."""

    outcome: str
    """``suggested``, or the code of the reason why not."""
    source: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    first_token_ms: float | None
    total_ms: float
    is_reanchored: bool

    @classmethod
    def of(cls, suggestion: Suggestion) -> "Outcome":
        """That of an answer."""
        return cls(
            outcome=suggestion.reason.value if suggestion.reason else "suggested",
            source=suggestion.source.value,
            **asdict(suggestion.usage),
            first_token_ms=suggestion.timing.first_token_ms,
            total_ms=suggestion.timing.total_ms,
            is_reanchored=suggestion.is_reanchored,
        )


class EditorLink(Protocol):
    """What the session says to the editor unasked."""

    def send_status(self, status: BackendStatus) -> None:
        """Send ``midline/status``."""

    def show_warning(self, text: str) -> None:
        """Show one line to the user."""

    async def pull_settings(self) -> Any:
        """Ask for the editor's settings; only of a client that answers this."""


class Session:
    """One connection."""

    def __init__(
        self,
        base_config: MidlineConfig,
        backend_factory: BackendFactory,
        link: EditorLink,
        model: str | None = None,
    ) -> None:
        """``base_config`` is the user's file; ``model`` was given on the command line and wins over all."""
        self.documents = DocumentStore()
        self.inflight = InFlight()
        self.profile = ClientProfile()
        self.recent: deque[Outcome] = deque(maxlen=_NUM_RECENT)
        """Of the last requests."""
        self.startup_warning = ""
        """What the user should see once the editor is ready."""
        self.when_closing: list[Callable[[], Awaitable[None]]] = []
        """Ends what others do for this connection; may be called twice."""
        self._base_config = base_config
        self._model = model
        self._backend_factory = backend_factory
        self._link = link
        self._last_status: BackendStatus | None = None
        self._shown: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._tracks: dict[str, Track] = {}
        self._session_name = secrets.token_hex(8)
        self._num_tracks = 0
        self._rhythm = Rhythm()
        self._idle: asyncio.Task[None] | None = None
        self.config = self._effective({})
        self.backend = self._make_backend()

    async def suggest(self, uri: str, cursor: Cursor, budget_ms: float | None = None) -> Suggestion:
        """The suggestion for a place in an open document; always an answer unless the caller is cancelled."""
        suggestion = Suggestion("", EmptyReason.CANCELLED)
        try:
            suggestion = await self._suggest(uri, cursor, budget_ms)
            return suggestion
        finally:
            self.recent.append(Outcome.of(suggestion))

    def move_cursor(self, uri: str, position: Position) -> None:
        """The cursor rests in a place: have its prompt ready, if the settings allow it and it is not."""
        document = self.documents.get(uri)
        if document is None or self.config.completion.idle_work == "off":
            return
        situation, track = self._situation(uri, document, Cursor(position)), self._track(uri)
        if track.anchor is None or anchored(track.anchor, situation, self.config.context) is not track.anchor:
            self._while_idle(idle.after_move(situation, self.config, self.backend, track))

    def end_idle_work(self) -> None:
        """Somebody types: stop what nobody has asked for."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _while_idle(self, work: Coroutine[Any, Any, None]) -> None:
        self.end_idle_work()
        self._idle = self._in_background(work)

    async def pull_editor_settings(self) -> None:
        """Ask the client for its settings, if it answers that."""
        if self.profile.can_pull_settings:
            self.apply_editor_settings(await self._link.pull_settings() or {})

    def apply_editor_settings(self, settings: Any, is_started: bool = True) -> None:
        """Take the editor's settings in place of its former ones. Bad ones change nothing and are shown."""
        try:
            config = self._effective(settings)
        except ConfigError as error:
            self._warn_once(f"Midline keeps its former settings: {error}")
            return
        former, self.config = self.config, config
        if former == config:
            return
        self.inflight.end_all(EmptyReason.SUPERSEDED if config.enabled else EmptyReason.DISABLED)
        self.end_idle_work()
        self._forget_all()  # what another model has said, or would have been asked otherwise
        is_switched_off = former.enabled and not config.enabled
        if is_switched_off or (former.engine, former.service) != (config.engine, config.service):
            self._in_background(self.backend.aclose())  # which also ends waiting for a model
            self.backend = self._make_backend()
        if is_switched_off:
            self._on_status(self.backend.status)
        if is_started:
            self._start_backend()

    def start(self) -> None:
        """The editor is ready: say what it has to know, and warm up."""
        if self.startup_warning:
            self._warn_once(self.startup_warning)
        self._start_backend()

    def _start_backend(self) -> None:
        """Warm up, unless disabled: off means that nothing runs."""
        if self.config.enabled:
            self._in_background(self._warm_up())

    async def restart_backend(self) -> None:
        """Start the engine anew, because the user asked."""
        if self.config.enabled:
            await self.backend.restart()

    def status(self) -> dict[str, Any]:
        """What is going on, for a person who wonders why there is no suggestion."""
        status = self.backend.status
        state = status.state.value if self.config.enabled else "disabled"
        recent = list(map(asdict, self.recent))
        return {"state": state, "model": status.model, "message": status.message, "recent": recent}

    async def end_work(self) -> None:
        """End all that is going on, since the editor shuts down."""
        self.end_idle_work()
        await self.inflight.aclose()
        await asyncio.gather(*(close() for close in self.when_closing))

    async def aclose(self) -> None:
        """The same, and let go of connections."""
        await self.end_work()
        await asyncio.gather(*(track.answers.aclose() for track in self._tracks.values()))
        await self.backend.aclose()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _suggest(self, uri: str, cursor: Cursor, budget_ms: float | None) -> Suggestion:
        document = self.documents.get(uri)
        if document is None:
            return Suggestion("", EmptyReason.DOCUMENT_CLOSED)
        self.end_idle_work()
        version, situation, track = document.version, self._situation(uri, document, cursor), self._track(uri)
        work = complete(situation, self.config, self.backend, budget_ms, track)
        try:
            suggestion = await self.inflight.run(uri, work)
            self._on_status(self.backend.status)
        except Exception as error:  # noqa: BLE001 -- a failure of ours must not become a pop-up at each keystroke
            log_failure(_logger, "a completion", error)
            self._on_status(BackendStatus(BackendState.FAILED, self.config.engine.model, _INTERNAL_ERROR))
            return Suggestion("", EmptyReason.SERVICE_UNAVAILABLE)
        if self.documents.get(uri) is not document or document.version != version:
            return Suggestion("", EmptyReason.DOCUMENT_CHANGED)
        is_of_cursor = suggestion.reason not in _ENDED and cursor.selected is None
        if is_of_cursor and self.config.completion.idle_work != "off":
            self._while_idle(idle.after_suggestion(situation, suggestion.text, self.config, self.backend, track))
        return suggestion

    def forget(self, uri: str) -> None:
        """A document has been closed, or is another one now: nothing of it is remembered."""
        track = self._tracks.pop(uri, None)
        if track is not None:
            track.answers.stop()

    def _forget_all(self) -> None:
        for uri in list(self._tracks):
            self.forget(uri)

    def _track(self, uri: str) -> Track:
        if uri not in self._tracks:
            self._num_tracks += 1
            self._tracks[uri] = Track(session=f"{self._session_name}-{self._num_tracks}", rhythm=self._rhythm)
        return self._tracks[uri]

    def _effective(self, editor_settings: Any) -> MidlineConfig:
        config = merge(self._base_config, editor_settings)
        return config if self._model is None else replace(config, engine=replace(config.engine, model=self._model))

    def _make_backend(self) -> Backend:
        service = ServiceConfig(engine=self.config.engine, idle_exit_s=self.config.service.idle_exit_s)
        return self._backend_factory(service, self._on_status)

    async def _warm_up(self) -> None:
        self._on_status(await self.backend.ensure_ready())

    def _on_status(self, status: BackendStatus) -> None:
        """Tell a client that understands it of each change; show any other a problem, once."""
        if not self.config.enabled:  # whatever a backend says that is being let go of
            status = BackendStatus(BackendState.STOPPED, self.config.engine.model, "switched off in the settings")
        if status == self._last_status:
            return
        self._last_status = status
        if self.profile.wants_status:
            self._link.send_status(status)
        elif status.state in _PROBLEMS:
            self._warn_once(f"Midline: {status.message}", kind=f"{status.state.value} {status.model}")

    def _warn_once(self, text: str, kind: str | None = None) -> None:
        """Show a warning, unless one of its kind has been shown."""
        if (kind or text) not in self._shown:
            self._shown.add(kind or text)
            self._link.show_warning(text)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._end_background)
        return task

    def _end_background(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(_logger, "background work", error)

    def _situation(self, uri: str, document: Document, cursor: Cursor) -> Situation:
        prefix, suffix = document.around(cursor.position)
        if (selected := cursor.selected) is not None and selected.start is not None and selected.end is not None:
            prefix = document.around(selected.start)[0] + clean_text(selected.text)
            suffix = document.around(selected.end)[1]
        others = [other for name, other in self.documents.others(uri) if not is_secret(name)]
        return Situation(
            prefix,
            suffix,
            document.language_id,
            path=uri,
            is_explicit=cursor.is_explicit,
            other_texts=tuple(filter(None, (other.excerpt(_OTHER_CHARS) for other in others[-_NUM_OTHERS:]))),
        )
