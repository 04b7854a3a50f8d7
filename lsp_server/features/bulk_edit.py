"""Holes and fills as LSP's plain data, and the fills of a run as one edit of the workspace.

A document or file that is not as it was when its holes were selected is a conflict: it is left out of the edit and
named. Open documents are addressed by version, so that the editor refuses what is typed in between.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.uris import from_fs_path, to_fs_path

from lsp_server.bulk.editor_files import MAX_FILE_BYTES, OpenText, file_id, text_of
from lsp_server.bulk.editor_run import EditorRun
from lsp_server.bulk.files import by_file, replacement
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole, SourceText
from lsp_server.bulk.select import Selection
from lsp_server.bulk.sources import read_source
from lsp_server.documents import Document, DocumentStore, PositionEncoding
from lsp_server.errors import UnusableFileError

_BOM = "\ufeff"


@dataclass
class Edit:
    """What is to be done, and what cannot be."""

    documents: list[types.TextDocumentEdit] = field(default_factory=list)
    """With annotations; see ``as_workspace_edit``."""
    conflicts: list[str] = field(default_factory=list)
    """One line for each file."""
    num_fills: int = 0


def opened_by_file(documents: DocumentStore) -> dict[str, tuple[str, Document]]:
    """The open documents that are files, with their URIs, by ``file_id``."""
    found = ((to_fs_path(uri), uri, document) for uri, document in documents.others(""))
    return {file_id(Path(path)): (uri, document) for path, uri, document in found if path}


def open_texts(documents: DocumentStore) -> dict[str, OpenText]:
    """Copies of them."""
    opened = opened_by_file(documents)
    return {name: OpenText(document.full_text(), document.eol) for name, (_, document) in opened.items()}


def selection_data(selection: Selection, root: Path, encoding: PositionEncoding) -> dict[str, Any]:
    """A selection for a client."""
    return {
        "root": str(root),
        "num_files": selection.num_files,
        "num_by_kind": dict(Counter(hole.kind for hole in selection.holes).most_common()),
        "holes": [_hole_data(hole, root, encoding) for hole in selection.holes],
        "skipped": [asdict(skipped) for skipped in selection.skipped],
    }


def run_data(run: EditorRun, root: Path, encoding: PositionEncoding) -> dict[str, Any]:
    """What a run has come to so far, for a client."""
    fills = [
        _hole_data(fill.hole, root, encoding)
        | {
            "state": fill.state.value,
            "reason": fill.reason,
            "text": replacement(fill) if fill.state is FillState.FILLED else "",
        }
        for fill in run.fills
    ]
    return {**run_counts(run), "fills": fills}


def run_counts(run: EditorRun) -> dict[str, Any]:
    """The same in numbers."""
    return {
        "run": run.number,
        "state": run.state.value,
        "num_holes": len(run.holes),
        "num_filled": run.num_filled,
        "num_failed": run.num_failed,
    }


async def edit_for(fills: Sequence[Fill], root: Path, documents: DocumentStore) -> Edit:
    """The good ones among the fills as an edit of the documents and files as they are now.

    ``root`` is the workspace as the editor calls it.
    """
    of_files = by_file(fill for fill in fills if fill.state is FillState.FILLED)
    changed = await asyncio.to_thread(_changed_on_disk, [of_file[0].hole.source for of_file in of_files])
    opened = opened_by_file(documents)  # from here on nothing comes in between
    edit = Edit()
    for of_file in of_files:
        source = of_file[0].hole.source
        uri, document = opened.get(file_id(source.path), ("", None))
        reason = changed.get(source.relative) if document is None else _changed_in_editor(source, document)
        if reason:
            edit.conflicts.append(f"{source.relative} {reason}; fill it again")
            continue
        has_bom = document is not None and document.full_text().startswith(_BOM)
        edit.documents.append(
            types.TextDocumentEdit(
                types.OptionalVersionedTextDocumentIdentifier(
                    uri or _uri_of(source, root), document.version if document is not None else None
                ),
                [_text_edit(fill, documents.encoding, has_bom) for fill in of_file],
            )
        )
        edit.num_fills += len(of_file)
    return edit


def as_workspace_edit(edit: Edit, capabilities: types.ClientCapabilities, is_reviewed: bool) -> types.WorkspaceEdit:
    """The edit in words that the client understands; ``is_reviewed``: it asks the user before it changes anything."""
    workspace = capabilities.workspace
    can = workspace.workspace_edit if workspace else None
    if can is None or not can.document_changes:
        return types.WorkspaceEdit(changes={item.text_document.uri: _plain(item) for item in edit.documents})
    if not (is_reviewed and can.change_annotation_support):
        plain = [types.TextDocumentEdit(item.text_document, _plain(item)) for item in edit.documents]
        return types.WorkspaceEdit(document_changes=plain)
    kinds = {text_edit.annotation_id for item in edit.documents for text_edit in _annotated(item)}
    annotations = {
        kind: types.ChangeAnnotation(f"Fill {kind}", needs_confirmation=True, description="written by a model")
        for kind in sorted(kinds)
    }
    return types.WorkspaceEdit(document_changes=edit.documents, change_annotations=annotations)


def _uri_of(source: SourceText, root: Path) -> str:
    return from_fs_path(str(root / source.relative)) or ""


def _changed_on_disk(sources: Sequence[SourceText]) -> dict[str, str]:
    """Why the files are not those that holes were selected in, of those that are not, by their names."""
    reasons: dict[str, str] = {}
    for source in sources:
        try:
            if read_source(source.path.parent, source.path, MAX_FILE_BYTES).text != source.text:
                reasons[source.relative] = "has changed since its holes were selected"
        except UnusableFileError as error:
            reasons[source.relative] = error.reason
    return reasons


def _changed_in_editor(source: SourceText, document: Document) -> str:
    is_same = text_of(document.full_text()) == source.text
    return "" if is_same else "has changed since its holes were selected"


def _text_edit(fill: Fill, encoding: PositionEncoding, has_bom: bool) -> types.AnnotatedTextEdit:
    new_text = replacement(fill).replace("\n", fill.hole.source.eol)
    return types.AnnotatedTextEdit(fill.hole.kind, _range(fill.hole, encoding, has_bom), new_text)


def _annotated(item: types.TextDocumentEdit) -> list[types.AnnotatedTextEdit]:
    return [text_edit for text_edit in item.edits if isinstance(text_edit, types.AnnotatedTextEdit)]


def _plain(item: types.TextDocumentEdit) -> list[types.TextEdit]:
    return [types.TextEdit(text_edit.range, text_edit.new_text) for text_edit in _annotated(item)]


def _hole_data(hole: Hole, root: Path, encoding: PositionEncoding) -> dict[str, Any]:
    return {
        "uri": _uri_of(hole.source, root),
        "file": hole.source.relative,
        "range": _range(hole, encoding),
        "kind": hole.kind,
        "name": hole.name,
    }


def _range(hole: Hole, encoding: PositionEncoding, has_bom: bool = False) -> types.Range:
    """``has_bom``: the document shows its byte order mark as a character, which editors seldom do."""
    text, bom = hole.source.text, _BOM if has_bom else ""

    def at(offset: int) -> types.Position:
        start = text.rfind("\n", 0, offset) + 1
        before = text[start:offset] if start else bom + text[:offset]
        return types.Position(text.count("\n", 0, start), encoding.num_units(before))

    return types.Range(at(hole.start), at(hole.end))
