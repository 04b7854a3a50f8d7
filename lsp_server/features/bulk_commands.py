"""The commands ``midline.server.bulk.*``: find the holes of the workspace, fill them in the background, apply fills.

A run is one process beside the server. ``start`` answers as soon as it is on its way, since some editors stand still
until a command has answered; ``review`` answers when it is over.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp_server.bulk.background import Background
from lsp_server.bulk.editor_files import EditorFiles
from lsp_server.bulk.editor_run import EditorRun, Job, Place
from lsp_server.bulk.fills import Fill
from lsp_server.bulk.requests import RequestOptions
from lsp_server.bulk.wording import counted
from lsp_server.errors import UsageError
from lsp_server.features import bulk_edit
from lsp_server.features.arguments import NoArguments, structured
from lsp_server.features.bulk_arguments import ApplyArguments, RunArguments, SelectArguments, StartArguments, place_of
from lsp_server.features.work_done import WorkDone
from lsp_server.session import Session

_REQUEST_FAILED = -32803  # LSP: a well-formed request that cannot be fulfilled
_REPORT_EVERY_S = 0.1
_TITLE = "Midline: filling holes"


class BulkCommands:
    """The commands of one connection; of its runs it keeps the last."""

    def __init__(self, server: LanguageServer, session: Session, worker_command: Sequence[str] | None) -> None:
        """``worker_command`` stands in for the engine's own."""
        self._server = server
        self._session = session
        self._worker_command = worker_command
        self._run: EditorRun | None = None
        self._root = Path()
        self._applied_run = 0
        """Number of the last one whose fills have come into the editor's documents."""
        self._showing: asyncio.Task[None] | None = None

    def status_line(self) -> str:
        """The last run, for a person, while it goes on or its fills wait to be applied; else empty."""
        run = self._run
        if run is None or (run.is_over and (run.num_filled == 0 or run.number == self._applied_run)):
            return ""
        return f"bulk: {run.outcome}; not applied yet" if run.is_over else f"bulk: {run.stage}"

    async def aclose(self) -> None:
        """End the run; what it has computed is in its journal."""
        if self._run is not None:
            self._run.cancel()
            if not self._run.is_preparing:  # a search cannot be interrupted; it ends with the process
                await self._run.ended()
        if self._showing is not None:
            self._showing.cancel()

    async def select(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """The holes, without a model."""
        place = self._place(structured(SelectArguments, arguments))
        encoding = self._session.documents.encoding

        async def search() -> dict[str, Any]:
            return bulk_edit.selection_data(place.select(), place.root, encoding)

        try:
            return await asyncio.shield(Background(search()).ended)
        except UsageError as error:
            raise JsonRpcInvalidParams(str(error)) from None

    async def start(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Begin a run; answers when its holes are known."""
        options = structured(StartArguments, arguments)
        if not self._session.config.enabled:
            raise _failed("Midline is switched off in the settings; switch it on first")
        if self._run is not None and not self._run.is_over:
            raise _failed("a bulk run is going on; wait for its end or cancel it first")
        place = self._place(options)
        run = EditorRun(self._run.number + 1 if self._run else 1, self._job(place, options))
        self._run, self._root = run, place.root
        self._showing = asyncio.create_task(self._show(run))
        try:
            await run.planned()
        except asyncio.CancelledError:
            run.cancel()
            raise
        if run.error:
            raise JsonRpcInvalidParams(run.error) if run.is_usage_error else _failed(run.error)
        return bulk_edit.run_counts(run)

    async def cancel(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """End the run; answers when it has ended."""
        structured(NoArguments, arguments)
        if self._run is None or self._run.is_over:
            raise _failed("no bulk run is going on")
        self._run.cancel()
        await self._run.ended()
        return bulk_edit.run_counts(self._run)

    async def review(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """What was filled; answers when the run is over."""
        run = self._known(structured(RunArguments, arguments).run)
        await run.ended()
        if run.error:
            raise _failed(run.error)
        return bulk_edit.run_data(run, self._root, self._session.documents.encoding)

    async def apply(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Have the editor change its documents; answers when it has, or the user has decided otherwise."""
        options = structured(ApplyArguments, arguments)
        run = self._known(options.run)
        if not run.is_over:
            raise _failed("the bulk run is going on; wait for its end or cancel it first")
        capabilities = self._server.client_capabilities
        if not (capabilities.workspace and capabilities.workspace.apply_edit):
            raise _failed("this editor lets no server change documents; run: midline bulk --apply")
        edit = await bulk_edit.edit_for(_chosen(run.fills, options.holes), self._root, self._session.documents)
        result = {
            "applied": False,
            "num_fills": edit.num_fills,
            "num_files": len(edit.documents),
            "reason": "",
            "conflicts": edit.conflicts,
        }
        if not edit.documents:
            return result
        answer = await self._server.workspace_apply_edit_async(
            types.ApplyWorkspaceEditParams(
                bulk_edit.as_workspace_edit(edit, capabilities, options.review),
                label="Midline: fill holes",
                metadata=types.WorkspaceEditMetadata(is_refactoring=True),  # an editor may save the files after it
            )
        )
        if answer.applied:
            self._applied_run = run.number
        return {**result, "applied": answer.applied, "reason": answer.failure_reason or ""}

    async def _show(self, run: EditorRun) -> None:
        """Progress up to the end, then to an editor that has no client of ours what came of it."""
        shown = await WorkDone.begin(self._server, _TITLE, run.cancel)
        while not run.is_over:
            run.changed.clear()
            shown.report(run.stage, run.percentage)
            await run.changed.wait()
            await asyncio.sleep(_REPORT_EVERY_S)  # much may happen at once
        shown.end(run.outcome)
        if run.holes and not self._session.profile.wants_status:
            kind = types.MessageType.Warning if run.error else types.MessageType.Info
            what_next = "" if run.error else "; midline.server.bulk.apply puts them into the files"
            self._server.window_show_message(types.ShowMessageParams(kind, f"Midline: {run.outcome}{what_next}"))

    def _known(self, number: int) -> EditorRun:
        if self._run is None:
            raise _failed("there was no bulk run yet; start one first")
        if number not in (0, self._run.number):
            raise JsonRpcInvalidParams(f"run is {number}; only the last one is kept, {self._run.number}")
        return self._run

    def _place(self, arguments: SelectArguments) -> Place:
        files = EditorFiles(bulk_edit.open_texts(self._session.documents))
        return place_of(arguments, self._server.workspace, files)

    def _job(self, place: Place, options: StartArguments) -> Job:
        job = Job(
            place=place,
            engine=self._session.config.engine,
            requests=RequestOptions(seed=options.seed),
            context_chars=options.context_chars,
            max_batch=options.max_batch,
            is_sequential=options.sequential,
        )
        return replace(job, worker_command=self._worker_command) if self._worker_command else job


def _chosen(fills: list[Fill], indices: Sequence[int]) -> list[Fill]:
    """All where there are no indices. Raises ``JsonRpcInvalidParams``."""
    if beyond := [index for index in indices if index >= len(fills)]:
        known = counted(len(fills), "fills")
        raise JsonRpcInvalidParams(f"holes names {beyond[0]}; the run has {known}, counted from 0")
    return [fills[index] for index in sorted(set(indices))] if indices else fills


def _failed(message: str) -> JsonRpcException:
    return JsonRpcException(message, _REQUEST_FAILED)
