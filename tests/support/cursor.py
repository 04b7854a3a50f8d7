"""Cursors drawn into text as ``║``."""

from typing import Any

from lsp_server.completion.decide import shape_of
from lsp_server.completion.request import Situation
from lsp_server.postprocess import Hole


def situation(drawn: str, **fields: Any) -> Situation:
    prefix, suffix = drawn.split("║")
    return Situation(prefix, suffix, **fields)


def hole(drawn: str) -> Hole:
    """The hole at the cursor, with the shape that the pipeline would choose."""
    here = situation(drawn)
    return Hole(here, shape_of(here, "auto"))
