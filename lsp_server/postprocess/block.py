"""Where a block ends: indentation says it, in every language well enough.

``block_end`` also serves while text is still arriving: it answers as soon as the end is certain.
"""

from lsp_server.completion.decide import Shape, indent_of
from lsp_server.postprocess.hole import Hole


def limit_block(text: str, hole: Hole) -> str:
    """The text up to the end of its block."""
    return text[: block_end(text, hole)] if hole.shape.is_block else text


def block_end(text: str, hole: Hole) -> int | None:
    """Length of the text that belongs to the block, or None when its end has not been seen.

    The block ends before the first line that is indented less than it may be, or less than its own first line.
    One that begins on a blank line also ends before a new paragraph. One that has to bring its closing bracket
    ends after that line.
    """
    line_prefix, shape = hole.situation.line_prefix, hole.shape
    after_opener = bool(line_prefix.strip())
    block_indent, is_after_blank, start = -1, False, 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        end_before, start = max(start - 1, 0), start + len(line) + 1
        if number == 0 and after_opener:
            continue  # the rest of the line that opens the block
        whole = line_prefix + line if number == 0 else line
        if not whole.strip():
            is_after_blank = True
            continue
        indent = indent_of(whole)
        if _closes(whole, indent, shape):
            return start - 1 if number + 1 < len(lines) else None
        is_new_paragraph = is_after_blank and not after_opener and indent == block_indent
        if indent < max(shape.min_indent, block_indent) or is_new_paragraph:
            return end_before
        if block_indent < 0:
            block_indent = max(indent, shape.min_indent + bool(shape.closer))
        is_after_blank = False
    return None


def _closes(line: str, indent: int, shape: Shape) -> bool:
    return bool(shape.closer) and indent == shape.min_indent and line.strip().rstrip(";,)") == shape.closer
