"""Operations, counted one by one."""

import pytest

from engine.bulk.counts import num_operations
from engine.request import Usage
from tests.support.native import native_config


@pytest.mark.parametrize(
    ("num_prompt", "num_cached", "num_generated"), [(5, 0, 3), (5, 4, 1), (7, 3, 0), (1, 0, 1), (20, 16, 9)]
)
def test_operations_are_those_of_each_row(num_prompt: int, num_cached: int, num_generated: int) -> None:
    shape = native_config(num_layers=3, num_heads=4, num_kv_heads=2, vocab_size=100)
    hidden, ffn, heads, kv = 64, 64, 4 * 64, 2 * 64
    expected = 2 * num_generated * 100 * hidden
    for position in range(num_cached, num_prompt + max(0, num_generated - 1)):
        layer = hidden * (heads + 2 * kv) + heads * hidden + 3 * hidden * ffn
        attention = 2 * (position + 1) * heads
        expected += 3 * 2 * (layer + attention)
    usage = Usage(num_prompt, num_cached, num_generated)
    assert num_operations(shape, usage) == expected
