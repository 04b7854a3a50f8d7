"""How much of a text is shown within so many tokens: its end or its start, whole lines where possible. Light.

An end is cut in large steps counted from the text's own start, so that while the text grows what is shown begins at
the same place for many keystrokes: whatever is computed for it stays valid.
"""

from functools import lru_cache

from engine.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"  # what half a character decodes to
_CHARS_PER_TOKEN = 16  # more than any code has; what lies beyond is cut before it is tokenised
_REMEMBERED = 32  # texts: from one keystroke to the next all but one stay the same


class Windows:
    """Cuts texts for one tokenizer. Safe for threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._remembered = lru_cache(maxsize=_REMEMBERED)(lambda text: tuple(tokenizer.encode(text)))

    def encode(self, text: str) -> tuple[int, ...]:
        """``Tokenizer.encode``; remembers the latest texts."""
        return self._remembered(text)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.encode(text))

    def tail(self, text: str, max_tokens: int) -> str:
        """The end of ``text`` within ``max_tokens``; if it is cut, from a line's start where there is one.

        The cut is at the first line that begins at or behind a multiple of a step, which is the largest power of two
        of characters up to ``max_tokens`` (about a quarter of what code has room for). At least half of what would
        fit is left, but for the line that is cut through.
        """
        start = self._least_start(text, max_tokens)
        if start == 0 or start == len(text):
            return text[start:]
        step = 1 << (max_tokens.bit_length() - 1)
        while (cut := -(-start // step) * step) - start > (len(text) - start) // 2:
            step //= 2
        shown = self._from_line(text, cut)
        while self.count(shown) > max_tokens:  # a cut within a token makes several of it
            cut += step
            shown = self._from_line(text, cut)
        return shown

    def head(self, text: str, max_tokens: int) -> str:
        """The start of ``text`` within ``max_tokens``; if it is cut, to a line's end where there is one."""
        cut = text[: max(max_tokens, 0) * _CHARS_PER_TOKEN]
        ids = self.encode(cut)
        if len(ids) > max_tokens:
            cut = self._tokenizer.decode(ids[:max_tokens]).rstrip(_REPLACEMENT)
        if len(cut) == len(text):
            return text
        return cut[: cut.rfind("\n") + 1] or cut

    def _least_start(self, text: str, max_tokens: int) -> int:
        """Where the longest end of ``text`` within ``max_tokens`` begins."""
        if max_tokens <= 0:
            return len(text)
        cut = text[-max_tokens * _CHARS_PER_TOKEN :]
        ids = self.encode(cut)
        if len(ids) > max_tokens:
            cut = self._tokenizer.decode(ids[-max_tokens:]).lstrip(_REPLACEMENT)
        return len(text) - len(cut)

    @staticmethod
    def _from_line(text: str, start: int) -> str:
        line_start = text.find("\n", max(start, 1) - 1) + 1
        return text[line_start:] if 0 < line_start < len(text) else text[start:]
