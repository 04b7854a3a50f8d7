"""The byte constraint against its obvious twin."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.healing import ByteConstraint, ByteVocabulary

_bytes = st.binary(max_size=4).map(lambda b: bytes(x % 3 + 0xFD for x in b))  # few letters, up to 0xFF


@settings(max_examples=300, derandomize=True)
@given(vocabulary=st.lists(_bytes, max_size=30), required=_bytes.filter(bool))
def test_allowed_equals_a_scan_of_the_vocabulary(vocabulary: list[bytes], required: bytes) -> None:
    expected = {
        i for i, piece in enumerate(vocabulary) if piece and (piece.startswith(required) or required.startswith(piece))
    }
    found = ByteVocabulary(vocabulary).allowed(required).tolist()
    assert len(found) == len(set(found))
    assert set(found) == expected


@settings(max_examples=200, derandomize=True)
@given(data=st.data(), text=st.binary(min_size=1, max_size=12), typed=st.integers(0, 12))
def test_any_way_through_the_constraint_gives_the_text_beyond_it(data: st.DataObject, text: bytes, typed: int) -> None:
    """However the text is cut into tokens, what comes out is the text without what was typed."""
    required = text[:typed]
    constraint, new, position = ByteConstraint(ByteVocabulary([]), required), b"", 0
    while position < len(text):
        length = data.draw(st.integers(1, len(text) - position))
        new += constraint.advance(text[position : position + length])
        position += length
    assert new == text[len(required) :]
    assert constraint.remaining == b""
    assert constraint.allowed_ids() is None


def test_a_token_against_the_constraint_is_a_bug() -> None:
    constraint = ByteConstraint(ByteVocabulary([b"a", b"b"]), b"a")
    with pytest.raises(RuntimeError, match="breaks the constraint"):
        constraint.advance(b"b")
