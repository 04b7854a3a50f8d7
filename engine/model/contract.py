"""What every decoder can do, whichever operators compute it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.batch import Span
from engine.model.best import Best
from engine.model.config import ModelConfig


class AnyPass(Protocol):
    """A pass through the layers; see ``engine.model.decoder.ForwardPass``."""

    @property
    def is_done(self) -> bool:
        """Every layer has been computed."""

    @property
    def num_rows(self) -> int:
        """Tokens that are computed."""

    @property
    def num_keys(self) -> tuple[int, int]:
        """Keys that are wanted by a row of attention, and keys that are read; for measuring."""

    def advance(self) -> None:
        """Compute one layer."""

    def keep(self, spans: list[Span]) -> None:
        """Go on with some of the spans alone."""

    def hidden(self, span: Span, num_rows: int) -> Tensor:
        """The last layer's output for the last ``num_rows`` of a span."""


class AnyDecoder(Protocol):
    """A causal language model; see ``engine.model.decoder.Decoder``."""

    config: ModelConfig

    def start(self, spans: list[Span], storage: KVStorage) -> AnyPass:
        """A forward pass that has computed nothing yet."""

    def logits(self, hidden: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Scores of every token after each of ``hidden``, of ``token_ids`` at least."""

    def best(self, hidden: Tensor, num_tokens: int, kept: Sequence[int] = ()) -> Best:
        """The likeliest of the first ``num_tokens`` tokens after each of ``hidden``, by the same scores, which never
        are in memory for many rows at once, but for those of the rows ``kept``.
        """
