"""Where a running service tells other processes of the same user how to reach it. Light: imports no torch.

One service runs per user, model and engine settings. Each has a key, and under ``services/`` in the state
folder: ``<key>.lock``, held by the service for its lifetime, so that a crash frees it; ``<key>.json``, the
registration; ``<key>.log``, what a service in the background writes. Nothing here starts, stops or contacts a
service.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ConfigError, ServiceError
from engine.paths import absolute_path, state_dir

UNIX_PREFIX = "unix:"
TOKEN_VARIABLE = "MIDLINE_ENGINE_TOKEN"
EXIT_ALREADY_RUNNING = 4
"""Exit code of a service process that found another one holding the lock."""

_LOG_TAIL_BYTES = 65536
_STACK_LINE = re.compile(r"\s|(Current thread|Thread) 0x|Stack \(|Extension modules:")  # of faulthandler

MAX_SOCKET_PATH_BYTES = 100  # sun_path holds 104 bytes on macOS, 108 on Linux, a NUL included


@dataclass(frozen=True)
class Registration:
    """How to reach a service, or why it failed."""

    pid: int
    address: str
    """``unix:PATH`` or ``http://HOST:PORT``."""
    token: str
    model: str
    version: str
    started_at_s: float
    """Unix time."""
    is_foreground: bool = False
    """True when a person runs it in a terminal."""
    error: str = ""
    """One line when the model could not be loaded; the service has exited or is about to."""
    error_kind: str = ""
    """Class name of that error, e.g. ``ModelNotDownloadedError``."""


@dataclass(frozen=True)
class ServiceFiles:
    """The files of one service."""

    folder: Path
    key: str

    @classmethod
    def for_engine(cls, config: EngineConfig) -> "ServiceFiles":
        """Files of the service for these settings, which must be ``normalised``."""
        return cls(folder=state_dir() / "services", key=service_key(config))

    @property
    def registration(self) -> Path:
        """The JSON file."""
        return self.folder / f"{self.key}.json"

    @property
    def lock(self) -> Path:
        """Held while the service lives."""
        return self.folder / f"{self.key}.lock"

    @property
    def log(self) -> Path:
        """Output of a service in the background."""
        return self.folder / f"{self.key}.log"

    def create_folder(self) -> None:
        """Make the folder, readable by its owner alone. Raises ``ServiceError``."""
        _create_private_folder(self.folder)

    def socket(self) -> Path:
        """Path for the Unix socket, short enough for the platform, in a folder of its owner alone."""
        path = self.folder / f"{self.key}.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return path
        folder = Path(tempfile.gettempdir()) / f"midline-{os.getuid()}"
        _create_private_folder(folder)
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return folder / f"{digest}.sock"


def normalised(config: EngineConfig) -> EngineConfig:
    """The same settings with model paths made absolute, so that every working folder finds one service."""
    return replace(config, model=_absolute(config.model), draft_model=_absolute(config.draft_model))


def _absolute(model: str) -> str:
    is_path = not model.startswith("hf:") and (
        model.endswith(".gguf") or any(mark in model for mark in ("/", os.sep, "~"))
    )
    return str(absolute_path(model).resolve()) if is_path else model


def service_key(config: EngineConfig) -> str:
    """A file name for these settings: readable by the model's name, unique by a digest of all of them."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", Path(config.model).name).strip("-.")[:32]
    settings = json.dumps(asdict(config), sort_keys=True)
    return f"{readable}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"


def write_registration(path: Path, registration: Registration) -> None:
    """Replace the file at once, readable by its owner alone: it holds the token."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(registration), file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_registration(path: Path) -> Registration | None:
    """The registration, or None when there is none or another version wrote it in a way we cannot read."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Registration(**fields)
    except (OSError, ValueError, TypeError):
        return None


def new_token() -> str:
    """The token that the user has chosen, or a random one. Raises ``ConfigError`` for one no header can carry."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        return secrets.token_urlsafe(32)
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{TOKEN_VARIABLE} must be printable ASCII without spaces")
    return token


def is_process_alive(pid: int) -> bool:
    """False when no such process exists. Where this cannot be asked (Windows) the answer is True."""
    if os.name == "nt":  # os.kill(pid, 0) would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it exists and belongs to someone else
    return True


def last_log_line(path: Path) -> str:
    """The last line with text in a log, or an empty string; of a crash the line that names it, not its stacks."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.rstrip() for line in reversed(lines) if line and not _STACK_LINE.match(line)), "")


def _create_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "nt":
            return
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
            raise ServiceError(f"{folder} is not a folder of yours; remove it")
        folder.chmod(0o700)
    except OSError as error:
        raise ServiceError(f"cannot use the folder {folder}: {error.strerror or error}") from error
