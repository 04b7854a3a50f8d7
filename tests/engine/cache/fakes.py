"""A block memory that shows who has written what, and a pool that spoils what is given back."""

from collections.abc import Sequence
from itertools import pairwise

from engine.cache.kv_cache import BlockTable, CacheLimits, KVCache
from engine.cache.pool import BlockPool
from engine.cache.prefix_index import Node

Slot = str | tuple[int, ...]

POISON = "poison"
CLEARED = "cleared"
UNFINISHED = "unfinished"


class SlotMemory:
    """Keys and values depend on a token and on all before it, so a computed slot holds that whole prefix."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        """``num_blocks`` includes the null block."""
        self.block_tokens = block_tokens
        self.slots: list[list[Slot]] = [[POISON] * block_tokens for _ in range(num_blocks)]

    def clear(self, blocks: list[int]) -> None:
        for block in blocks:
            self.fill(block, CLEARED)

    def copy(self, source: int, target: int) -> None:
        assert source != target
        self.slots[target] = list(self.slots[source])

    def fill(self, block: int, slot: Slot) -> None:
        self.slots[block] = [slot] * self.block_tokens

    def write(self, blocks: list[int], position: int, slot: Slot) -> None:
        self.slots[blocks[position // self.block_tokens]][position % self.block_tokens] = slot

    def read(self, blocks: list[int], num_tokens: int) -> list[Slot]:
        return [slot for block in blocks for slot in self.slots[block]][:num_tokens]


class PoisoningPool(BlockPool):
    """What nobody holds must not be read by anybody."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        super().__init__(num_blocks, block_tokens)
        self.memory = SlotMemory(num_blocks, block_tokens)

    def release(self, block: int) -> bool:
        is_free = super().release(block)
        if is_free:
            self.memory.fill(block, POISON)
        return is_free


class ProbedCache:
    """A cache together with the memory under it, and what must always be true of both."""

    def __init__(self, num_blocks: int, block_tokens: int, limits: CacheLimits | None = None) -> None:
        """``num_blocks`` can be given out."""
        self.pool = PoisoningPool(num_blocks + 1, block_tokens)
        self.memory = self.pool.memory
        self.cache = KVCache(self.pool, self.memory, "model", limits or CacheLimits())

    def run(self, token_ids: list[int], session: str = "", max_tokens: int = 0) -> int:
        """Compute a sequence from its reservation to its end; returns how many tokens were computed already."""
        table = self.cache.reserve(token_ids, max(max_tokens, len(token_ids)))
        assert table is not None
        self.compute(table, token_ids, table.num_cached_tokens, len(token_ids))
        self.cache.release(table, token_ids, len(token_ids), session)
        return table.num_cached_tokens

    def compute(self, table: BlockTable, token_ids: list[int], start: int, end: int) -> None:
        """Write the tokens from ``start`` to ``end``, which must be nobody else's business."""
        self.assert_private(table, start, end)
        for position in range(start, end):
            self.memory.write(table.blocks, position, tuple(token_ids[: position + 1]))

    def assert_private(self, table: BlockTable, start: int, end: int) -> None:
        """The blocks of these positions are held by this table alone and stand in no index."""
        size = self.pool.block_tokens
        published = {node.block for node in self.cache.index}
        for block in table.blocks[start // size : -(-end // size)]:
            assert self.pool.num_references(block) == 1, f"block {block} is held by somebody else as well"
            assert block not in published

    def assert_computed(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        """The first tokens of a table are what was computed for exactly these tokens."""
        assert self.memory.read(table.blocks, num_tokens) == prefixes(token_ids[:num_tokens])

    def assert_consistent(self) -> None:
        """Counts are right, every published block holds what the index says it holds, and no other holds it too."""
        self.cache.check_integrity()
        paths = sorted(self.cached_paths())
        for path, following in pairwise(paths):  # what contains a path comes right behind it
            assert len(path) % self.pool.block_tokens == 0 or common_start(path, following) < len(path)
        for node in self.cache.index:
            path = path_tokens(node)
            expected = prefixes(path)[len(path) - len(node.token_ids) :]
            assert self.memory.slots[node.block][: len(node.token_ids)] == expected

    def cached_paths(self) -> list[tuple[int, ...]]:
        """The token sequences that end in each published block."""
        return [path_tokens(node) for node in self.cache.index]


def prefixes(token_ids: Sequence[int]) -> list[Slot]:
    """What is written for each token."""
    return [tuple(token_ids[: end + 1]) for end in range(len(token_ids))]


def path_tokens(node: Node) -> tuple[int, ...]:
    """All tokens from the start of a sequence to the end of a node."""
    before = path_tokens(node.parent) if node.parent is not None else ()
    return before + node.token_ids


def common_start(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with, counted one by one."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count
