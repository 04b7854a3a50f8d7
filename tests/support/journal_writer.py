"""Adds records to a journal as fast as it can, and says each time how many there are, until it is killed.

Run as ``python -m tests.support.journal_writer JOURNAL``.
"""

import sys
from pathlib import Path

from lsp_server.bulk.journal import Journal, Record


def record(number: int) -> Record:
    """Every tenth is so long that its writing may be interrupted."""
    return Record(f"key{number}", f"{number} " * (100_000 if number % 10 == 9 else 1 + number % 3))


def main(path: Path) -> None:
    """Never ends by itself."""
    with Journal.open(path) as journal:
        while True:
            sys.stdout.write(f"{len(journal)}\n")
            sys.stdout.flush()
            journal.add(record(len(journal)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
