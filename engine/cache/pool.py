"""Blocks of the KV memory, counted by reference. Light: imports no torch.

A block holds the keys and values of ``block_tokens`` consecutive tokens, in every layer. Block 0 is never given out:
it stays zero, and fills up the block tables of shorter sequences in a batch.
"""

NULL_BLOCK = 0


class BlockPool:
    """Gives out blocks and takes them back when nobody holds them. Not safe for threads."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 2 or block_tokens < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_tokens} tokens holds nothing")
        self.block_tokens = block_tokens
        self._num_references = [1] + [0] * (num_blocks - 1)
        self._free = list(range(num_blocks - 1, 0, -1))  # the last given back is the next given out: it is warm

    @property
    def num_blocks(self) -> int:
        """Blocks that can be given out."""
        return len(self._num_references) - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def num_references(self, block: int) -> int:
        """How many hold a block."""
        return self._num_references[block]

    def allocate(self, count: int) -> list[int]:
        """Give out ``count`` free blocks. Raises ``ValueError`` when there are not so many."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks wanted, {self.num_free} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._num_references[block] = 1
        return blocks

    def retain(self, block: int) -> None:
        """Hold a block that somebody else holds already."""
        if self._num_references[block] < 1:
            raise ValueError(f"block {block} is free and cannot be shared")
        self._num_references[block] += 1

    def release(self, block: int) -> bool:
        """Let go of a block; True when it is free now. Raises ``ValueError`` when nobody holds it."""
        if block == NULL_BLOCK or self._num_references[block] < 1:
            raise ValueError(f"block {block} is released, but nobody holds it")
        self._num_references[block] -= 1
        if self._num_references[block]:
            return False
        self._free.append(block)
        return True

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when the counts contradict each other."""
        assert NULL_BLOCK not in self._free
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        free = {block for block, count in enumerate(self._num_references) if count == 0}
        assert free == set(self._free)
        assert all(count >= 0 for count in self._num_references)
