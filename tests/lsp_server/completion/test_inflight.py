import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.completion.inflight import InFlight
from lsp_server.completion.request import EmptyReason, Suggestion


class Work:
    """A completion that ends when the test says so, and knows whether it was cancelled."""

    def __init__(self, text: str = "text") -> None:
        self.text = text
        self.may_finish = asyncio.Event()
        self.was_cancelled = False

    async def run(self) -> Suggestion:
        try:
            await self.may_finish.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return Suggestion(self.text)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_outcome_is_returned() -> None:
    inflight, work = InFlight(), Work()
    task = asyncio.create_task(inflight.run("a", work.run()))
    await settle()
    work.may_finish.set()
    assert (await task).text == "text"


async def test_newer_request_ends_the_older_at_once_and_cancels_its_work() -> None:
    inflight, old, new = InFlight(), Work("old"), Work("new")
    first = asyncio.create_task(inflight.run("a", old.run()))
    await settle()
    second = asyncio.create_task(inflight.run("a", new.run()))
    assert (await first).reason is EmptyReason.SUPERSEDED
    await settle()
    assert old.was_cancelled
    new.may_finish.set()
    assert (await second).text == "new"


async def test_documents_do_not_disturb_each_other() -> None:
    inflight, one, two = InFlight(), Work("one"), Work("two")
    tasks = [asyncio.create_task(inflight.run(key, work.run())) for key, work in (("a", one), ("b", two))]
    await settle()
    inflight.end("a", EmptyReason.DOCUMENT_CLOSED)
    two.may_finish.set()
    first, second = await asyncio.gather(*tasks)
    assert (first.reason, second.text) == (EmptyReason.DOCUMENT_CLOSED, "two")


async def test_end_wins_over_an_outcome_that_is_on_its_way() -> None:
    inflight, work = InFlight(), Work()
    task = asyncio.create_task(inflight.run("a", work.run()))
    await settle()
    work.may_finish.set()
    await asyncio.sleep(0)  # the work is done, its caller has not run yet
    inflight.end("a", EmptyReason.DOCUMENT_CHANGED)
    assert (await task).reason is EmptyReason.DOCUMENT_CHANGED


async def test_cancelling_the_caller_cancels_the_work() -> None:
    inflight, work = InFlight(), Work()
    task = asyncio.create_task(inflight.run("a", work.run()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert work.was_cancelled
    inflight.end("a", EmptyReason.SUPERSEDED)  # nothing is left to end


async def test_answer_does_not_wait_for_work_that_is_slow_to_let_go() -> None:
    inflight, released = InFlight(), asyncio.Event()

    async def stubborn() -> Suggestion:
        try:
            await asyncio.Event().wait()
        finally:
            await released.wait()
        return Suggestion("")

    task = asyncio.create_task(inflight.run("a", stubborn()))
    await settle()
    inflight.end("a", EmptyReason.SUPERSEDED)
    assert (await asyncio.wait_for(task, 5)).reason is EmptyReason.SUPERSEDED
    released.set()
    await inflight.aclose()


async def test_error_reaches_the_caller() -> None:
    async def fail() -> Suggestion:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await InFlight().run("a", fail())


async def test_close_ends_everything_and_waits() -> None:
    inflight, work = InFlight(), Work()
    task = asyncio.create_task(inflight.run("a", work.run()))
    await settle()
    await inflight.aclose()
    assert work.was_cancelled
    assert (await task).reason is EmptyReason.CANCELLED


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "finish", "end", "cancel", "turn"]), st.integers(0, 9), st.sampled_from("ab")),
    max_size=40,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(STEPS)
def test_every_request_has_one_outcome_and_no_work_is_left(steps: list[tuple[str, int, str]]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, int, str]]) -> None:
    inflight = InFlight()
    works: list[Work] = []
    tasks: list[asyncio.Task[Suggestion]] = []
    newest: dict[str, int] = {}
    for action, number, key in steps:
        if action == "start":
            newest[key] = len(works)
            works.append(Work(str(len(works))))
            tasks.append(asyncio.create_task(inflight.run(key, works[-1].run())))
        elif action == "finish" and number < len(works):
            works[number].may_finish.set()
        elif action == "cancel" and number < len(tasks):
            tasks[number].cancel()
        elif action == "end":
            inflight.end(key, EmptyReason.DOCUMENT_CHANGED)
        await asyncio.sleep(0)
    for work in works:
        work.may_finish.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    await inflight.aclose()
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Suggestion):
            assert (outcome.text == str(number)) is (outcome.reason is None)
        else:
            assert isinstance(outcome, asyncio.CancelledError)
    assert len(asyncio.all_tasks()) == 1
