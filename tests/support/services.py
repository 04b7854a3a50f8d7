"""Finding and ending the engine services that a test has started in a folder of its own."""

import time
from pathlib import Path

import psutil

from engine.service.client import ServiceClient
from engine.service.registration import Registration, read_registration


def find_registration(folder: Path) -> Registration | None:
    """The service whose state folder is in ``folder`` (see ``private_folders``)."""
    files = list((folder / "state" / "services").glob("*.json"))
    return read_registration(files[0]) if files else None


async def stop_service(folder: Path) -> None:
    """Ask it to exit and wait until it has."""
    registration = find_registration(folder)
    if registration is None or not psutil.pid_exists(registration.pid):
        return
    client = ServiceClient(registration.address, registration.token)
    await client.shutdown()
    await client.aclose()
    deadline_s = time.monotonic() + 20
    while psutil.pid_exists(registration.pid):
        assert time.monotonic() < deadline_s, f"the service {registration.pid} does not end"
        time.sleep(0.02)
