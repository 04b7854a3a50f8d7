"""The process that computes in bulk: ``python -m engine.bulk``, spoken to in the words of ``engine.bulk.wire``.

Imports torch only when it is told what to load. It ends when its input has ended and all is done, or when nobody
reads what it says. Ctrl-C in a terminal reaches it too: it leaves that to the process that has started it.
"""

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

from engine.bulk.wire import Failure, Item, Ready, Said, Start, decode, encode
from engine.config import MAX_NICENESS
from engine.errors import MidlineError, ServiceError
from engine.machine.priority import give_way

Say = Callable[[Said], None]
_NUM_MEASURES = 3


def main() -> int:
    """Complete what comes; returns the exit code."""
    faulthandler.enable()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say = _say_on(_own_stdout())
    inbox: queue.SimpleQueue[Item | Exception | None] = queue.SimpleQueue()
    try:
        first = sys.stdin.buffer.readline()
        if not first:
            return 0
        start = decode(first)
        if not isinstance(start, Start):
            raise ServiceError("the bulk engine was not told how to compute")
        give_way(start.engine.niceness or MAX_NICENESS)  # nobody waits
        threading.Thread(target=_read, args=(sys.stdin.buffer, inbox), daemon=True).start()
        _run(start, inbox, say)
    except MidlineError as error:
        say(Failure(str(error)))
        return 1
    return 0


def _own_stdout() -> int:
    """A descriptor for what is said; whatever else is printed from now on goes to the log."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def _say_on(descriptor: int) -> Say:
    def say(message: Said) -> None:
        line = memoryview(encode(message))
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError:
            os._exit(1)  # nobody is there to be told, and torch cannot be interrupted

    return say


def _read(lines: BinaryIO, inbox: "queue.SimpleQueue[Item | Exception | None]") -> None:
    """Put all that comes into the inbox."""
    try:
        for line in lines:
            item = decode(line)
            if not isinstance(item, Item):
                raise ServiceError(f"the bulk engine was sent {type(item).__name__} instead of an item")
            inbox.put(item)
        inbox.put(None)
    except MidlineError as error:
        inbox.put(error)


def _run(start: Start, inbox: "queue.SimpleQueue[Item | Exception | None]", say: Say) -> None:
    # see engine.service.__main__: idle threads that spin for long take the processors from whoever types meanwhile
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from engine.bench.roofline import measure_product
    from engine.bulk.runner import Runner
    from engine.bulk.tuning import tuned
    from engine.engine import Engine

    engine = Engine.load(replace(start.engine, profile="batch"))
    engine, limits = tuned(engine, start.max_batch)
    info = engine.info
    say(
        Ready(
            model=info.model,
            precision=info.dtype,
            fim_family=info.fim_family,
            context_tokens=info.context_tokens,
            memory_bytes=info.memory_bytes,
            max_batch=limits.max_sequences,
            load_s=info.load_s,
        )
    )
    runner = Runner(engine, limits, inbox, say, is_sorted=start.is_sorted)
    runner.run()
    # more than once: whatever else runs at that moment makes it less
    product_tops = max(measure_product()[1] for _ in range(_NUM_MEASURES)) if info.device == "cpu" else None
    say(runner.counts.summary(product_tops and product_tops * 1e12))


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    # while a thread waits for more to be told, the interpreter cannot end by itself
    os._exit(exit_code)
