"""What the filters know of the place that a text goes to."""

from dataclasses import dataclass

from lsp_server.completion.decide import Shape
from lsp_server.completion.request import Situation


@dataclass(frozen=True)
class Hole:
    """The cursor's surroundings and the form the text may have."""

    situation: Situation
    shape: Shape
