"""Text to token ids and back. Light: imports no torch.

Buffer text is always encoded as plain text: a file that contains ``<|fim_middle|>`` yields the tokens of those
characters, never the marker. Markers are added by id (``control_ids``). Nothing is normalised and no space is put
in front, because the model must see the bytes the user has.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from tokenizers import Tokenizer as HFTokenizer

_SP_SPACE = "▁"
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable bytes stand for themselves, others are moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a piece in GPT-2's byte alphabet; text outside it (an added token) stands for itself."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:
        return piece.encode("utf-8", errors="surrogateescape")


def sentencepiece_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: ``▁`` is a space, ``<0x0A>`` a byte."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match.group(1), 16)])
    return piece.replace(_SP_SPACE, " ").encode("utf-8", errors="surrogateescape")


class Tokenizer:
    """A vocabulary with its rule for splitting text, and the bytes of every token.

    ``control_ids`` maps the texts of markers and other tokens that never come from plain text to their ids.
    """

    def __init__(
        self,
        splitter: HFTokenizer,
        pieces: Sequence[str],
        control_ids: dict[str, int],
        piece_bytes: Callable[[str], bytes],
        *,
        bos_id: int | None,
        eos_ids: Iterable[int],
    ) -> None:
        self._splitter = splitter
        self.control_ids = control_ids
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        is_control = frozenset(control_ids.values())
        self._bytes = [b"" if i in is_control else piece_bytes(piece) for i, piece in enumerate(pieces)]

    @property
    def vocab_size(self) -> int:
        """Number of ids, control tokens included."""
        return len(self._bytes)

    @property
    def all_bytes(self) -> Sequence[bytes]:
        """Every token's bytes by id; empty for control tokens."""
        return self._bytes

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; never a control token. Lone surrogates become U+FFFD."""
        if not text:
            return []
        ids: list[int] = self._splitter.encode(_SURROGATE.sub("\ufffd", text), add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens; control tokens vanish, incomplete characters become U+FFFD."""
        return b"".join(self._bytes[i] for i in token_ids).decode("utf-8", errors="replace")

    def control_id(self, text: str) -> int | None:
        """Id of a marker by its text, or None when the vocabulary has no such control token."""
        return self.control_ids.get(text)

    def is_control(self, token_id: int) -> bool:
        """Whether a token stands for no text: a marker, or an id that the vocabulary leaves unused."""
        return not self._bytes[token_id]
