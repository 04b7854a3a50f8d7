"""One fact that ``midline doctor`` tells."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One fact, and what is wrong with it if anything is."""

    section: str
    name: str
    value: str
    problem: str = ""
    data: Any = None
    """The same for programs, where one line of text would have to be taken apart."""
