"""Where guesses come from. Light: imports no torch.

A source belongs to one sequence. It may be wrong: drafts are verified before they count.
"""

from array import array
from collections.abc import Sequence as TokenList
from typing import Protocol

from engine.healing import agrees


class DraftSource(Protocol):
    """Guesses what follows a token sequence."""

    @property
    def name(self) -> str:
        """What its successes are counted under; may depend on the last proposal."""

    @property
    def cost_s(self) -> float:
        """Seconds that guessing one token takes."""

    def propose(self, token_ids: TokenList[int], max_tokens: int) -> list[int]:
        """Up to ``max_tokens`` tokens that may follow ``token_ids``, which only grows from call to call."""

    def catch_up_s(self, token_ids: TokenList[int]) -> float:
        """Seconds that the next proposal takes beside its tokens."""

    def close(self) -> None:
        """The sequence has ended."""


class _FreeSource:
    """A source whose guesses cost nothing worth counting."""

    cost_s = 0.0

    def catch_up_s(self, token_ids: TokenList[int]) -> float:
        """Nothing."""
        return 0.0

    def close(self) -> None:
        """Nothing is held."""


class EarlierAnswer(_FreeSource):
    """A text that was expected before, such as what an earlier answer had left when its beginning was typed."""

    name = "earlier"

    def __init__(self, num_prompt_tokens: int, draft_ids: TokenList[int]) -> None:
        self._start = num_prompt_tokens
        self._draft_ids = list(draft_ids)

    def propose(self, token_ids: TokenList[int], max_tokens: int) -> list[int]:
        """The rest of the text, as long as everything generated so far agrees with it."""
        generated = list(token_ids[self._start :])
        at = len(generated)
        return self._draft_ids[at : at + max_tokens] if generated == self._draft_ids[:at] else []


class Obedient:
    """Another source's guesses, as far as they agree with the bytes that the answer must begin with."""

    def __init__(
        self, source: DraftSource, num_prompt_tokens: int, required: bytes, token_bytes: TokenList[bytes]
    ) -> None:
        """``token_bytes`` are all tokens' bytes by id."""
        self._source = source
        self._known = num_prompt_tokens
        self._required = required
        self._token_bytes = token_bytes

    @property
    def name(self) -> str:
        """That of the source."""
        return self._source.name

    @property
    def cost_s(self) -> float:
        """That of the source."""
        return self._source.cost_s

    def propose(self, token_ids: TokenList[int], max_tokens: int) -> list[int]:
        """Up to the first guess that cannot come true."""
        drafts = self._source.propose(token_ids, max_tokens)
        for token in token_ids[self._known :] if self._required else ():
            self._required = self._required[len(self._token_bytes[token]) :]
        self._known = len(token_ids)
        remaining = self._required
        for index, token in enumerate(drafts):
            if not remaining:
                break
            piece = self._token_bytes[token]
            if not (piece and agrees(piece, remaining)):
                return drafts[:index]
            remaining = remaining[len(piece) :]
        return drafts

    def catch_up_s(self, token_ids: TokenList[int]) -> float:
        """That of the source."""
        return self._source.catch_up_s(token_ids)

    def close(self) -> None:
        """The sequence has ended."""
        self._source.close()


class NGrams(_FreeSource):
    """What followed the last tokens when they stood there before: the longest match, and of those the latest.

    Code repeats itself nearby, so the latest occurrence is the best guess; prompt lookup as first published takes
    the earliest. Searching bytes for bytes takes microseconds where an index of all n-grams would take milliseconds.
    """

    _MAX_LENGTH = 5
    _MIN_LENGTH = 2
    _WIDTH = 4

    def __init__(self, corpus: TokenList[int] = ()) -> None:
        """``corpus`` are tokens that are not part of the sequence, but may repeat in it."""
        self._bytes = bytearray(array("I", corpus).tobytes())
        self._num_corpus = len(corpus)
        self._matched = 0

    @property
    def name(self) -> str:
        """Longer matches are right more often, so they are counted apart."""
        return f"ngram{self._matched}"

    def propose(self, token_ids: TokenList[int], max_tokens: int) -> list[int]:
        """What followed the latest earlier occurrence of the last tokens."""
        known = len(self._bytes) // self._WIDTH - self._num_corpus
        self._bytes += array("I", token_ids[known:]).tobytes()
        for length in range(self._MAX_LENGTH, self._MIN_LENGTH - 1, -1):
            end = self._find(self._bytes[-length * self._WIDTH :])
            if end is not None:
                self._matched = length
                found = array("I", bytes(self._bytes[end : end + max_tokens * self._WIDTH]))
                return found.tolist()
        return []

    def _find(self, last: bytearray) -> int | None:
        """Where the latest occurrence of the last tokens ends that something follows, in bytes."""
        limit = len(self._bytes) - self._WIDTH
        while (at := self._bytes.rfind(last, 0, limit)) >= 0:
            if at % self._WIDTH == 0:
                return at + len(last)
            limit = at + len(last) - 1
        return None
