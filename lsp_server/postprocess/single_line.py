"""Ends a single-line suggestion with its line."""

from lsp_server.postprocess.hole import Hole


def cut_to_line(text: str, hole: Hole) -> str:
    """The first line only, unless a block is wanted."""
    return text if hole.shape.is_block else text.partition("\n")[0]
