"""Files as the editor has them: an open one is what the editor shows, saved or not; the others are the disk's."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lsp_server.bulk.context import RepositoryContext
from lsp_server.bulk.grammars import language_of
from lsp_server.bulk.holes import SourceText
from lsp_server.bulk.select import SelectOptions
from lsp_server.bulk.sources import read_source
from lsp_server.bulk.workspace import Workspace
from lsp_server.documents import clean_text
from lsp_server.errors import UnusableFileError

MAX_FILE_BYTES = SelectOptions().max_file_bytes
_BOM = "\ufeff"


@dataclass(frozen=True)
class OpenText:
    """A document of the editor at one moment."""

    text: str
    """As the editor has it."""
    eol: str


class EditorFiles:
    """Reads sources; of open files as they were when this was made. For any thread."""

    def __init__(self, opened: Mapping[str, OpenText]) -> None:
        """``opened`` goes by ``file_id``."""
        self._opened = opened

    def read(self, root: Path, path: Path, max_file_bytes: int = MAX_FILE_BYTES) -> SourceText:
        """As ``read_source``."""
        opened = self._opened.get(file_id(path))
        if opened is None:
            return read_source(root, path, max_file_bytes)
        relative = path.relative_to(root).as_posix()
        data = opened.text.encode("utf-8", "replace")
        if len(data) > max_file_bytes:
            raise UnusableFileError(relative, f"is larger than {max_file_bytes:,} bytes")
        text = text_of(opened.text)
        return SourceText(
            path=path,
            relative=relative,
            language=language_of(path, text),
            text=text,
            digest=hashlib.sha256(data).hexdigest(),
            mtime_ns=0,
            mode=0,
            eol=opened.eol,
            has_bom=opened.text.startswith(_BOM),
        )

    def context(self, root: Path, num_chars: int) -> RepositoryContext:
        """What a model sees of the other files of a workspace."""
        workspace = Workspace(root)

        def read(path: Path) -> SourceText | None:
            try:
                return self.read(workspace.root, path)
            except UnusableFileError:
                return None

        files = workspace.list_files([workspace.root]).files if num_chars else {}
        return RepositoryContext(files, read, num_chars)


def file_id(path: Path) -> str:
    """One for all the names of a file."""
    return os.path.normcase(os.path.realpath(path))


def text_of(text: str) -> str:
    """A document's text as that of a ``SourceText``."""
    return clean_text(text.removeprefix(_BOM))
