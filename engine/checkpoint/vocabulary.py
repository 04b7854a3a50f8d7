"""Tokenizers from model files: GGUF metadata or ``tokenizer.json``. Light: imports no torch.

Kinds: byte-level BPE, and SentencePiece's BPE with byte fallback (llama). Anything else is an error.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import BPE

from engine.checkpoint.gguf import GGUFFile
from engine.checkpoint.pretokenizers import IGNORE_MERGES, PATTERNS
from engine.errors import CheckpointError
from engine.tokenizer import Tokenizer, byte_level_bytes, sentencepiece_bytes

_KEY = "tokenizer.ggml."


def from_gguf_path(path: Path) -> Tokenizer:
    """Load from a ``.gguf`` file."""
    return from_gguf(GGUFFile(path))


def from_gguf(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes. Raises ``CheckpointError``."""
    with _building(str(file.path)):
        return _from_metadata(file.metadata, str(file.path))


def _from_metadata(metadata: dict[str, Any], source: str) -> Tokenizer:
    kind = metadata.get(_KEY + "model")
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(
            f"{source} has a tokenizer of kind {kind!r}; 'gpt2' (byte-level BPE) and 'llama' are supported"
        )
    pieces = _need(metadata, "tokens", source)
    types = metadata.get(_KEY + "token_type") or [TokenType.NORMAL] * len(pieces)
    plain_types = (TokenType.NORMAL, TokenType.BYTE)
    plain = {piece: i for i, piece in enumerate(pieces) if types[i] in plain_types}
    control = {piece: i for i, piece in enumerate(pieces) if types[i] not in plain_types}
    spaces = {piece: i for piece, i in control.items() if piece.isspace()}
    plain |= spaces  # added tokens keep the ids that the model's vocabulary gives them
    if kind == "gpt2":
        splitter = _byte_level_splitter(metadata, plain, source)
    else:
        splitter = _sentencepiece_splitter(plain, _need(metadata, "scores", source))
    splitter.add_tokens(_space_tokens(spaces))
    bos = metadata.get(_KEY + "bos_token_id") if metadata.get(_KEY + "add_bos_token", kind == "llama") else None
    eos = (metadata.get(f"{_KEY}{name}_token_id") for name in ("eos", "eot"))
    return Tokenizer(
        splitter,
        pieces,
        {piece: i for piece, i in control.items() if piece not in spaces},
        byte_level_bytes if kind == "gpt2" else sentencepiece_bytes,
        bos_id=bos,
        eos_ids=(i for i in eos if i is not None),
    )


def _need(metadata: dict[str, Any], key: str, source: str) -> list[Any]:
    try:
        values: list[Any] = metadata[_KEY + key]
    except KeyError:
        raise CheckpointError(f"{source} lacks the key {_KEY}{key}") from None
    return values


def _byte_level_splitter(metadata: dict[str, Any], plain: dict[str, int], source: str) -> HFTokenizer:
    pre = metadata.get(_KEY + "pre", "default")
    if pre not in PATTERNS:
        raise CheckpointError(f"{source} has the unknown pre-tokenizer {pre!r}; known are {', '.join(PATTERNS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in _need(metadata, "merges", source)]
    splitter = HFTokenizer(BPE(plain, merges, ignore_merges=pre in IGNORE_MERGES))
    splitter.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return splitter


def _sentencepiece_splitter(plain: dict[str, int], scores: list[float]) -> HFTokenizer:
    """SentencePiece's BPE merges the pair whose result scores highest; written out as a list of merges."""
    merges = []
    for piece, i in plain.items():
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        merges += [(-scores[i], plain[a], plain[b], (a, b)) for a, b in cuts if a in plain and b in plain]
    merges.sort()
    splitter = HFTokenizer(BPE(plain, [pair for *_, pair in merges], byte_fallback=True, fuse_unk=True))
    splitter.normalizer = normalizers.Replace(" ", "▁")
    return splitter


def _space_tokens(spaces: Iterable[str]) -> list[AddedToken]:
    """Runs of white space that a vocabulary carries as added tokens, to be found in text.

    All other added tokens are markup, and markup in a user's file is text.
    """
    return [AddedToken(piece, normalized=False, special=False) for piece in spaces]


@contextmanager
def _building(source: str) -> Iterator[None]:
    """Turn what a damaged vocabulary provokes into one line; the tokenizers library raises bare ``Exception``."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001
        first_line = str(error).partition("\n")[0]
        raise CheckpointError(f"{source} has an unusable tokenizer: {type(error).__name__}: {first_line}") from None


def from_folder(folder: Path) -> Tokenizer:
    """Load ``tokenizer.json``. Raises ``CheckpointError``."""
    path = folder / "tokenizer.json"
    data = _read_json(path)
    with _building(str(path)):
        return _from_json(data, folder)


def _from_json(data: dict[str, Any], folder: Path) -> Tokenizer:
    model = data["model"]
    if model.get("type") != "BPE":
        raise CheckpointError(f"{folder / 'tokenizer.json'} is of kind {model.get('type')!r}; BPE is supported")
    added = {token["content"]: int(token["id"]) for token in data.get("added_tokens", [])}
    spaces = {piece: i for piece, i in added.items() if piece.isspace()}
    control = {piece: i for piece, i in added.items() if piece not in spaces}
    vocabulary: dict[str, int] = {**model["vocab"], **spaces}
    pieces = [""] * (max((*vocabulary.values(), *added.values())) + 1)
    for piece, i in {**vocabulary, **added}.items():
        pieces[i] = piece
    is_sentencepiece = bool(model.get("byte_fallback"))
    # markers are no longer found in text, and nothing is normalised or added around it
    model["vocab"] = {piece: i for piece, i in vocabulary.items() if piece not in control}
    model["unk_token"] = None
    data.update(added_tokens=[], normalizer=None, post_processor=None, truncation=None, padding=None)
    splitter = HFTokenizer.from_str(json.dumps(data))
    splitter.add_tokens(_space_tokens(spaces))
    if is_sentencepiece:
        splitter.normalizer = normalizers.Replace(" ", "▁")
        splitter.pre_tokenizer = None
    bos, eos = _special_ids(folder, added)
    piece_bytes = sentencepiece_bytes if is_sentencepiece else byte_level_bytes
    return Tokenizer(splitter, pieces, control, piece_bytes, bos_id=bos, eos_ids=eos)


def _special_ids(folder: Path, added: dict[str, int]) -> tuple[int | None, list[int]]:
    """Begin-of-sequence id (only if the tokenizer adds it) and the end ids, from the optional side files."""
    names = ("tokenizer_config.json", "config.json", "generation_config.json")
    tokenizer, model, generation = (_read_json(folder / name) if (folder / name).exists() else {} for name in names)
    eos = generation.get("eos_token_id", model.get("eos_token_id"))
    eos_ids = [eos] if isinstance(eos, int) else list(eos or [])
    eos_text, bos_text = (_token_text(tokenizer.get(f"{name}_token")) for name in ("eos", "bos"))
    if eos_text in added:
        eos_ids.append(added[eos_text])
    return (added.get(bos_text) if tokenizer.get("add_bos_token") else None), eos_ids


def _token_text(entry: Any) -> str:
    return str(entry.get("content", "")) if isinstance(entry, dict) else str(entry or "")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return data
