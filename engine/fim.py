"""Fill-in-the-middle prompts: formats by model family as data, and their assembly from text. Light.

A prompt is a list of ids: markers are inserted by id, text is encoded as plain text between them. Where a family
was trained with the text before the cursor first (prefix, suffix, middle), what was typed since the anchor goes
*behind* the middle marker: to the model this is the state after it has written that text itself, and typing only
appends.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import CheckpointError, RequestError
from engine.healing import Vocabulary
from engine.request import FileContext
from engine.tokenizer import Tokenizer
from engine.windows import Windows

_PLACEHOLDER = re.compile(r"\{\w+\}")
_BOS_TEXTS = ("<s>", "<bos>", "<｜begin▁of▁sentence｜>")
_MOST_REQUIRED = 48  # bytes: longer than nearly all tokens


def _is_marker(part: str) -> bool:
    return "{" not in part and not part.isspace()


@dataclass(frozen=True)
class FimFamily:
    """One prompt format.

    ``template`` lists markers, white space, and text with the placeholders ``{prefix}`` (up to the anchor),
    ``{typed}`` (from there to the cursor) and ``{suffix}``. ``file_template`` is repeated for each other
    file, between ``file_start`` and ``current_file``.
    """

    name: str
    template: tuple[str, ...]
    has_bos: bool = False
    file_start: tuple[str, ...] = ()
    file_template: tuple[str, ...] = ()
    current_file: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    """Where markers alone do not tell families apart: the architectures this one is for."""
    is_detected: bool = True
    """False: has the same markers as another family and is only taken by name."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The control tokens that a vocabulary must have for this family."""
        return tuple(part for part in self.template if _is_marker(part))

    @property
    def file_markers(self) -> tuple[str, ...]:
        """The control tokens that showing other files needs."""
        parts = (*self.file_start, *self.file_template, *self.current_file)
        return tuple(part for part in parts if _is_marker(part))


LEFT_TO_RIGHT = FimFamily("left-to-right", ("{prefix}", "{typed}"))
"""For models without fill-in-the-middle training: the text after the cursor is not shown."""

# The first family whose markers a vocabulary has is taken. Sources: the models' cards and training code.
FAMILIES: tuple[FimFamily, ...] = (
    FimFamily(
        "qwen",
        ("<|fim_prefix|>", "{prefix}", "<|fim_suffix|>", "{suffix}", "<|fim_middle|>", "{typed}"),
        file_start=("<|repo_name|>", "\n"),
        file_template=("<|file_sep|>", "{path}\n{text}\n"),
        current_file=("<|file_sep|>", "\n"),
    ),
    FimFamily(
        "deepseek",
        ("<｜fim▁begin｜>", "{prefix}", "<｜fim▁hole｜>", "{suffix}", "<｜fim▁end｜>", "{typed}"),
        has_bos=True,
        file_template=("#{path}\n{text}\n",),
    ),
    FimFamily(
        "codellama",
        ("▁<PRE>", "▁<SUF>", "{suffix}", "▁<MID>", " {prefix}", "{typed}"),
        has_bos=True,
    ),
    FimFamily(
        "seed-coder",
        ("<[fim-suffix]>", "{suffix}", "<[fim-prefix]>", "{prefix}", "<[fim-middle]>", "{typed}"),
    ),
    FimFamily(
        "mellum",
        ("<fim_suffix>", "{suffix}", "<fim_prefix>", "{prefix}", "<fim_middle>", "{typed}"),
        file_template=("<filename>", "{path}\n{text}"),
        current_file=("<filename>", "\n"),
        is_detected=False,
    ),
    FimFamily(
        "codeqwen",
        ("<fim_prefix>", "{prefix}", "<fim_suffix>", "{suffix}", "<fim_middle>", "{typed}"),
        architectures=("qwen2",),
    ),
    FimFamily(
        "starcoder",  # and others with its vocabulary
        ("<fim_prefix>", "<fim_suffix>", "{suffix}", "<fim_middle>", "{prefix}", "{typed}"),
    ),
    FimFamily(
        "codestral",
        ("[SUFFIX]", "{suffix}", "[PREFIX]", "{prefix}", "{typed}"),
        has_bos=True,
    ),
    FimFamily(
        "aixcoder",
        ("▁<AIX-SPAN-PRE>", "▁<AIX-SPAN-POST>", "{suffix}\n", "▁<AIX-SPAN-MIDDLE>", "{prefix}", "{typed}"),
        has_bos=True,
    ),
)


def family_named(name: str) -> FimFamily:
    """Look a family up. Raises ``CheckpointError`` that lists the known ones."""
    for family in (*FAMILIES, LEFT_TO_RIGHT):
        if family.name == name:
            return family
    known = ", ".join(family.name for family in (*FAMILIES, LEFT_TO_RIGHT))
    raise CheckpointError(f"{name!r} is not a known prompt format; known are {known}")


def detect_family(tokenizer: Tokenizer, architecture: str, model: str) -> FimFamily:
    """The family whose markers the vocabulary has. Raises ``CheckpointError`` when there is none."""
    for family in FAMILIES:
        is_possible = family.is_detected and architecture in (family.architectures or (architecture,))
        if is_possible and all(tokenizer.control_id(marker) is not None for marker in family.markers):
            return family
    raise CheckpointError(
        f"{model} has no fill-in-the-middle tokens; choose a model trained for it,"
        f" or set engine.fim_family to {LEFT_TO_RIGHT.name!r} to use it without the text after the cursor"
    )


@dataclass(frozen=True)
class Prompt:
    """What is fed to the model, and what its answer must begin with."""

    ids: list[int]
    required: bytes = b""
    """Bytes on the screen before the cursor that were not fed; never part of the answer."""


class PromptBuilder:
    """Builds prompts of one family for one vocabulary.

    Raises ``CheckpointError`` when the vocabulary lacks a marker of the family.
    """

    def __init__(self, family: FimFamily, vocabulary: Vocabulary, max_tokens: int) -> None:
        tokenizer = vocabulary.tokenizer
        missing = [marker for marker in family.markers if tokenizer.control_id(marker) is None]
        if missing:
            raise CheckpointError(f"prompt format {family.name!r} needs the tokens {', '.join(missing)}")
        self.family = family
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self.windows = Windows(tokenizer)
        """Remembers what the latest texts are in tokens."""
        self._max_tokens = max_tokens
        self._shows_files = bool(family.file_template) and all(
            tokenizer.control_id(marker) is not None for marker in family.file_markers
        )

    def infill(
        self,
        prefix: str,
        suffix: str,
        extra: Iterable[FileContext],
        max_new_tokens: int,
        *,
        anchor: int | None = None,
        heal: bool = True,
    ) -> Prompt:
        """A prompt for the text between ``prefix`` and ``suffix``, cut at line borders to fit the context.

        ``anchor`` is the number of characters of ``prefix`` before the typed segment; None is the start of the
        cursor's line. With the same anchor and suffix the prompt of a longer typed segment begins like that of the
        shorter one, but for the last few tokens. ``heal`` is that of ``CompletionRequest``; nothing is healed across
        the anchor.

        The typed segment may take half of the room, the suffix a third, the text before the anchor the rest; other
        files get what remains after that. The typed segment, too, is cut at the start of one of its lines when it
        does not fit. Room is given to it in steps of an eighth, and texts are cut in large steps, so that from one
        keystroke to the next nothing is cut differently unless it must. Raises ``RequestError`` when there is no
        room, or nothing to continue.
        """
        if not self.family.markers:
            return self.continuation(prefix, max_new_tokens, heal=heal)
        split = prefix.rfind("\n") + 1 if anchor is None else anchor
        budget, most_required = self._budget(max_new_tokens)
        typed, required = self._split(prefix[split:], most_required if heal else 0)
        windows, step = self.windows, max(1, budget // 8)
        texts = {"{typed}": windows.tail(typed, budget // 2), "{suffix}": windows.head(suffix, budget // 3)}
        budget -= (windows.count(texts["{typed}"]) // step + 1) * step
        budget -= windows.count(texts["{suffix}"])
        texts["{prefix}"] = windows.tail(prefix[:split], budget)
        budget -= windows.count(texts["{prefix}"])
        ids = self._bos() + self._files(extra, budget) + self._render(self.family.template, texts)
        return Prompt(ids, required)

    def continuation(self, text: str, max_new_tokens: int, *, heal: bool = True) -> Prompt:
        """A prompt that continues ``text`` left to right, without any marker.

        Raises ``RequestError`` when there is no room, or nothing to continue.
        """
        budget, most_required = self._budget(max_new_tokens)
        fed, required = self._split(text, most_required if heal else 0)
        bos = self._bos()
        if not fed and not bos:
            fed, required = text, b""  # a model must be fed something
        ids = bos + list(self.windows.encode(self.windows.tail(fed, budget)))
        if not ids:
            raise RequestError("the prompt is empty; there is nothing to continue")
        return Prompt(ids, required)

    def _split(self, text: str, most_required: int) -> tuple[str, bytes]:
        """What is fed of the text before the cursor, and what the answer must begin with."""
        return self._vocabulary.split_unstable(text, most_required) if most_required else (text, b"")

    def _budget(self, max_new_tokens: int) -> tuple[int, int]:
        """Tokens left for text beside markers and answer; and most bytes that may be required, for which as many
        tokens are kept.

        Neither depends on the text, so that typing changes no cut. Raises ``RequestError`` when there is no room.
        """
        room = self._max_tokens - max_new_tokens
        most_required = max(1, min(_MOST_REQUIRED, room // 4))
        budget = room - most_required - len(self.family.template) - 2
        if budget < 1:
            raise RequestError(
                f"max_tokens is {max_new_tokens}; the context of {self._max_tokens} tokens leaves no room for a prompt"
            )
        return budget, most_required

    def _bos(self) -> list[int]:
        bos = self._tokenizer.bos_id
        if bos is None and self.family.has_bos:
            bos = next((i for i in map(self._tokenizer.control_id, _BOS_TEXTS) if i is not None), None)
        return [] if bos is None else [bos]

    def _files(self, extra: Iterable[FileContext], budget: int) -> list[int]:
        """Other files in the family's own format, as many as fit; none where the family has no format."""
        if not self._shows_files:
            return []
        start, current = self._render(self.family.file_start, {}), self._render(self.family.current_file, {})
        ids: list[int] = []
        for file in extra:
            rendered = self._render(self.family.file_template, {"{path}": file.path, "{text}": file.text})
            if len(start) + len(ids) + len(rendered) + len(current) > budget:
                break
            ids += rendered
        return start + ids + current if ids else []

    def _render(self, template: tuple[str, ...], texts: dict[str, str]) -> list[int]:
        ids: list[int] = []
        for part in template:
            if _is_marker(part):
                ids.append(self._tokenizer.control_ids[part])
            else:
                ids += self.windows.encode(_PLACEHOLDER.sub(lambda match: texts[match.group()], part))
        return ids
