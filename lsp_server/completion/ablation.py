"""What a benchmark has switched off to see what it is worth: names in ``MIDLINE_ABLATE``, between commas, read once.

It knows the names, not what they stand for in the code; whoever does the work asks ``is_off``.
"""

import functools
import os

VARIABLE = "MIDLINE_ABLATE"

ABLATIONS = {
    "cache": "nothing of an earlier prompt is kept",
    "anchor": "what was typed stands before the suffix, as usual",
    "heal": "a half-typed word is taken as it is",
    "typethrough": "text that is typed as suggested is asked for again",
    "spec": "nothing is drafted",
    "cancel": "what nobody wants any more is generated to its end",
}
"""Name -> how it is without."""


def is_off(name: str) -> bool:
    """Whether one of ``ABLATIONS`` is switched off; any other name is a ``KeyError``."""
    ABLATIONS[name]
    return name in _switched_off()


@functools.cache
def _switched_off() -> frozenset[str]:
    return frozenset(name.strip() for name in os.environ.get(VARIABLE, "").split(","))
