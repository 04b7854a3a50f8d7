"""Which part of a long file the model sees. Pure functions over LF text.

The window before the cursor begins at a line border that moves in large steps, so that the prompt's first tokens,
and with them the engine's cache, stay the same over many keystrokes.
"""

_LINE_STEPS = (32, 16, 8, 4, 2, 1)


def window_before(prefix: str, max_chars: int) -> str:
    """The end of ``prefix``, at most ``max_chars``, from a line border if one is within reach.

    Of the steps that leave at least half of ``max_chars``, the largest is taken.
    """
    if len(prefix) <= max_chars:
        return prefix
    starts = _line_starts(prefix)
    for step in _LINE_STEPS:
        fitting = [start for start in starts[::step] if len(prefix) - start <= max_chars]
        if fitting and 2 * (len(prefix) - fitting[0]) >= max_chars:
            return prefix[fitting[0] :]
    return prefix[len(prefix) - max_chars :]  # a giant line


def window_after(suffix: str, max_chars: int) -> str:
    """The beginning of ``suffix``, at most ``max_chars``, up to a line end if one is within reach."""
    if len(suffix) <= max_chars:
        return suffix
    end = suffix.rfind("\n", 0, max_chars)
    return suffix[: end if end > 0 else max_chars]


def _line_starts(text: str) -> list[int]:
    starts = [0]
    while (end := text.find("\n", starts[-1])) >= 0:
        starts.append(end + 1)
    return starts
