"""``midline engine``: the inference service in the foreground, for other clients too. Imports no torch.

The service is a process of its own; this command prepares it and becomes it.
"""

import asyncio
import importlib.util
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import typer

import engine
from engine.checkpoint.store import resolve_model
from engine.config import ServiceConfig
from engine.errors import ConfigError, ServiceError
from engine.paths import absolute_path, config_file
from engine.service.launcher import ServiceLauncher
from engine.service.listener import listen_tcp, listen_unix
from engine.service.registration import new_token
from lsp_server.commands.settle import settle
from lsp_server.settings import load_config, merge


def run_engine(
    model: str | None,
    host: str,
    port: int | None,
    socket: str | None,
    idle_exit_s: float | None,
    device: str,
    dtype: str,
    num_threads: int,
) -> None:
    """Run the service until it ends; tells address and token on stderr. Does not return.

    A service in the background for the same settings makes way: editors find this one. Without
    ``idle_exit_s`` it never exits by itself, since a person runs it.
    """
    options = {"model": model, "device": device, "dtype": dtype, "num_threads": num_threads}
    given = {name: value for name, value in options.items() if value not in (None, "auto", 0)}
    settings = merge(load_config(config_file()), {"engine": given})
    launcher = ServiceLauncher(ServiceConfig(engine=settle(settings.engine), idle_exit_s=idle_exit_s or 0.0))
    resolve_model(launcher.config.engine.model)  # a model that is not there is told before anything starts
    socket_path = None if socket is None else absolute_path(socket)
    _check(host, port, socket_path, idle_exit_s)
    asyncio.run(launcher.stop())  # one in the background makes way, now that nothing can keep this one from starting
    arguments = ["--settings", json.dumps(asdict(launcher.config)), "--foreground", "--host", host]
    if port is not None:
        arguments += ["--port", str(port)]
    if socket_path is not None:
        arguments += ["--socket", str(socket_path)]
    _become([sys.executable, "-m", "engine.service", *arguments])


def _check(host: str, port: int | None, socket_path: Path | None, idle_exit_s: float | None) -> None:
    """What would keep the service from listening, before anything is ended for it. Raises ``MidlineError``."""
    if port is not None and socket_path is not None:
        raise ConfigError("--port and --socket exclude each other; give one")
    if idle_exit_s is not None and not 0.0 <= idle_exit_s < math.inf:
        raise ConfigError(f"--idle-exit is {idle_exit_s}; it must be 0 or more seconds")
    new_token()
    if port is not None:
        listen_tcp(host, port).close()
    elif host != "127.0.0.1":
        raise ConfigError("--host is for --port; a Unix socket has no host")
    if socket_path is not None:
        listen_unix(socket_path).close()
        socket_path.unlink()
    if importlib.util.find_spec("torch") is None:
        raise ServiceError("the engine is not installed; in Midline's folder run: pip install '.[local]'")


def _become(command: list[str]) -> None:
    os.chdir(Path(engine.__file__).parents[1])  # -m imports from the working folder: never from the user's
    if os.name == "nt":  # exec would return to the shell at once there
        raise typer.Exit(subprocess.call(command))
    sys.stderr.flush()
    os.execv(command[0], command)
