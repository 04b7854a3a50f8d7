"""How numbers of things are said."""


def counted(number: int, nouns: str) -> str:
    """``1 hole``, ``2 holes``; ``nouns`` is a plural that only has an ``s`` more, as the names of kinds are."""
    return f"{number} {nouns.removesuffix('s') if number == 1 else nouns}"
