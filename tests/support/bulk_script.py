"""A bulk engine in the test's hands: a process that speaks the wire and makes up its answers without a model.

Run as ``python -m tests.support.bulk_script MODE``. An answer follows from its request alone, whatever the order: an
expression for one line, ``return`` with one for a block. Of greedy attempts, one in four is no good.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from queue import Queue

from engine.bulk.wire import Failure, Item, Progress, Ready, Result, Said, Start, Summary, decode, encode
from engine.request import CompletionRequest, Usage

BAD = ")("
_NUM_AT_ONCE = 4


def answer(request: CompletionRequest) -> str:
    """What is said to a request."""
    sampling = request.sampling
    asked = f"{request.prefix}\0{request.suffix}\0{sampling.seed}"
    digest = hashlib.sha256(asked.encode()).hexdigest()
    if sampling.temperature == 0 and digest[0] in "0123":
        return BAD
    return f"value_{digest[:8]}"


def progress(num_done: int, num_waiting: int = 0) -> Progress:
    """Counts as an engine would give them."""
    return Progress(num_done * 0.1, num_done, 2, num_waiting, 40 * num_done, 10 * num_done, 5 * num_done, 0.02, 0.5)


def main(mode: str) -> None:
    """Answer until the input ends; ``mode`` names what goes wrong, and when."""
    name, _, number = mode.partition(":")
    limit = int(number or 0)
    start = decode(sys.stdin.buffer.readline())
    assert isinstance(start, Start)
    if name == "cannot":
        return say(Failure("model tiny is damaged; run: midline models pull tiny"))
    if name == "silent":
        time.sleep(600)
    say(Ready(start.engine.model, "exact", "qwen", 2048, 1 << 20, start.max_batch or _NUM_AT_ONCE, 0.1))
    items: Queue[Item | None] = Queue()
    threading.Thread(target=read, args=(items,), daemon=True).start()
    num_done = 0
    for batch in batches(items):
        for done in reversed(batch):  # never in the order of arrival
            if name in ("die", "exit") and num_done == limit:
                die(name)
            if name == "slow":
                time.sleep(limit / 1000)
            error = "max_tokens is 9000; there is no room" if name == "refuse" and num_done == limit else ""
            text = "" if error else answer(done.request)
            say(Result(done.id, text, "length" if name == "length" else "stop", Usage(50, 10, 5), -0.5, error))
            num_done += 1
            say(progress(num_done, items.qsize()))
    say(Summary(progress(num_done), 0.6, 4, 0.5, 50, 1e9, 2e9))


def batches(items: "Queue[Item | None]") -> Iterator[list[Item]]:
    """All items, a few at a time."""
    batch: list[Item] = []
    while (item := items.get()) is not None:
        batch.append(item)
        if len(batch) == _NUM_AT_ONCE or items.empty():
            yield batch
            batch = []
    if batch:
        yield batch


def read(items: "Queue[Item | None]") -> None:
    """Pass the input on; after its end, None."""
    for line in sys.stdin.buffer:
        items.put(decode(line))
    items.put(None)


def die(name: str) -> None:
    """End without a last word."""
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stderr.write("Traceback (most recent call last):\n  File x\nMemoryError: no room for 8 tensors\n")
    sys.stderr.flush()
    os._exit(3)


def say(message: Said) -> None:
    """One line."""
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
