"""``textDocument/completion`` for editors without inline completion: one item, which never changes while filtered.

The item replaces the word before the cursor by itself, since editors match ``filterText`` with that word; it goes
in as it is, with the document's own line ends.
"""

import re

from lsprotocol import types

from lsp_server.documents import Document, Position
from lsp_server.features.text_sync import position_of
from lsp_server.session import Cursor, Session

OPTIONS = types.CompletionOptions(trigger_characters=[".", "(", "="])

_BUDGET_MS = 1500.0  # editors merge the lists of all servers and may wait for the slowest
_MAX_LABEL_CHARS = 80
_WORD = re.compile(r"\w*\Z")


async def completion(session: Session, params: types.CompletionParams) -> types.CompletionList:
    """At most one item; always incomplete, so that the editor asks again at the next keystroke."""
    uri = params.text_document.uri
    document = session.documents.get(uri)
    if document is None:
        return types.CompletionList(is_incomplete=True, items=[])
    cursor = document.clamp(position_of(params.position))
    word = _WORD.findall(document.line_before(cursor))[0]
    suggestion = await session.suggest(uri, Cursor(cursor), _BUDGET_MS)
    items = [_item(session, document, cursor, word, suggestion.text)] if suggestion.text else []
    return types.CompletionList(is_incomplete=True, items=items)


def _item(session: Session, document: Document, cursor: Position, word: str, text: str) -> types.CompletionItem:
    start = types.Position(cursor.line, cursor.character - document.encoding.num_units(word))
    end = types.Position(cursor.line, cursor.character)
    first_line, _, more = text.partition("\n")
    new_text = (word + text).replace("\n", document.eol)
    return types.CompletionItem(
        label=_label(word + first_line, has_more=bool(more)),
        label_details=types.CompletionItemLabelDetails(description="Midline"),
        kind=types.CompletionItemKind.Text,
        documentation=types.MarkupContent(types.MarkupKind.Markdown, _fenced(word + text, document.language_id)),
        sort_text="0",
        filter_text=word + first_line,
        insert_text=new_text,
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs if session.profile.can_keep_indentation else None,
        text_edit=types.TextEdit(types.Range(start, end), new_text),
    )


def _label(line: str, has_more: bool) -> str:
    """One line; it never is blank, which some editors would hide."""
    label = line.strip() or "⏎"
    if len(label) > _MAX_LABEL_CHARS:
        return label[: _MAX_LABEL_CHARS - 1] + "…"
    return f"{label} ⏎" if has_more and label != "⏎" else label


def _fenced(text: str, language_id: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language_id}\n{text}\n{fence}"
