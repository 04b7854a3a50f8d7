"""In which order many prompts are computed. Light: pure, knows neither engine nor clock.

Prompts that begin alike follow one another, so that what they share is computed once, by the first of them, and is
still in the cache for the others: among those that share their first tokens the order is that of their tokens, which
is depth first through the trie of all prompts. Such groups come by their longest member, the longest first: requests
of like length then run side by side, and none that is long is left to run alone at the end.
"""

import heapq
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from sys import byteorder

ID_BYTES = 4
MIN_SHARED_TOKENS = 16
"""Fewer tokens in common are not worth waiting for."""
_HEAD_BYTES = MIN_SHARED_TOKENS * ID_BYTES
_BEYOND = b"\xff" * (ID_BYTES + 1)  # greater than any token


def key_of(token_ids: Sequence[int]) -> bytes:
    """Tokens as bytes that are ordered as they are: compared at once, and a tenth of a list's memory."""
    ids = array("I", token_ids)
    assert ids.itemsize == ID_BYTES
    if byteorder == "little":
        ids.byteswap()
    return ids.tobytes()


def token_ids_of(key: bytes) -> list[int]:
    """What ``key_of`` was given."""
    ids = array("I", key)
    if byteorder == "little":
        ids.byteswap()
    return ids.tolist()


def awaited_start(key: bytes, num_usable: int) -> bytes | None:
    """Prompts that begin so should wait for the one of ``key``, which is being computed.

    Of that, others can use ``num_usable`` tokens so far. None when there is no more to come.
    """
    end = max(MIN_SHARED_TOKENS, num_usable + 1) * ID_BYTES
    return key[:end] if len(key) >= end else None


class Order:
    """Prompts that wait, by their keys; they may come at any time. Adding and taking cost the logarithm of all."""

    def __init__(self, *, is_sorted: bool = True) -> None:
        """Unless ``is_sorted`` the order is that of arrival, and nothing waits for what another computes."""
        self._is_sorted = is_sorted
        self._arrived: deque[tuple[bytes, int]] = deque()
        self._groups: dict[bytes, list[tuple[bytes, int]]] = {}
        self._begun: dict[bytes, None] = {}
        self._by_length: list[tuple[int, int, bytes]] = []  # a heap; may name groups that are begun or empty
        self._clock = count()
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, key: bytes, number: int) -> None:
        """Let the prompt of a ``number`` wait for its turn."""
        self._num_waiting += 1
        if not self._is_sorted:
            self._arrived.append((key, number))
            return
        head = key[:_HEAD_BYTES]
        insort(self._groups.setdefault(head, []), (key, number))
        if head not in self._begun:
            heapq.heappush(self._by_length, (-len(key), next(self._clock), head))

    def take(self, awaited: Iterable[bytes] = ()) -> int | None:
        """The number of the next prompt that begins with none of ``awaited``; None if there is none."""
        if not self._is_sorted:
            number = self._arrived.popleft()[1] if self._arrived else None
            self._num_waiting -= number is not None
            return number
        starts = sorted(set(awaited))
        for head in list(self._begun):
            if (number := self._take_of(head, starts)) is not None:
                return number
        while self._by_length:
            head = heapq.heappop(self._by_length)[2]
            if head in self._begun or head not in self._groups:
                continue
            self._begun[head] = None
            if (number := self._take_of(head, starts)) is not None:
                return number
        return None

    def _take_of(self, head: bytes, starts: list[bytes]) -> int | None:
        group, at = self._groups[head], 0
        while at < len(group):
            key, number = group[at]
            start = next((start for start in starts if key.startswith(start)), None)
            if start is None:
                del group[at]
                if not group:
                    del self._groups[head], self._begun[head]
                self._num_waiting -= 1
                return number
            at = bisect_left(group, (start + _BEYOND, 0), at)  # all that begin so lie together
        return None
