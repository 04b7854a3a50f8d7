"""Who holds which blocks: sequences that are computed, and the index of what has been. Light: imports no torch.

Whole blocks are shared and read-only. The block in which a sequence leaves a computed one is copied as far as both
agree, so a hit goes to the token and nobody ever writes into a shared block. Memory is reserved for a whole request
when it is admitted; a running request never has to wait for memory, or give it back.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from engine.cache.pool import BlockPool
from engine.cache.prefix_index import Match, Node, PrefixIndex


class BlockMemory(Protocol):
    """What is needed of the storage behind the blocks."""

    def clear(self, blocks: list[int]) -> None:
        """Make new blocks finite: what is masked in attention is multiplied by zero, which NaN survives."""

    def copy(self, source: int, target: int) -> None:
        """Copy one block into another, with whatever stands behind the tokens that are wanted."""


@dataclass(eq=False)
class BlockTable:
    """The blocks of one sequence, from its first token to the last it may ever have."""

    blocks: list[int]
    last_node: Node
    """The deepest published node; the first ``num_published`` blocks are those of the path to it."""
    num_published: int
    num_cached_tokens: int
    """Tokens that were computed when the table was made."""
    is_private: bool = False
    """Nothing of it is ever published."""


@dataclass(frozen=True)
class CacheLimits:
    """How much of the cache is kept for those who type."""

    max_sessions: int = 8
    """The latest sequences of so many sessions are evicted last."""
    max_protected_share: float = 0.5
    """At most this share of all blocks."""


@dataclass
class KVCache:
    """Blocks, index and sessions of one model. Not safe for threads."""

    pool: BlockPool
    memory: BlockMemory
    namespace: str
    limits: CacheLimits = field(default_factory=CacheLimits)

    def __post_init__(self) -> None:
        self.index = PrefixIndex(self.pool.block_tokens)
        self._tables: set[BlockTable] = set()
        self._sessions: OrderedDict[str, Node] = OrderedDict()
        self._num_idle = 0  # blocks that only the index holds

    @property
    def num_used(self) -> int:
        """Blocks that running sequences hold."""
        return self.pool.num_blocks - self.pool.num_free - self._num_idle

    @property
    def num_cached(self) -> int:
        """Blocks that are only kept because they may be wanted again."""
        return self._num_idle

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens``."""
        return -(-num_tokens // self.pool.block_tokens)

    def reserve(
        self, token_ids: list[int], max_tokens: int, may_take_sessions: bool = True, *, is_private: bool = False
    ) -> BlockTable | None:
        """Blocks for a sequence that begins with ``token_ids`` and may grow to ``max_tokens``.

        None when there is no room now. ``num_cached_tokens`` of the table are computed already: never all, because
        the last token's hidden state is wanted. ``may_take_sessions`` allows to evict what a session has left.
        A private table begins with none computed and is never shared.
        """
        match = Match((), None, 0) if is_private else self.index.match(self.namespace, token_ids[:-1])
        shared = [node.block for node in match.nodes]
        tail, num_tail_tokens = match.tail, match.num_tail_tokens
        count = self.num_blocks_for(max_tokens) - len(shared)
        for block in shared:
            self._retain(block)
        fresh = None
        if tail is not None:
            self._retain(tail.block)  # it must not be evicted before it is copied
            fresh = self._allocate(count, may_take_sessions)
            if fresh is not None:
                self.memory.copy(tail.block, fresh[0])
            self._release(tail.block)
        if fresh is None:  # without the tail there may be room
            num_tail_tokens = 0
            fresh = self._allocate(count, may_take_sessions)
        if fresh is None:
            for block in shared:
                self._release(block)
            return None
        table = BlockTable(
            blocks=shared + fresh,
            last_node=match.nodes[-1] if match.nodes else self.index.root(self.namespace),
            num_published=len(shared),
            num_cached_tokens=len(shared) * self.pool.block_tokens + num_tail_tokens,
            is_private=is_private,
        )
        self._tables.add(table)
        return table

    def publish(self, table: BlockTable, token_ids: list[int], num_computed: int) -> None:
        """Let others use the whole blocks of the first ``num_computed`` tokens, which every layer has written.

        Where another sequence has published the same tokens, its block takes the place of ours.
        """
        if table.is_private:
            return
        size = self.pool.block_tokens
        while (table.num_published + 1) * size <= num_computed:
            at = table.num_published
            tokens, block = tuple(token_ids[at * size : (at + 1) * size]), table.blocks[at]
            node = table.last_node.child(tokens)
            if node is not None:
                self._retain(node.block)
                self.pool.release(block)
                table.blocks[at] = node.block
            else:
                self._forget_shorter(table.last_node, tokens)
                node = self.index.insert(table.last_node, tokens, block)
                self.pool.retain(block)  # the index's own
            table.last_node, table.num_published = node, at + 1

    def release(self, table: BlockTable, token_ids: list[int], num_computed: int, session: str = "") -> None:
        """Publish all that is computed, also the last partial block, and give the blocks back.

        Raises ``ValueError`` when the table has been given back before.
        """
        if table not in self._tables:
            raise ValueError("a sequence's blocks are given back twice")
        self._tables.remove(table)
        if not table.is_private:
            self._publish_all(table, token_ids, num_computed)
            if session:
                self._remember(session, table.last_node)
        for block in table.blocks:
            self._release(block)

    def clear(self) -> None:
        """Forget all that is not in use."""
        self._sessions.clear()
        self._evict(self.pool.num_blocks, frozenset())

    def _publish_all(self, table: BlockTable, token_ids: list[int], num_computed: int) -> None:
        """Publish, and the last partial block as well; afterwards the table's last node ends with it."""
        self.publish(table, token_ids, num_computed)
        size = self.pool.block_tokens
        at = table.num_published
        tail = tuple(token_ids[at * size : num_computed])
        sibling, length = table.last_node.closest_child(tail)
        if length < len(tail):
            self._forget_shorter(table.last_node, tail)
            table.last_node = self.index.insert(table.last_node, tail, table.blocks[at])
            self.pool.retain(table.blocks[at])
        elif sibling is not None:
            table.last_node = sibling

    def _forget_shorter(self, parent: Node, tokens: tuple[int, ...]) -> None:
        """Drop a partial block that the new one contains; nobody holds it, because partial blocks are copied."""
        sibling, length = parent.closest_child(tokens)
        if sibling is not None and length == len(sibling.token_ids) < len(tokens):
            self._drop(sibling)

    def _allocate(self, count: int, may_take_sessions: bool) -> list[int] | None:
        missing = count - self.pool.num_free
        protected = self._protected()
        spared: frozenset[Node] = frozenset() if may_take_sessions else frozenset(protected)
        if missing > self._num_idle - sum(self.pool.num_references(node.block) == 1 for node in spared):
            return None
        if missing > 0:
            missing -= self._evict(missing, frozenset(protected))
        if missing > 0:
            self._evict(missing, spared)
        blocks = self.pool.allocate(count)
        self.memory.clear(blocks)
        return blocks

    def _protected(self) -> dict[Node, None]:
        """Nodes of the latest sessions' sequences, as many as the limits allow."""
        budget = int(self.pool.num_blocks * self.limits.max_protected_share)
        nodes: dict[Node, None] = {}
        for leaf in reversed(self._sessions.values()):
            path, node = [], leaf
            while node.parent is not None and node not in nodes:
                path.append(node)
                node = node.parent
            if len(nodes) + len(path) > budget:
                break
            nodes.update(dict.fromkeys(path))
        return nodes

    def _remember(self, session: str, leaf: Node) -> None:
        self._sessions[session] = leaf
        self._sessions.move_to_end(session)
        while len(self._sessions) > self.limits.max_sessions:
            self._sessions.popitem(last=False)

    def _evict(self, count: int, spared: frozenset[Node]) -> int:
        """Free up to ``count`` blocks, leaves first and the longest unused first; returns how many."""
        heap = [(leaf.last_use, id(leaf), leaf) for leaf in self.index.leaves if self._may_evict(leaf, spared)]
        heapq.heapify(heap)
        freed = 0
        while heap and freed < count:
            _, _, leaf = heapq.heappop(heap)
            parent = leaf.parent
            assert parent is not None
            self._drop(leaf)
            freed += 1
            if parent.parent is not None and not parent.children and self._may_evict(parent, spared):
                heapq.heappush(heap, (parent.last_use, id(parent), parent))
        return freed

    def _may_evict(self, leaf: Node, spared: frozenset[Node]) -> bool:
        return self.pool.num_references(leaf.block) == 1 and leaf not in spared

    def _drop(self, leaf: Node) -> None:
        for session in [name for name, last in self._sessions.items() if last is leaf]:
            assert leaf.parent is not None
            self._sessions[session] = leaf.parent
        self.index.remove(leaf)
        self.pool.release(leaf.block)
        self._num_idle -= 1

    def _retain(self, block: int) -> None:
        """Hold a block that the index holds."""
        self._num_idle -= self.pool.num_references(block) == 1
        self.pool.retain(block)

    def _release(self, block: int) -> None:
        """Let go of a block that the index may hold."""
        is_free = self.pool.release(block)
        self._num_idle += not is_free and self.pool.num_references(block) == 1

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when blocks are lost, held twice or published by mistake."""
        self.pool.check_integrity()
        self.index.check_integrity()
        expected: dict[int, int] = {}
        for table in self._tables:
            for block in table.blocks:
                expected[block] = expected.get(block, 0) + 1
        in_index = set()
        for node in self.index:
            assert node.block not in in_index, f"block {node.block} stands twice in the index"
            in_index.add(node.block)
            expected[node.block] = expected.get(node.block, 0) + 1
        for block in range(1, self.pool.num_blocks + 1):
            assert self.pool.num_references(block) == expected.get(block, 0), f"block {block} is counted wrongly"
        assert self._num_idle == sum(self.pool.num_references(block) == 1 for block in in_index)
        for table in self._tables:
            for block in table.blocks[table.num_published :]:
                assert block not in in_index, f"block {block} is published and may still be written"
