"""Stands in for ``llama-server`` where it is not installed: takes its options and answers at once, or as badly as told.

What it does follows ``STAND_IN``: ``answers``, ``dies`` at once, ``hangs`` before it is ready, ``stubborn`` ignores
SIGTERM, and behind a question ``falls`` over, ``refuses``, ``babbles``, ``differs``, is ``short`` of tokens or
``sleeps``.
It leaves its process id and the questions that it was asked beside the program.
"""

import json
import os
import signal
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HELP = "--spec-type none,ngram-simple --spec-ngram-simple-size-n N --spec-ngram-simple-size-m N"


def write_stand_in(folder: Path) -> Path:
    """The program ``llama-server`` in ``folder``."""
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$0" "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def pid_of(program: Path) -> int:
    """Of the process that was started last."""
    return int(program.with_suffix(".pid").read_text(encoding="utf-8"))


def questions_of(program: Path) -> list[dict[str, Any]]:
    """The questions of all processes, each with its path and the options of its process."""
    lines = program.with_suffix(".log").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


_falling = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    program: Path
    options: list[str]
    behaviour: str

    def do_GET(self) -> None:
        self._send(200, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = {"path": self.path, "options": self.options, **body}
        with self.program.with_suffix(".log").open("a", encoding="utf-8") as log:
            log.write(json.dumps(question) + "\n")
        if self.behaviour == "falls":
            _falling.acquire()  # of several questions one is the last
            sys.stdout.write("out of memory\n")
            sys.stdout.flush()
            os._exit(7)
        if self.behaviour == "refuses":
            self._send(501, b'{"error": {"code": 501, "message": "not supported"}}')
        elif self.behaviour == "babbles":
            self._send(200, b"<html>")
        else:
            time.sleep(60 if self.behaviour == "sleeps" else 0)
            if self.behaviour == "differs":
                self._send(200, b'{"tokens": [5]}')
                return
            count = body["n_predict"] - (self.behaviour == "short")
            timings = {"prompt_n": 3, "prompt_ms": 2.0, "predicted_ms": 1.0, "draft_n": 2, "draft_n_accepted": 1}
            self._send(200, json.dumps({"tokens": [5] * max(0, count), "timings": timings}).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    program, *options = sys.argv[1:]
    behaviour = os.environ.get("STAND_IN", "answers")
    if options[0] in ("--help", "--version"):
        sys.stdout.write(HELP if options[0] == "--help" else "version: stand-in\n")
        return
    _Handler.program, _Handler.options, _Handler.behaviour = Path(program), options, behaviour
    Path(program).with_suffix(".pid").write_text(str(os.getpid()), encoding="utf-8")
    sys.stdout.write(f"settings: {sorted(name for name in os.environ if name.startswith(('LLAMA_', 'GOMP_')))}\n")
    if behaviour == "dies":
        sys.stdout.write("loading\n\nerror: no such model\n")
        sys.exit(1)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    if behaviour == "hangs":
        time.sleep(60)
    port = int(options[options.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
