"""What a request may not be."""

import pytest

from engine.errors import RequestError
from engine.request import CompletionRequest


@pytest.mark.parametrize("anchor", [-1, 4])
def test_an_anchor_outside_the_prefix_is_refused(anchor: int) -> None:
    with pytest.raises(RequestError, match=rf"^anchor is {anchor}; it must be between 0 and 3, or absent$"):
        CompletionRequest("abc", "", anchor=anchor)


@pytest.mark.parametrize("anchor", [None, 0, 3])
def test_an_anchor_at_either_end_is_one(anchor: int | None) -> None:
    assert CompletionRequest("abc", "", anchor=anchor).anchor == anchor
