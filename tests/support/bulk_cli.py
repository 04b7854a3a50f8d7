"""``midline`` with the scripted engine in place of the real one: ``python -m tests.support.bulk_cli MODE bulk …``.

``MIDLINE_TEST_DIE_AT_WRITE=N`` kills it in place of the N-th time that it would replace a file of the user's.
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from lsp_server.bulk import apply, worker


def main() -> None:
    """As the ``midline`` script."""
    worker.COMMAND = (sys.executable, "-m", "tests.support.bulk_script", sys.argv.pop(1))
    if limit := int(os.environ.get("MIDLINE_TEST_DIE_AT_WRITE", "0")):
        apply.replace_file = _dying(apply.replace_file, limit)
    from lsp_server.cli import main as midline  # takes the command of the worker as it is now

    midline()


def _dying(replace_file: Callable[..., None], limit: int) -> Callable[..., None]:
    calls = count(1)

    def replace(path: Path, *arguments: object) -> None:
        if "backups" not in path.parts and next(calls) == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        replace_file(path, *arguments)

    return replace


if __name__ == "__main__":
    main()
