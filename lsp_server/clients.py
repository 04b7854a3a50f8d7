"""What differs between editors, as data. Everything that asks "which editor is this?" asks here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsprotocol import types

# Editors that draw an item which replaces text after the cursor as ghost text; others delete or misplace it.
_OVERLAY_CLIENTS = ("visual studio code", "vscodium", "code-server", "code - oss", "cursor", "windsurf", "coc.nvim")


@dataclass(frozen=True)
class ClientProfile:
    """The client of one connection."""

    name: str = ""
    has_inline_completion: bool = False
    """Else it is offered ``textDocument/completion``."""
    can_overlay: bool = False
    """Draws a suggestion that also replaces the closing brackets after the cursor."""
    wants_status: bool = False
    """Understands ``midline/status``, and shows problems itself."""
    can_keep_indentation: bool = False
    """Supports ``insertTextMode`` as-is; else it indents following lines of a completion item itself."""
    can_pull_settings: bool = False
    """Answers ``workspace/configuration``."""


def profile_of(params: types.InitializeParams) -> ClientProfile:
    """The profile of a client by what it says of itself."""
    name = params.client_info.name if params.client_info else ""
    document = params.capabilities.text_document
    return ClientProfile(
        name=name,
        has_inline_completion=document is not None and document.inline_completion is not None,
        can_overlay=name.lower().startswith(_OVERLAY_CLIENTS),
        wants_status=midline_options(params).get("status") is True,
        can_keep_indentation=_can_keep_indentation(document),
        can_pull_settings=bool(params.capabilities.workspace and params.capabilities.workspace.configuration),
    )


def midline_options(params: types.InitializeParams) -> Mapping[str, Any]:
    """The ``midline`` part of ``initializationOptions``, or of the client's experimental capabilities."""
    for options in (params.initialization_options, params.capabilities.experimental):
        section = options.get("midline") if isinstance(options, Mapping) else None
        if isinstance(section, Mapping):
            return section
    return {}


def _can_keep_indentation(document: types.TextDocumentClientCapabilities | None) -> bool:
    item = document.completion.completion_item if document and document.completion else None
    support = item.insert_text_mode_support if item else None
    return support is not None and types.InsertTextMode.AsIs in support.value_set
