"""From a hole to a request for the engine, and the key that names its answer. Pure."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from engine import __version__
from engine.checkpoint.store import ResolvedModel
from engine.config import EngineConfig
from engine.literals import FAMILIES
from engine.request import CompletionRequest, FileContext, Lane, SamplingParams
from lsp_server.bulk.grammars import LANGUAGES
from lsp_server.bulk.holes import Hole
from lsp_server.context.window import window_after, window_before

_RETRY_TEMPERATURE = 0.6
_RETRY_MIN_P = 0.05


@dataclass(frozen=True)
class RequestOptions:
    """How much of the file the model sees, and the seed of second attempts. Nobody waits: it may see more."""

    max_prefix_chars: int = 8000
    max_suffix_chars: int = 2000
    seed: int = 0


def request_for(hole: Hole, options: RequestOptions, extra: tuple[FileContext, ...] = ()) -> CompletionRequest:
    """The first attempt: greedy. What stands before the cursor on its line is the anchored, healed part.

    ``extra`` is shown before the file; the same for all holes of a file, so that it is computed once.
    """
    return CompletionRequest(
        prefix=window_before(hole.prefix, options.max_prefix_chars),
        suffix=window_after(hole.suffix, options.max_suffix_chars),
        sampling=_sampling(hole),
        extra=extra,
        lane=Lane.BULK,
    )


def second_attempt(request: CompletionRequest, seed: int, first_text: str) -> CompletionRequest:
    """The same, sampled: equal requests alike, others not, on every machine.

    What the first attempt wrote is what this one is likely to write too, up to some point and again after it.
    """
    drawn = int.from_bytes(hashlib.sha256(f"{seed} {key_of('', request)}".encode()).digest()[:4], "big")
    sampling = replace(request.sampling, temperature=_RETRY_TEMPERATURE, min_p=_RETRY_MIN_P, seed=drawn)
    return replace(request, sampling=sampling, draft=first_text, corpus=(first_text,))


def key_of(model_identity: str, request: CompletionRequest) -> str:
    """A SHA-256 in hexadecimal digits over everything that the answer follows from: not what only makes it faster."""
    followed = asdict(replace(request, draft="", corpus=()))
    asked = json.dumps([__version__, model_identity, followed], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()


def model_identity(model: ResolvedModel, config: EngineConfig) -> str:
    """The model's files by name, size and time of change, and the settings that an answer may depend on."""
    path = model.path
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    stats = [(file.name, stat.st_size, stat.st_mtime_ns) for file in files for stat in (file.stat(),)]
    settings = asdict(replace(config, model="", draft_model="", num_threads=0, niceness=0, kv_cache_mb=0))
    return json.dumps([stats, settings], sort_keys=True)


def placed(hole: Hole, others: Iterable[tuple[Hole, str]]) -> Hole:
    """The hole in its file's text after other holes of that file have been replaced, each by the text beside it."""
    text, pieces, end, moved = hole.source.text, [], 0, 0
    for other, replacement in sorted(others, key=lambda pair: pair[0].start):
        pieces += [text[end : other.start], replacement]
        end = other.end
        if other.end <= hole.start:
            moved += len(replacement) - (other.end - other.start)
    source = replace(hole.source, text="".join([*pieces, text[end:]]))
    return replace(hole, source=source, start=hole.start + moved, end=hole.end + moved)


def shown(hole: Hole, others: Sequence[tuple[Hole, str]]) -> Hole:
    """The hole in the text that the model is to see.

    ``others`` are those of the same file from top to bottom, each with what fills it, or nothing. What is not written
    yet would be imitated, and so would a comment in its place (in 42 of 131 answers of the 0.5B model): before the hole
    it is nothing, and behind the hole the text ends before it.
    """
    text = hole.source.text
    unwritten = (other.start for other, fill in others if not fill and _is_whole_block(other))
    if (start := next((start for start in unwritten if start >= hole.end), None)) is not None:
        end = text.rfind("\n\n", hole.end, start) + 1 or text.rfind("\n", hole.end, start) + 1 or hole.end
        hole = replace(hole, source=replace(hole.source, text=text[:end]))
        others = [(other, fill) for other, fill in others if other.end <= end]
    return placed(hole, others)


def _is_whole_block(hole: Hole) -> bool:
    """Whether it takes the place of a body, not of a part of a line, and not of nothing."""
    return hole.is_block and hole.start < hole.end


def _sampling(hole: Hole) -> SamplingParams:
    stop = hole.stop if hole.is_block else ("\n", *hole.stop)
    sampling = SamplingParams(max_tokens=hole.max_tokens, stop=stop, stop_repetition=True)
    if not hole.is_block:
        return sampling
    sampling = replace(sampling, min_indent=hole.min_indent)
    language = LANGUAGES.get(hole.source.language)
    if language is None or hole.stop:  # what has a stop is a comment
        return sampling
    is_code = bool(language.literals) and FAMILIES[language.literals].after(hole.prefix) is None
    literals = language.literals if is_code else ""
    return replace(sampling, outdented=language.directive, has_labels=language.has_labels, literals=literals)
