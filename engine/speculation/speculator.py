"""How many tokens are drafted: as many as the measured success and the measured cost of rows make worthwhile. Light."""

from dataclasses import dataclass

from engine.config import Profile
from engine.scheduler.sequence import Load, Sequence
from engine.speculation.sources import DraftSource

_PRIOR_SUCCESS = 0.6
_PRIOR_TRIALS = 3.0
_DECAY = 0.95
_FORGETTING = 0.99
_COST_WEIGHT = 0.2
_UNKNOWN_SLOPE = 0.03


class CostCurve:
    """Seconds that a pass over so many rows takes, as measured: a running mean for each power of two."""

    def __init__(self) -> None:
        self._mean_s: dict[int, float] = {}

    def record(self, num_rows: int, seconds: float) -> None:
        """A pass over ``num_rows`` has taken ``seconds``."""
        bucket = 1 << round_log2(num_rows)
        mean = self._mean_s.get(bucket)
        self._mean_s[bucket] = seconds if mean is None else mean + _COST_WEIGHT * (seconds - mean)

    def knows(self, num_rows: int) -> bool:
        """Whether so few rows have been measured: what is estimated below the smallest count is too much."""
        return bool(self._mean_s) and min(self._mean_s) <= 1 << round_log2(num_rows)

    def estimate_s(self, num_rows: int) -> float:
        """Between two measured counts a straight line; beyond the largest a guess that invites to try it."""
        if not self._mean_s:
            return 0.0
        below = max((rows for rows in self._mean_s if rows <= num_rows), default=None)
        above = min((rows for rows in self._mean_s if rows >= num_rows), default=None)
        if below is None or above is None:
            rows = below if below is not None else above
            assert rows is not None
            return self._mean_s[rows] * (1.0 + _UNKNOWN_SLOPE * max(0, num_rows - rows))
        low, high = self._mean_s[below], self._mean_s[above]
        return low if above == below else low + (high - low) * (num_rows - below) / (above - below)


def round_log2(value: int) -> int:
    """The exponent of the power of two that is closest on a logarithmic scale."""
    exponent = value.bit_length() - 1
    return exponent + (value * value > 2 << 2 * exponent)


@dataclass
class Success:
    """How often the drafts of a source come true, the latest counting most."""

    hits: float = _PRIOR_SUCCESS * _PRIOR_TRIALS
    trials: float = _PRIOR_TRIALS

    @property
    def rate(self) -> float:
        """Probability that the next draft token is right, given that those before it are."""
        return self.hits / self.trials

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Tokens behind the first wrong one say nothing."""
        self.hits = self.hits * _DECAY + num_accepted
        self.trials = self.trials * _DECAY + num_accepted + (num_accepted < num_drafted)

    def forget(self) -> None:
        """Drift back to what is assumed without evidence, so that a source that was given up gets another chance."""
        self.hits += (1.0 - _FORGETTING) * (_PRIOR_SUCCESS * _PRIOR_TRIALS - self.hits)
        self.trials += (1.0 - _FORGETTING) * (_PRIOR_TRIALS - self.trials)


class Speculator:
    """Asks the sources of each sequence in order and limits what they propose. Not safe for threads."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.cost = CostCurve()
        self._success: dict[str, Success] = {}
        self._sources: dict[Sequence, tuple[DraftSource, ...]] = {}
        self._proposed: dict[Sequence, str] = {}

    def add(self, sequence: Sequence, sources: tuple[DraftSource, ...]) -> None:
        """Draft for a sequence, from the most precise source that has something to say."""
        self._sources[sequence] = sources

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence."""
        for source in self._sources.pop(sequence, ()):
            source.close()
        self._proposed.pop(sequence, None)

    def propose(self, sequence: Sequence, max_drafts: int, load: Load) -> list[int]:
        """Draft tokens behind a sequence's known ones, in a pass that computes ``load`` without them."""
        room = min(max_drafts, self._profile.max_drafts)
        has_begun = len(sequence.token_ids) > sequence.num_prompt_tokens
        for source in self._sources.get(sequence, ()) if room > 0 else ():
            if source.cost_s and not has_begun:  # it must not delay the first token
                continue
            # a source that costs something is asked only for what is worth it
            wanted = self._worthwhile(sequence, source, room, load) if source.cost_s else room
            drafts = source.propose(sequence.token_ids, wanted) if wanted else []
            if wanted and not drafts:
                continue
            count = self._worthwhile(sequence, source, len(drafts), load)
            if count:
                self._proposed[sequence] = source.name
                return drafts[:count]
            self._of(source.name).forget()
        return []

    def record(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """What became of the last proposal."""
        if num_drafted:
            self._of(self._proposed[sequence]).record(num_drafted, num_accepted)

    def _of(self, name: str) -> Success:
        return self._success.setdefault(name, Success())

    def _worthwhile(self, sequence: Sequence, source: DraftSource, room: int, load: Load) -> int:
        """The number of drafts that saves the most time; 0 when none does.

        Each token that comes true saves a row's share of a pass in which all that run get a token; alone that is the
        whole pass. It costs its row in this pass, and what the source takes for it; a source that has to catch up
        first must save that over the rest of the answer.
        """
        if load.num_sequences > 1 and not self.cost.knows(load.num_sequences):
            return 0  # a pass without drafts tells what one costs
        rate = self._of(source.name).rate
        share_s = self.cost.estimate_s(load.num_sequences) / load.num_sequences
        base_s = self.cost.estimate_s(load.num_rows)
        best_count, best_gain_s, best_expected, expected = 0, 0.0, 0.0, 0.0
        for count in range(1, room + 1):
            expected += rate**count
            extra_s = self.cost.estimate_s(load.num_rows + count) - base_s + count * source.cost_s
            gain_s = expected * share_s - extra_s
            if gain_s > best_gain_s or not share_s:
                best_count, best_gain_s, best_expected = count, gain_s, expected
        num_passes_left = (sequence.max_tokens - len(sequence.token_ids)) / (1.0 + best_expected)
        return best_count if best_gain_s * num_passes_left >= source.catch_up_s(sequence.token_ids) else 0
