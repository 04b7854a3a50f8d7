"""Takes back fills with which the user's own command fails: tests, a type checker, a build.

Which fills these are is found by halving: what has passed together is kept, what fails is divided, down to the single
fill. Whatever is kept in the end has passed together.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lsp_server.bulk.apply import FileOutcome, FileState
from lsp_server.bulk.events import Checking, Event
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.undo import Step
from lsp_server.errors import CheckError

FILE = "{file}"
_MIN_TIME_LIMIT_S = 60.0
_TIME_LIMIT_FACTOR = 10.0
_LAST_BYTES = 4096


class Check:
    """A command of the user's in a workspace. ``{file}`` in it makes it run for each file, else it runs once."""

    def __init__(self, command: str, root: Path, on_event: Callable[[Event], None]) -> None:
        self._command = command
        self._root = root
        self._on_event = on_event
        self._num_runs = 0
        self._time_limit_s: float | None = None

    def try_without_fills(self, files: Sequence[str]) -> None:
        """Raises ``CheckError`` if the command fails already: then it can say nothing about fills."""
        started_s = time.monotonic()
        for command in dict.fromkeys(self._for_file(file) for file in files):
            failure = self._run(command, num_fills=0)
            if failure:
                raise CheckError(f"the check fails before any fill: {command!r} {failure}; mend that or omit --check")
        took_s = time.monotonic() - started_s
        self._time_limit_s = max(_MIN_TIME_LIMIT_S, _TIME_LIMIT_FACTOR * took_s)

    def keep_passing(self, fills: Sequence[Fill], step: Step) -> tuple[list[Fill], list[FileOutcome]]:
        """Write the fills and take back those that fail. Returns all fills, and what became of the files."""
        trial = _Trial(list(fills), step)
        trial.write(trial.good())
        groups: dict[str, list[int]] = {}
        for index in sorted(trial.written):  # of the others a check says nothing
            groups.setdefault(self._for_file(fills[index].hole.source.relative), []).append(index)
        before: set[int] = set()
        while trial.kept != before:  # what was taken back may have been needed by what had passed
            before = trial.kept
            for command, group in groups.items():
                if candidates := [index for index in group if index in trial.kept]:
                    trial.write(self._narrow(command, trial, trial.kept - set(candidates), candidates))
            if len(groups) == 1:
                break
        return trial.outcome(self._command)

    def _narrow(self, command: str, trial: "_Trial", kept: set[int], candidates: list[int]) -> set[int]:
        """``kept``, which passes, and as many of the candidates as pass with it."""
        trial.write(kept | set(candidates))
        if not self._run(command, len(trial.kept)):
            return kept | set(candidates)
        if len(candidates) == 1:
            return kept
        middle = len(candidates) // 2
        kept = self._narrow(command, trial, kept, candidates[:middle])
        return self._narrow(command, trial, kept, candidates[middle:])

    def _for_file(self, relative: str) -> str:
        quoted = subprocess.list2cmdline([relative]) if os.name == "nt" else shlex.quote(relative)
        return self._command.replace(FILE, quoted)

    def _run(self, command: str, num_fills: int) -> str:
        """How the command failed; empty if it did not."""
        self._num_runs += 1
        self._on_event(Checking(self._num_runs, num_fills))
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                shell=True,
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that all that it starts can be ended
            )
            try:
                code = process.wait(self._time_limit_s)
            except subprocess.TimeoutExpired:
                return f"took more than {self._time_limit_s:.0f} s"
            finally:
                if process.poll() is None:
                    _kill(process)
            if code == 0:
                return ""
            output.seek(max(0, output.tell() - _LAST_BYTES))
            lines = output.read().decode("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"ended with code {code}{f' ({last})' if last else ''}"


class _Trial:
    """Fills of which some are in the files."""

    def __init__(self, fills: list[Fill], step: Step) -> None:
        self.kept: set[int] = set()
        """Those that should be in the files, by their place in ``fills``."""
        self.written: set[int] = set()
        """Those that are."""
        self._fills = fills
        self._step = step
        self._outcomes: dict[str, FileOutcome] = {}

    def good(self) -> set[int]:
        """Those that a check can say something about."""
        return {index for index, fill in enumerate(self._fills) if fill.state is FillState.FILLED}

    def write(self, kept: set[int]) -> None:
        """Make the files hold these and no others, as far as they can be written."""
        self.kept = kept
        # a check that formats what it checks does no harm as long as nothing has to be taken back
        to_change = {self._file_of(index) for index in self.written ^ kept}
        fills = [fill for fill in self._with_others_reverted("") if fill.hole.source.relative in to_change]
        for outcome in self._step.write(fills) if fills else ():
            self._outcomes[outcome.relative] = outcome
            if outcome.state in (FileState.WRITTEN, FileState.UNCHANGED):
                in_file = {index for index in self.good() if self._file_of(index) == outcome.relative}
                self.written = (self.written - in_file) | (kept & in_file)

    def outcome(self, command: str) -> tuple[list[Fill], list[FileOutcome]]:
        """All fills, with the reason of those that were to be taken back; and what became of the files."""
        fills = self._with_others_reverted(f"the check fails with it: {command}")
        for index in self.written - self.kept:
            if not fills[index].hole.source.path.exists():
                continue
            reason = "the check fails with it, but it could not be taken back"
            fills[index] = replace(fills[index], state=FillState.FAILED, reason=reason)
            file = self._file_of(index)
            self._outcomes[file] = replace(self._outcomes[file], reason=_still_there(file, self._outcomes[file]))
        return fills, list(self._outcomes.values())

    def _file_of(self, index: int) -> str:
        return self._fills[index].hole.source.relative

    def _with_others_reverted(self, reason: str) -> list[Fill]:
        others = self.good() - self.kept
        return [
            replace(fill, state=FillState.REVERTED, reason=reason) if index in others else fill
            for index, fill in enumerate(self._fills)
        ]


def _still_there(file: str, outcome: FileOutcome) -> str:
    if outcome.state is not FileState.CONFLICT:
        return outcome.reason
    return (
        f"{file} was changed while the check ran, perhaps by it, so that fills with which it fails are still there;"
        " put the file back, and let the check change none"
    )


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
