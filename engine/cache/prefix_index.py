"""Which token sequences are computed, and in which blocks: a trie that compares tokens. Light: imports no torch.

A node is one block's tokens behind its parent's. Only a leaf may be shorter than a block. Nothing is looked up by a
hash alone, so a hit is certain; it goes to the token, also within a block. Its cost is the prompt's length times the
logarithm of the siblings.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

Tokens = tuple[int, ...]


class Node:
    """One computed block. ``token_ids`` are those of the block itself."""

    __slots__ = ("_child_tokens", "_children", "block", "last_use", "parent", "token_ids")

    def __init__(self, parent: "Node | None", token_ids: Tokens, block: int) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.block = block
        self.last_use = 0
        self._child_tokens: list[Tokens] = []
        self._children: list[Node] = []

    @property
    def children(self) -> "list[Node]":
        """Nodes that continue this one, ordered by their tokens."""
        return self._children

    def child(self, token_ids: Tokens) -> "Node | None":
        """The child with exactly these tokens."""
        at = bisect_left(self._child_tokens, token_ids)
        return self._children[at] if at < len(self._children) and self._child_tokens[at] == token_ids else None

    def closest_child(self, token_ids: Tokens) -> "tuple[Node | None, int]":
        """The child that shares the longest start with ``token_ids``, and how many tokens that are.

        In sorted order it is a neighbour of the place where ``token_ids`` would stand.
        """
        at = bisect_left(self._child_tokens, token_ids)
        best, best_length = None, 0
        for child in self._children[max(0, at - 1) : at + 1]:
            length = common_length(child.token_ids, token_ids)
            if length > best_length:
                best, best_length = child, length
        return best, best_length

    def add(self, child: "Node") -> None:
        """Take in a child whose tokens no other child has."""
        at = bisect_left(self._child_tokens, child.token_ids)
        self._child_tokens.insert(at, child.token_ids)
        self._children.insert(at, child)

    def remove(self, child: "Node") -> None:
        """Give up a child."""
        at = bisect_left(self._child_tokens, child.token_ids)
        assert self._children[at] is child
        del self._child_tokens[at], self._children[at]


def common_length(one: Tokens | list[int], other: Tokens | list[int]) -> int:
    """How many tokens both begin with."""
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    return next((i for i in range(limit) if one[i] != other[i]), limit)


@dataclass(frozen=True)
class Match:
    """What is computed of a token sequence."""

    nodes: tuple[Node, ...]
    """Whole blocks, from the start."""
    tail: Node | None
    """A block that begins with the tokens after them."""
    num_tail_tokens: int


class PrefixIndex:
    """The computed sequences. ``namespace`` says with what they were computed: model, precision, adapter."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._roots: dict[str, Node] = {}
        self._leaves: dict[Node, None] = {}
        self._clock = 0

    @property
    def leaves(self) -> list[Node]:
        """Nodes that nothing continues: what may be evicted."""
        return list(self._leaves)

    def root(self, namespace: str) -> Node:
        """Where the sequences of a namespace begin; it has no tokens and no block."""
        return self._roots.setdefault(namespace, Node(None, (), 0))

    def match(self, namespace: str, token_ids: list[int]) -> Match:
        """The longest computed start of ``token_ids``; marks it as used."""
        node, nodes, at = self.root(namespace), [], 0
        self._clock += 1
        while (end := at + self.block_tokens) <= len(token_ids):
            child = node.child(tuple(token_ids[at:end]))
            if child is None:
                break
            child.last_use = self._clock
            nodes.append(child)
            node, at = child, end
        tail, length = node.closest_child(tuple(token_ids[at : at + self.block_tokens]))
        if tail is not None:
            tail.last_use = self._clock
        return Match(tuple(nodes), tail, length)

    def insert(self, parent: Node, token_ids: Tokens, block: int) -> Node:
        """Add a block behind ``parent``, which must be whole and not have such a child."""
        node = Node(parent, token_ids, block)
        self._clock += 1
        node.last_use = self._clock
        parent.add(node)
        self._leaves.pop(parent, None)
        self._leaves[node] = None
        return node

    def remove(self, leaf: Node) -> None:
        """Forget a leaf."""
        assert not leaf.children
        assert leaf.parent is not None
        leaf.parent.remove(leaf)
        del self._leaves[leaf]
        if leaf.parent.parent is not None and not leaf.parent.children:
            self._leaves[leaf.parent] = None

    def __iter__(self) -> Iterator[Node]:
        """All nodes with a block, parents before their children."""
        waiting = [child for root in self._roots.values() for child in root.children]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when the trie contradicts itself."""
        leaves = set()
        for node in self:
            assert node.parent is not None
            assert 1 <= len(node.token_ids) <= self.block_tokens
            if node.children:
                assert len(node.token_ids) == self.block_tokens, "a partial block is continued"
                tokens = [child.token_ids for child in node.children]
                assert tokens == sorted(set(tokens)), "siblings out of order, or twice the same"
                assert all(child.parent is node for child in node.children)
            else:
                leaves.add(node)
        assert leaves == set(self._leaves)
