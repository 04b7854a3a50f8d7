"""Pure filters over generated text, in order. Each takes the text and its hole and gives back a shorter text.

A filter that leaves nothing names the reason. To add one: a module with a function, and a line in ``FILTERS``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lsp_server.completion.request import EmptyReason, Overlay
from lsp_server.postprocess.blank import drop_blank
from lsp_server.postprocess.block import block_end, limit_block
from lsp_server.postprocess.duplicate import cut_duplicate
from lsp_server.postprocess.hole import Hole
from lsp_server.postprocess.overlap import closing_overlay, trim_overlap
from lsp_server.postprocess.repetition import cut_repetition
from lsp_server.postprocess.single_line import cut_to_line
from lsp_server.postprocess.trailing import trim_trailing

__all__ = ["FILTERS", "Cleaned", "Filter", "Hole", "block_end", "postprocess"]


@dataclass(frozen=True)
class Filter:
    """A filter and what it means when it leaves nothing."""

    apply: Callable[[str, Hole], str]
    reason: EmptyReason


@dataclass(frozen=True)
class Cleaned:
    """The text to insert at the cursor, or why there is none."""

    text: str
    reason: EmptyReason | None = None
    overlay: Overlay | None = None


FILTERS: tuple[Filter, ...] = (
    Filter(cut_to_line, EmptyReason.NOTHING_GENERATED),
    Filter(limit_block, EmptyReason.NOTHING_GENERATED),
    Filter(cut_repetition, EmptyReason.REPETITION),
    Filter(cut_duplicate, EmptyReason.DUPLICATES_SUFFIX),
    Filter(trim_trailing, EmptyReason.NOTHING_GENERATED),
    Filter(drop_blank, EmptyReason.NOTHING_GENERATED),
)


def postprocess(text: str, hole: Hole) -> Cleaned:
    """Run all filters, stop at the first that leaves nothing, and fit the rest to the cursor's line."""
    if not text:
        return Cleaned("", EmptyReason.NOTHING_GENERATED)
    for step in FILTERS:
        text = step.apply(text, hole)
        if not text:
            return Cleaned("", step.reason)
    fitted = trim_overlap(text, hole)
    if not fitted:
        return Cleaned("", EmptyReason.DUPLICATES_SUFFIX)
    return Cleaned(fitted, overlay=closing_overlay(text, hole))
