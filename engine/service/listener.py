"""Opens the socket the service listens on: a private Unix socket, or TCP on this machine alone. Light."""

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path

from engine.errors import ConfigError, ServiceError
from engine.service.registration import MAX_SOCKET_PATH_BYTES

HAS_UNIX_SOCKETS = hasattr(socket, "AF_UNIX") and os.name != "nt"

_BACKLOG = 128


def listen_unix(path: Path) -> socket.socket:
    """Listen on a socket file with mode 0600, replacing one that nobody listens on any more.

    Raises ``ConfigError`` for a path that is too long or not a socket, and where there are no such sockets;
    ``ServiceError`` when it is in use.
    """
    if not HAS_UNIX_SOCKETS:
        raise ConfigError("--socket needs Unix sockets, which this platform lacks; use --port")
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(f"the socket path {path} has {num_bytes} bytes, more than {MAX_SOCKET_PATH_BYTES}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        former_mask = os.umask(0o177)  # private from its first moment on
        try:
            listener.bind(str(path))
        finally:
            os.umask(former_mask)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServiceError(f"cannot listen on {path}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """Listen on a loopback address; port 0 takes a free one. Raises ``ConfigError`` or ``ServiceError``."""
    address = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigError(f"--host {host} is not a loopback address; the engine serves this machine alone: 127.0.0.1")
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} is not between 0 and 65535")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":  # there it would let two processes share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ServiceError(f"cannot listen on {host}:{port}: {reason}; choose another --port") from error
    return listener


def tcp_url(listener: socket.socket) -> str:
    """The ``http://HOST:PORT`` of a listening TCP socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; choose another path")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ServiceError(f"another process listens on {path}; choose another path")
