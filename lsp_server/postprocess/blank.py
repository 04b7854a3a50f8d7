"""Drops a suggestion that nobody could see."""

from lsp_server.postprocess.hole import Hole


def drop_blank(text: str, hole: Hole) -> str:
    """Nothing when the text is white space."""
    return text if text.strip() else ""
