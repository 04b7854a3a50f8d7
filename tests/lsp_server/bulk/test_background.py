"""Work in a loop of its own: its outcome comes home, it ends when it is cancelled, and the home loop goes on."""

import asyncio
import threading
import time

import pytest

from lsp_server.bulk.background import Background


async def test_the_outcome_comes_home() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert await Background(work()).ended == "bulk"


async def test_an_error_is_handed_on() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Background(work()).ended


async def test_the_home_loop_goes_on_while_it_blocks() -> None:
    release = threading.Event()

    async def work() -> bool:
        return release.wait(60)

    background = Background(work())
    await asyncio.sleep(0.01)  # would never be over in the same loop
    assert not background.ended.done()
    release.set()
    assert await background.ended is True


async def test_cancelling_again_does_not_disturb_the_clean_up() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("up")

    background = Background(work())
    await asyncio.sleep(0.02)
    began_s = time.monotonic()
    for _ in range(3):
        background.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([background.ended])
    assert background.ended.cancelled()
    assert cleaned == ["up"]
    assert time.monotonic() - began_s < 30
    background.cancel()


async def test_what_is_cancelled_at_once_never_begins_or_ends() -> None:
    async def work() -> None:
        await asyncio.sleep(60)

    background = Background(work())
    background.cancel()
    await asyncio.wait([background.ended], timeout=30)
    assert background.ended.cancelled()
