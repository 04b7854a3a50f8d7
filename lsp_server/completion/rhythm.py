"""How fast this user types and how fast this engine answers, and so how long a request should wait for the next key.

Pure; times are given. Someone who pauses longer than an answer takes gets it without any wait. Where the engine is
slower than the typing, most answers would come too late: then a request waits for a real pause.
"""

_WEIGHT = 0.2
_LONGEST_PAUSE_S = 1.0
"""Who pauses longer is reading or thinking, not typing."""
_USUAL_PAUSE_MS = 180.0


class Rhythm:
    """Running means of one user and one engine."""

    def __init__(self) -> None:
        self.pause_ms = _USUAL_PAUSE_MS
        """Between two keys while typing."""
        self.answer_ms = 0.0
        """From a request whose prompt was cached to its suggestion; 0 until one is known."""
        self._last_key_s: float | None = None

    def key(self, now_s: float) -> None:
        """A key has been pressed."""
        if self._last_key_s is not None and now_s - self._last_key_s < _LONGEST_PAUSE_S:
            self.pause_ms += _WEIGHT * ((now_s - self._last_key_s) * 1000 - self.pause_ms)
        self._last_key_s = now_s

    def answered(self, elapsed_ms: float) -> None:
        """A request whose prompt was cached has been answered."""
        self.answer_ms += (_WEIGHT if self.answer_ms else 1.0) * (elapsed_ms - self.answer_ms)

    def wait_ms(self, most_ms: float) -> float:
        """How long to wait for the next key: by as much as an answer takes longer than the pause, up to a limit."""
        return min(max(self.answer_ms - self.pause_ms, 0.0), most_ms)
