"""What the demo types and where: an example file in which ``▸`` ends what a person types on a line.

Before a scene its line is emptied, down to the indentation, as if it had not been written yet; what stands behind
the mark is only there while the other scenes are played.
"""

from dataclasses import dataclass
from importlib.resources import files

EXAMPLE_NAME = "cart.py"
_MARK = "▸"


@dataclass(frozen=True)
class Scene:
    """One line: its indentation, and what a person types behind it, one key after the other."""

    line: int
    """0-based line in the example as it is before anything is typed."""
    indentation: str
    typed: str


def load_script() -> tuple[list[str], list[Scene]]:
    """The example's complete lines, and the scenes from top to bottom."""
    lines, scenes = [], []
    for number, line in enumerate(files("lsp_server.demo").joinpath("cart.txt").read_text("utf-8").splitlines()):
        before, mark, rest = line.partition(_MARK)
        lines.append(before + rest)
        if mark:
            typed = before.lstrip()
            scenes.append(Scene(number, before[: len(before) - len(typed)], typed))
    return lines, scenes
