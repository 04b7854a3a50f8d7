"""A forward pass on its way, and the chunks of the plan that it computes."""

import time

from torch import Tensor

from engine.cache.storage import KVStorage
from engine.model.batch import Span
from engine.model.contract import AnyDecoder, AnyPass
from engine.scheduler.sequence import Chunk, Plan


class Flight:
    """A forward pass, and the chunks it computes."""

    def __init__(self, plan: Plan, decoder: AnyDecoder, storage: KVStorage) -> None:
        self.lane = plan.lane
        self.seconds = 0.0
        self.num_planned_rows = plan.num_rows
        self.is_whole = True
        """All that was planned has been computed."""
        self._spans: dict[Chunk, Span] = {}
        for chunk in plan.chunks:
            table = chunk.sequence.table
            assert table is not None
            self._spans[chunk] = Span(chunk.token_ids, chunk.start, table.blocks)
        self._forward: AnyPass = decoder.start(list(self._spans.values()), storage)

    @property
    def chunks(self) -> list[Chunk]:
        """Those that are still computed."""
        return list(self._spans)

    @property
    def is_done(self) -> bool:
        """Nothing is left to compute."""
        return not self._spans or self._forward.is_done

    def advance(self) -> None:
        """Compute one layer."""
        started = time.perf_counter()
        self._forward.advance()
        self.seconds += time.perf_counter() - started

    @property
    def is_empty(self) -> bool:
        """Nobody wants it any more."""
        return not self._spans

    def drop(self, chunks: list[Chunk]) -> None:
        """Compute the rest without some chunks."""
        self.is_whole = False
        for chunk in chunks:
            del self._spans[chunk]
        if self._spans:
            self._forward.keep(list(self._spans.values()))

    def abandon(self) -> None:
        """Compute nothing more."""
        self._spans.clear()

    @property
    def num_keys(self) -> tuple[int, int]:
        """``ForwardPass.num_keys`` of what is computed."""
        return self._forward.num_keys

    def hidden(self, chunk: Chunk) -> Tensor:
        """The last layer's output for the rows whose logits are wanted."""
        return self._forward.hidden(self._spans[chunk], chunk.num_logits)
