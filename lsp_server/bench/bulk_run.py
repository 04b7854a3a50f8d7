"""One run of the bulk benchmark: the real pipeline over the workspace's holes, with a journal of its own.

Its engine is the real one, or the stand-in that takes one request after the other.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bulk.wire import AUTO_BATCH
from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from lsp_server.bench.bulk_workspace import Task
from lsp_server.bulk.context import RepositoryContext
from lsp_server.bulk.holes import SourceText
from lsp_server.bulk.journal import Journal
from lsp_server.bulk.requests import model_identity
from lsp_server.bulk.run import RunOptions, RunResult, run
from lsp_server.bulk.select import SelectOptions
from lsp_server.bulk.sources import read_source
from lsp_server.bulk.worker import COMMAND
from lsp_server.bulk.workspace import Workspace

ONE_BY_ONE = "one by one"
AUTO = "auto"
UNSORTED = "auto, unsorted"
_STAND_IN = "engine.bench.one_by_one"


@dataclass(frozen=True)
class Variant:
    """What is different in a run."""

    name: str
    max_batch: int = AUTO_BATCH
    is_sorted: bool = True


def variants(caps: Sequence[int]) -> list[Variant]:
    """All runs, in their order: those that are compared most stand side by side."""
    fixed = [Variant(f"cap {cap}", cap) for cap in caps]
    return [Variant(ONE_BY_ONE, 1), *fixed, Variant(AUTO), Variant(UNSORTED, is_sorted=False)]


class BulkBench:
    """Runs over one workspace with one model."""

    def __init__(self, root: Path, tasks: Sequence[Task], config: EngineConfig, context_chars: int) -> None:
        self._holes = [task.hole for task in tasks]
        self._config = config
        self._identity = model_identity(resolve_model(config.model), config)
        self._context_chars = context_chars
        workspace = Workspace(root)
        self._root, self._files = workspace.root, workspace.list_files([workspace.root]).files
        self.facts: dict[str, Any] = {}
        """``engine.bench.one_by_one.Facts``, once that run is over."""

    async def run(self, variant: Variant) -> RunResult:
        """Fill all holes. Raises ``ServiceError`` when the engine cannot compute."""
        with tempfile.TemporaryDirectory(prefix="midline-bench-") as folder:
            facts = Path(folder, "facts.json")
            with Journal.open(Path(folder, "journal")) as journal:
                result = await run(self._holes, journal, self._options(variant, facts), lambda event: None)
            if facts.exists():
                self.facts = json.loads(facts.read_text(encoding="utf-8"))
        return result

    def _options(self, variant: Variant, facts: Path) -> RunOptions:
        is_alone = variant.name == ONE_BY_ONE
        return RunOptions(
            engine=self._config,
            model_identity=self._identity,
            context=RepositoryContext(self._files, self._read, self._context_chars),
            max_batch=variant.max_batch,
            is_sorted=variant.is_sorted,
            worker_command=(sys.executable, "-m", _STAND_IN, str(facts)) if is_alone else COMMAND,
        )

    def _read(self, path: Path) -> SourceText | None:
        return read_source(self._root, path, SelectOptions().max_file_bytes)
