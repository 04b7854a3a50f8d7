"""``textDocument/inlineCompletion``: ghost text. The answer is always a list, and every item has a range.

Without a range VS Code replaces the rest of the line; with null Neovim keeps showing a stale text.
"""

from lsprotocol import types

from lsp_server.completion.request import Suggestion
from lsp_server.features.text_sync import edit_of, position_of
from lsp_server.session import Cursor, Session

OPTIONS = types.InlineCompletionOptions()  # without options pygls does not advertise the capability


async def inline_completion(session: Session, params: types.InlineCompletionParams) -> types.InlineCompletionList:
    """At most one item."""
    info = params.context.selected_completion_info
    cursor = Cursor(
        position_of(params.position),
        is_explicit=params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked,
        selected=edit_of(info.range, info.text) if info else None,
    )
    suggestion = await session.suggest(params.text_document.uri, cursor)
    document = session.documents.get(params.text_document.uri)
    if document is None or not suggestion.text:
        return types.InlineCompletionList(items=[])
    place = document.clamp(cursor.position)
    item = _item(session, params, types.Position(place.line, place.character), suggestion)
    return types.InlineCompletionList(items=[item])


def _item(
    session: Session, params: types.InlineCompletionParams, position: types.Position, suggestion: Suggestion
) -> types.InlineCompletionItem:
    """An empty range at the cursor is right everywhere, except where an editor has asked for more.

    One that shows a list draws only what continues the selected entry; some draw text over closing brackets.
    """
    text, info = suggestion.text, params.context.selected_completion_info
    if info is not None:
        return types.InlineCompletionItem(insert_text=info.text + text, range=info.range)
    end = position
    if suggestion.overlay is not None and session.profile.can_overlay:
        text = suggestion.overlay.text
        end = types.Position(position.line, position.character + suggestion.overlay.num_replaced_chars)
    return types.InlineCompletionItem(insert_text=text, range=types.Range(position, end))
