"""Where the text that the model sees is divided, so that typing only appends to its prompt. Pure.

The prompt is: text up to the anchor, text after the cursor, text typed since the anchor. The anchor is the start of a
line, and stays there while the user goes on typing, also over line ends; so does what stands after the cursor, less
the brackets that an editor puts there by itself.
"""

from dataclasses import dataclass

from engine.request import CompletionRequest, SamplingParams
from lsp_server.completion.ablation import is_off
from lsp_server.completion.decide import has_closers_only
from lsp_server.completion.request import Situation
from lsp_server.config import ContextConfig
from lsp_server.context.window import window_after, window_before

_BEYOND_CHARS = 6000
_MAX_TYPED_CHARS = 2000
"""More text since the anchor moves it: the model has seen the suffix too long ago."""


@dataclass(frozen=True)
class Anchor:
    """A division of a document, and the windows that were chosen then."""

    before: str
    """The whole text before the anchor."""
    after: str
    """The whole text after the cursor, without what the editor has closed."""
    window_before: str
    window_after: str

    def request(self, prefix: str, sampling: SamplingParams) -> CompletionRequest:
        """That for a cursor behind ``prefix``, which continues from here: the windows are those of the anchor."""
        return CompletionRequest(
            prefix=self.window_before + prefix[len(self.before) :],
            suffix=self.window_after,
            sampling=sampling,
            anchor=len(self.window_before),
        )

    @property
    def beyond(self) -> tuple[str, ...]:
        """The nearest text that the windows do not show, and that may be repeated all the same."""
        end = len(self.before) - len(self.window_before)
        texts = (self.after[len(self.window_after) :][:_BEYOND_CHARS], self.before[:end][-_BEYOND_CHARS:])
        return tuple(text for text in texts if text)


def anchored(former: Anchor | None, situation: Situation, context: ContextConfig) -> Anchor:
    """The former anchor if the cursor still continues from it, else a new one at the start of the cursor's line."""
    if former is not None and _continues(former, situation) and not is_off("anchor"):
        return former
    num_typed = 0 if is_off("anchor") else len(situation.line_prefix)
    before = situation.prefix[: len(situation.prefix) - num_typed]
    after = text_after(situation)
    return Anchor(
        before, after, window_before(before, context.max_prefix_chars), window_after(after, context.max_suffix_chars)
    )


def text_after(situation: Situation) -> str:
    """What follows the hole: brackets that the editor closed on the cursor's line are not part of it."""
    line_suffix = situation.line_suffix
    return situation.suffix[len(line_suffix) :] if has_closers_only(line_suffix) else situation.suffix


def _continues(anchor: Anchor, situation: Situation) -> bool:
    num_typed = len(situation.prefix) - len(anchor.before)
    if not 0 <= num_typed <= _MAX_TYPED_CHARS or not situation.prefix.startswith(anchor.before):
        return False
    after = text_after(situation)
    # after Enter between two brackets the closing one stands on a line of its own
    closed = after[: len(after) - len(anchor.after)]
    return after.endswith(anchor.after) and has_closers_only(closed)
