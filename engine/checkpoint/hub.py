"""The Hugging Face hub as a source: which files a repository has, and fetching one of them.

``huggingface_hub`` answers what a repository holds and with which hashes, and brings the user's endpoint,
token and offline switch; the bytes are streamed here, for they must resume, be verified and end in the store.
"""

import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from engine.checkpoint.download import (
    CHUNK_BYTES,
    ByteReport,
    ExpectedFile,
    ProgressSink,
    commit,
    disk_errors,
    format_bytes,
    is_verified,
    partial_path,
    require_free_disk,
)
from engine.errors import DownloadError

REACH_DEADLINE_S = 5.0
READ_TIMEOUT_S = 20.0
MAX_FAILURES = 4  # in a row, without a single byte
RETRY_PAUSE_S = 0.5

# The library would tell the hub which other software is installed and which program started it.
constants.HF_HUB_DISABLE_TELEMETRY = True


class HubUnavailableError(DownloadError):
    """The hub does not answer or does not give this model; another source may."""


class HubUnreachableError(HubUnavailableError):
    """The hub does not answer."""


@dataclass(frozen=True)
class HubRepo:
    """A repository at one revision."""

    repo: str
    revision: str
    files: dict[str, ExpectedFile]


def find_repo(repo: str) -> HubRepo:
    """What ``repo`` (``org/name``) holds, within ``REACH_DEADLINE_S``, name resolution included.

    Raises HubUnavailableError if the hub does not answer in time, is switched off or refuses the repository.
    """
    if constants.HF_HUB_OFFLINE:
        raise HubUnavailableError("the hub is switched off by HF_HUB_OFFLINE")
    answers: queue.Queue[HubRepo | HubUnavailableError] = queue.Queue()
    # A resolver can block for minutes and cannot be cancelled; a daemon thread can be left behind.
    threading.Thread(target=lambda: answers.put(_ask_hub(repo)), daemon=True, name="midline-hub").start()
    try:
        answer = answers.get(timeout=REACH_DEADLINE_S)
    except queue.Empty:
        message = f"the hub at {constants.ENDPOINT} did not answer within {REACH_DEADLINE_S:.0f} s"
        raise HubUnreachableError(message) from None
    if isinstance(answer, HubUnavailableError):
        raise answer
    return answer


def _ask_hub(repo: str) -> HubRepo | HubUnavailableError:
    try:
        info = HfApi().model_info(repo, files_metadata=True, timeout=REACH_DEADLINE_S)
        files = {sibling.rfilename: _expected_file(sibling) for sibling in info.siblings or ()}
        return HubRepo(repo, info.sha or constants.DEFAULT_REVISION, files)
    except GatedRepoError:
        return HubUnavailableError(f"the hub asks to accept the terms of {repo} first; do so and set HF_TOKEN")
    except RepositoryNotFoundError:
        return HubUnavailableError(f"the hub has no repository {repo}, or it is private and HF_TOKEN is not set")
    except (HfHubHTTPError, HFValidationError) as error:
        return HubUnavailableError(f"the hub refused {repo}: {str(error).strip().splitlines()[0]}")
    # The library raises errors of requests, httpx or httpx2, by version; none may be lost in this thread.
    except Exception as error:  # noqa: BLE001
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return HubUnreachableError(f"the hub at {constants.ENDPOINT} cannot be reached ({reason})")


def _expected_file(sibling: RepoSibling) -> ExpectedFile:
    if sibling.lfs is not None:
        return ExpectedFile(sibling.lfs.size, "sha256", sibling.lfs.sha256)
    return ExpectedFile(sibling.size or 0, "git-sha1", sibling.blob_id or "")


def fetch_files(repo: HubRepo, targets: Mapping[str, Path], progress: ProgressSink) -> None:
    """Download files of ``repo`` (by their names there) to their targets and verify each.

    What is there already with the right content is kept; a broken download goes on where it stopped.
    Raises HubUnavailableError if not a byte could be had, DownloadError for everything else.
    """
    total_bytes = sum(repo.files[file].size_bytes for file in targets)
    missing_bytes = sum(_missing_bytes(repo.files[file], target) for file, target in targets.items())
    for target in targets.values():
        require_free_disk(target.parent, missing_bytes, target.name)
    finished_bytes = 0
    for file, target in targets.items():
        progress.stage(f"downloading {target.name} from the hub")

        def report(num_bytes: int, base_bytes: int = finished_bytes) -> None:
            progress.update(base_bytes + num_bytes, total_bytes)

        _fetch_file(repo, file, target, report)
        finished_bytes += repo.files[file].size_bytes


def _missing_bytes(expected: ExpectedFile, target: Path) -> int:
    if target.exists() and target.stat().st_size == expected.size_bytes:
        return 0
    partial = partial_path(target, expected)
    return expected.size_bytes - (partial.stat().st_size if partial.exists() else 0)


def _fetch_file(repo: HubRepo, file: str, target: Path, report: ByteReport) -> None:
    expected = repo.files[file]
    if is_verified(target, expected):
        report(expected.size_bytes)
        return
    partial = partial_path(target, expected)
    with disk_errors(target.parent, target.name, lambda: _missing_bytes(expected, target)):
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("a+b") as output:
            transfer = _Transfer(repo, file, output, report)
            transfer.run()
            os.fsync(output.fileno())
        commit(partial, target, expected, transfer.hexdigest())


class _Transfer:
    """The streaming of one file into ``output``, whose content so far it takes over."""

    def __init__(self, repo: HubRepo, file: str, output: BinaryIO, report: ByteReport) -> None:
        self._url = hf_hub_url(repo.repo, file, revision=repo.revision, endpoint=constants.ENDPOINT)
        self._file = file
        self._expected = repo.files[file]
        self._output = output
        self._report = report
        self._num_bytes = output.seek(0, os.SEEK_END)
        self._hash = self._expected.new_hash()
        if self._num_bytes > self._expected.size_bytes:
            self._restart()
        output.seek(0)
        while chunk := output.read(CHUNK_BYTES):
            self._hash.update(chunk)

    def hexdigest(self) -> str:
        """Hash of what is in the output."""
        return self._hash.hexdigest()

    def run(self) -> None:
        """Fetch what is missing; a connection that breaks is taken up again as long as bytes come."""
        num_failures = 0
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=REACH_DEADLINE_S)
        with httpx.Client(follow_redirects=True, timeout=timeout, headers=build_hf_headers()) as client:
            while self._num_bytes < self._expected.size_bytes:
                before_bytes = self._num_bytes
                problem = self._continue(client)
                num_failures = 0 if self._num_bytes > before_bytes else num_failures + 1
                if num_failures == MAX_FAILURES:
                    raise self._error(problem)
                if problem:
                    time.sleep(RETRY_PAUSE_S)
        self._output.flush()

    def _continue(self, client: httpx.Client) -> str:
        """One request for the rest; returns why it ended early, or an empty string."""
        headers = {"Accept-Encoding": "identity"}
        if self._num_bytes:
            headers["Range"] = f"bytes={self._num_bytes}-"
        try:
            with client.stream("GET", self._url, headers=headers) as response:
                if response.status_code in (
                    httpx.codes.UNAUTHORIZED,
                    httpx.codes.FORBIDDEN,
                    httpx.codes.NOT_FOUND,
                ):
                    raise self._error(f"HTTP {response.status_code}")
                response.raise_for_status()
                if response.status_code != httpx.codes.PARTIAL_CONTENT:
                    self._restart()
                for chunk in response.iter_bytes():  # as they come: gathered chunks are lost when the line breaks
                    self._take(chunk)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return (str(error) or type(error).__name__).splitlines()[0]
        return ""

    def _take(self, chunk: bytes) -> None:
        if self._num_bytes + len(chunk) > self._expected.size_bytes:
            self._restart()
            raise self._error(f"more than the announced {self._expected.size_bytes} bytes came")
        self._output.write(chunk)
        self._hash.update(chunk)
        self._num_bytes += len(chunk)
        self._report(self._num_bytes)

    def _restart(self) -> None:
        self._output.truncate(0)
        self._hash = self._expected.new_hash()
        self._num_bytes = 0

    def _error(self, problem: str) -> DownloadError:
        if not self._num_bytes:
            return HubUnavailableError(f"the hub does not deliver {self._file} ({problem})")
        return DownloadError(
            f"the download of {self._file} broke at {format_bytes(self._num_bytes)} of "
            f"{format_bytes(self._expected.size_bytes)} ({problem}); repeat the command to go on from there"
        )
