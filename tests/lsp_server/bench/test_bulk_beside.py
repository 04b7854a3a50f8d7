"""``midline bulk`` beside somebody: it goes on until nobody types any more."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from engine.errors import ServiceError
from lsp_server.bench.bulk_beside import bulk_beside
from lsp_server.bench.bulk_workspace import make_workspace
from tests.lsp_server.bench.test_bulk_workspace import _cart
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

_DEADLINE_S = 120.0


async def test_it_begins_again_and_ends_with_the_context(tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1), seed=2))
    root = tmp_path / "workspace"
    num_answers = 2 * len(make_workspace(root, [_cart()], 2, seed=1))  # no fill of such a model is any good
    of_others = set(psutil.Process().children(recursive=True))  # such as multiprocessing's tracker
    deadline_s = time.monotonic() + _DEADLINE_S
    async with bulk_beside(root, model, 0) as beside:
        while beside.num_answers <= num_answers:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)
        processes = set(psutil.Process().children(recursive=True)) - of_others
        assert processes
        assert beside.num_tokens > beside.num_answers and beside.seconds > 0
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


async def test_what_it_cannot_do_is_told(tmp_path: Path) -> None:
    make_workspace(tmp_path, [_cart()], 2, seed=1)
    with pytest.raises(ServiceError, match="midline bulk has ended: unknown model 'nix'"):
        async with bulk_beside(tmp_path, "nix", 0):
            raise AssertionError("it has begun")
