"""Starts a VS Code server with the built extension on a scratch folder and drives it in a headless browser.

Knows how to install nothing: ``setup.sh`` and the system's package manager do that. Linux only.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
EXTENSION = REPOSITORY / "vscode-client"

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_DRIVE_TIMEOUT_S = 500.0

EDITOR_SETTINGS: dict[str, object] = {
    "security.workspace.trust.enabled": False,
    "workbench.startupEditor": "none",
    "workbench.welcomePage.walkthroughs.openOnInstall": False,
    "workbench.tips.enabled": False,
    "workbench.enableExperiments": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "telemetry.telemetryLevel": "off",
    "extensions.ignoreRecommendations": True,
    "extensions.autoCheckUpdates": False,
    "extensions.autoUpdate": False,
    "update.mode": "none",
    "update.showReleaseNotes": False,
    "git.enabled": False,
    "chat.commandCenter.enabled": False,
    "window.commandCenter": False,
    "files.autoSave": "off",
    "editor.inlineSuggest.enabled": True,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.wordBasedSuggestions": "off",
    "editor.minimap.enabled": False,
    "editor.accessibilitySupport": "off",
}


@dataclass(frozen=True)
class Tools:
    """What must be on the machine; ``missing`` names what is not, with the remedy."""

    rig: Path
    node: str
    npm: str
    browser: str
    missing: tuple[str, ...] = field(default=())

    @classmethod
    def find(cls) -> "Tools":
        """Look for everything; start nothing."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        rig = Path(os.environ.get("MIDLINE_VSCODE_RIG") or cache / "midline-tests" / "vscode")
        node, npm = shutil.which("node") or "", shutil.which("npm") or ""
        browser = shutil.which("chromium-headless-shell") or shutil.which("chromium") or ""
        remedies = {
            "Node.js and npm": bool(node and npm),
            "chromium-headless-shell or chromium, from the system's packages": bool(browser),
            f"the VS Code server in {rig}: run {HERE.relative_to(REPOSITORY) / 'setup.sh'}": (
                rig / "installed"
            ).is_file(),
            "the extension's packages: run npm ci in vscode-client": (EXTENSION / "node_modules").is_dir(),
        }
        missing = tuple(what for what, is_there in remedies.items() if not is_there)
        return cls(rig, node, npm, browser, missing)


def build_extension(tools: Tools) -> None:
    """Bundle the extension, so that no stale bundle is tested."""
    subprocess.run([tools.npm, "run", "--silent", "build"], cwd=EXTENSION, check=True, timeout=60)


def artifacts_dir() -> Path:
    """Folder for screenshots and logs, ignored by git; made if need be."""
    folder = Path(os.environ.get("MIDLINE_ARTIFACTS_DIR") or REPOSITORY / "artifacts") / "vscode"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class Workbench:
    """A running VS Code server and the folders it works on."""

    tools: Tools
    scratch: Path
    port: int

    @property
    def file(self) -> Path:
        """The file that is edited."""
        return self.scratch / "project" / "calc.py"

    def drive(self, scenario: str) -> dict[str, Any]:
        """Run one scenario of ``drive.mjs`` to its end and return its report."""
        address = f"127.0.0.1:{self.port}"
        development = f"vscode-remote://{address}{EXTENSION}"
        query = {"folder": str(self.file.parent), "payload": json.dumps([["extensionDevelopmentPath", development]])}
        arguments = {
            "scenario": scenario,
            "rig": str(self.tools.rig),
            "browser": self.tools.browser,
            "url": f"http://{address}/?{urllib.parse.urlencode(query)}",
            "file": str(self.file),
            "state": str(self.scratch / "state"),
            "artifacts": str(artifacts_dir()),
        }
        command = [self.tools.node, str(HERE / "drive.mjs"), json.dumps(arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_DRIVE_TIMEOUT_S)
        report: dict[str, Any] = json.loads(done.stdout)
        (artifacts_dir() / f"{scenario}-report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        return report


@contextlib.contextmanager
def open_workbench(
    tools: Tools, text: str, settings: dict[str, object], cache: Path, others: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Workbench]:
    """A server on a free loopback port, whose folder holds one file with ``text``; all is ended afterwards.

    ``settings`` are those of the machine, ``cache`` is the folder with the models, ``others`` are further files.
    """
    # Not pytest's folder, whose path is too long for some sockets.
    with tempfile.TemporaryDirectory(prefix="midline-vscode-", ignore_cleanup_errors=True) as scratch:
        workbench = Workbench(tools, Path(scratch), _free_port())
        _write_files(workbench, text, settings)
        for name, content in others.items():
            workbench.file.with_name(name).write_text(content, encoding="utf-8")
        with _running_server(workbench, cache):
            yield workbench


def _write_files(workbench: Workbench, text: str, settings: dict[str, object]) -> None:
    workbench.file.parent.mkdir(parents=True)
    workbench.file.write_text(text, encoding="utf-8")
    # The folder is remote to the browser, so settings that name programs count only in the remote machine's file.
    for scope, values in {"User": EDITOR_SETTINGS, "Machine": settings}.items():
        file = workbench.scratch / "data" / scope / "settings.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values), encoding="utf-8")


@contextlib.contextmanager
def _running_server(workbench: Workbench, cache: Path) -> Iterator[None]:
    state = workbench.scratch / "state"
    with (artifacts_dir() / "server.log").open("wb") as log:
        server = subprocess.Popen(
            _server_command(workbench),
            env=_environment(workbench.scratch, cache),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_up(workbench.port, server)
            yield
        finally:
            server.terminate()
            try:
                server.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            _end_engines(state)
            _keep_logs(state)


def _server_command(workbench: Workbench) -> list[str]:
    vscode = workbench.tools.rig / "node_modules" / "code-server" / "lib" / "vscode"
    scratch = workbench.scratch
    return [
        *(workbench.tools.node, str(vscode / "out" / "server-main.js")),
        *("--host", "127.0.0.1", "--port", str(workbench.port), "--without-connection-token"),
        *("--accept-server-license-terms", "--telemetry-level", "off"),
        *("--server-data-dir", str(scratch / "server"), "--user-data-dir", str(scratch / "data")),
        *("--extensions-dir", str(scratch / "extensions")),
    ]


def _environment(scratch: Path, cache: Path) -> dict[str, str]:
    """The user's own environment with its home and every folder of Midline's replaced."""
    python_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)]))
    return os.environ | {
        "HOME": str(_made(scratch / "home")),
        "PYTHONPATH": python_path,
        "EXTENSIONS_GALLERY": json.dumps({"serviceUrl": ""}),  # no look-ups in a market
        "MIDLINE_CACHE_DIR": str(cache),
        "MIDLINE_STATE_DIR": str(_made(scratch / "state")),
        "MIDLINE_CONFIG": str(scratch / "config.toml"),
    }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _is_listening(port):
        if server.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the VS Code server did not start; see {artifacts_dir() / 'server.log'}")
        time.sleep(0.1)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end_engines(state: Path) -> None:
    """The engine outlives its editors by design; the test's own must not."""
    for registration in (state / "services").glob("*.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(registration.read_text(encoding="utf-8"))["pid"], signal.SIGTERM)


def _keep_logs(state: Path) -> None:
    for log in (state / "services").glob("*.log"):
        shutil.copy(log, artifacts_dir() / f"engine-{log.name}")
