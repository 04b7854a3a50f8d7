"""One parallel region at a time. Imports torch."""

import contextlib
import os

import torch


def use_threads(num_threads: int) -> None:
    """Compute with so many threads, and let nothing else start threads of its own that would get in their way."""
    torch.set_num_threads(num_threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if torch.get_num_interop_threads() != 1:
        with contextlib.suppress(RuntimeError):  # it can be set but once, and before anything has used them
            torch.set_num_interop_threads(1)
