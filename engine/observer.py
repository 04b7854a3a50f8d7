"""Who is told what an engine does. Light: imports no torch."""

from typing import Protocol

from engine.request import Finished, Lane


class Observer(Protocol):
    """Whoever counts what an engine does; called on its computing thread."""

    def on_pass(self, lane: Lane, num_rows: int, seconds: float, num_keys: tuple[int, int]) -> None:
        """A forward pass is complete, its tokens are chosen.

        ``num_keys`` are the keys that attention wanted, and those it read with padding.
        """

    def on_end(self, lane: Lane, finished: Finished) -> None:
        """A request has ended."""

    def on_waste(self, lane: Lane, num_tokens: int) -> None:
        """So many tokens were computed, or begun, for a request that nobody wants any more, and the one that took its
        place does not begin with them.
        """
