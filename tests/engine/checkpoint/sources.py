"""Small real sources for the model store: wheels that pip can fetch, and a loopback server that speaks like the hub."""

import hashlib
import json
import random
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from engine.checkpoint.catalogue import CatalogueEntry, HubSource, WheelSource
from engine.checkpoint.download import ExpectedFile
from engine.machine.predict import ModelSize

REVISION = "0123456789abcdef0123456789abcdef01234567"
CONTENT = random.Random(0).randbytes(300_000)
SOURCE = WheelSource("midline-test-part{part}", 3, "1.0", "*/data/part{part:02}.bin")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


EXPECTED = ExpectedFile(len(CONTENT), "sha256", sha256(CONTENT))


def entry(name: str = "tiny", content: bytes = CONTENT, hub: HubSource | None = None) -> CatalogueEntry:
    return CatalogueEntry(
        name=name,
        family="tiny",
        num_parameters=1,
        size_bytes=len(content),
        size=ModelSize(1, 1, 1, 1),
        licence="Apache-2.0",
        context_tokens=8,
        fim_family="left-to-right",
        is_experimental=True,
        sha256=sha256(content),
        hub=hub,
        wheels=SOURCE,
    )


class RecordingProgress:
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.updates: list[tuple[int, int]] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def update(self, done_bytes: int, total_bytes: int) -> None:
        self.updates.append((done_bytes, total_bytes))

    def note(self, text: str) -> None:
        self.notes.append(text)


def write_wheel(folder: Path, part: int, members: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    package = f"midline_test_part{part}"
    info = f"{package}-1.0.dist-info"
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: midline-test-part{part}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def write_wheels(folder: Path, content: bytes = CONTENT, num_parts: int = 3) -> None:
    """``content`` in wheels, in uneven parts as the real ones are, each with a module that must never run."""
    size = -(-len(content) // num_parts)
    for part in range(1, num_parts + 1):
        package = f"midline_test_part{part}"
        members = {
            f"{package}/__init__.py": b"raise SystemExit('executed')",
            f"{package}/data/part{part:02}.bin": content[(part - 1) * size : part * size],
        }
        write_wheel(folder, part, members)


@dataclass
class FileServer:
    """Answers what the hub answers for one repository, and serves a folder of wheels with a links page."""

    files: dict[str, bytes] = field(default_factory=dict)
    wrong_hashes: bool = False
    small_files: frozenset[str] = frozenset()
    """Files outside the large storage: the hub gives git's hash for them."""
    break_after_bytes: int | None = None
    """Close the connection in the middle of every answer after so many bytes."""
    num_breaks: int = 10**9
    ignores_ranges: bool = False
    status: int = 200
    wheels: Path | None = None
    chunk_pause_s: float = 0.0
    quick_part: str = ""
    """Part of the paths that are sent without pauses."""
    api_pause_s: float = 0.0
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each."""
    tokens: list[str | None] = field(default_factory=list)
    """Authorization header of each request."""
    redirect_to: str | None = None
    """Another server that holds the files themselves."""
    url: str = ""

    def api(self) -> bytes:
        siblings = []
        for name, content in self.files.items():
            git_sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            sibling: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git_sha1}
            if name not in self.small_files:
                digest = "0" * 64 if self.wrong_hashes else sha256(content)
                sibling["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 134}
            siblings.append(sibling)
        return json.dumps({"id": "org/repo", "modelId": "org/repo", "sha": REVISION, "siblings": siblings}).encode()

    def find(self, path: str) -> bytes | None:
        prefix = f"/org/repo/resolve/{REVISION}/"
        if path.startswith("/api/models/org/repo"):
            time.sleep(self.api_pause_s)
            return self.api()
        if path.startswith(prefix):
            return self.files.get(path.removeprefix(prefix))
        if self.wheels and path == "/wheels/":
            return "".join(f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in self.wheels.iterdir()).encode()
        if self.wheels and path.startswith("/wheels/"):
            return (self.wheels / path.removeprefix("/wheels/")).read_bytes()
        return None


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted_range = self.headers.get("Range")
            server.requests.append((self.path, wanted_range))
            server.tokens.append(self.headers.get("Authorization"))
            if server.redirect_to and "/resolve/" in self.path:
                self.redirect(server.redirect_to + self.path)
                return
            content = server.find(self.path)
            is_api = self.path.startswith("/api/")
            status = 404 if content is None else server.status
            content = content if content is not None and status == 200 else b""
            start = 0
            if wanted_range and status == 200 and not server.ignores_ranges:
                start = int(wanted_range.removeprefix("bytes=").removesuffix("-"))
                status = 206
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if is_api else "text/html")
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Connection", "close")
            self.end_headers()
            body = content[start:]
            if server.break_after_bytes is not None and not is_api and server.num_breaks > 0:
                server.num_breaks -= 1
                body = body[: server.break_after_bytes]
            is_quick = is_api or bool(server.quick_part and server.quick_part in self.path)
            self.send_body(body, 0.0 if is_quick else server.chunk_pause_s)
            self.close_connection = True

        def redirect(self, url: str) -> None:
            self.send_response(302)
            self.send_header("Location", url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_body(self, body: bytes, pause_s: float) -> None:
            try:
                for offset in range(0, len(body), 4096):
                    self.wfile.write(body[offset : offset + 4096])
                    time.sleep(pause_s)
            except (BrokenPipeError, ConnectionResetError):
                pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
