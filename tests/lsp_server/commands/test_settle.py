"""Every command settles ``auto`` before anything else gets to see it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.paths import config_file, state_dir
from lsp_server.commands.bench import _found
from lsp_server.commands.settle import name_to_pull, settle
from tests.support.machine import FAST, LARGE, SLOW, SMALL, keep_machine, keep_model, rates
from tests.support.services import stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf


def test_what_is_here_and_what_to_pull(capsys: pytest.CaptureFixture[str]) -> None:
    keep_machine(FAST)
    assert settle(EngineConfig()) == EngineConfig()
    keep_model(SMALL)
    assert settle(EngineConfig()).model == _found("auto") == SMALL
    assert name_to_pull(EngineConfig()) == LARGE
    shown = capsys.readouterr()
    why = "the best that is quick enough here, 189 ms predicted for a suggestion"
    assert (shown.out, shown.err) == ("", f"auto: {LARGE} ({why})\n")


@pytest.mark.parametrize(
    ("settings", "name"),
    [("", LARGE), ('precision = "exact"\n', SMALL), ("max_memory_mb = 1500\n", SMALL)],
)
def test_the_user_s_settings_count(settings: str, name: str) -> None:
    config_file().write_text("[engine]\n" + settings)
    keep_machine(rates(40.0))
    for model in (SMALL, LARGE):
        keep_model(model)
    command = [sys.executable, "-m", "lsp_server", "models", "path", "auto"]
    assert Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout).stem.startswith(name)


async def test_complete_and_demo_take_what_is_here(tmp_path: Path) -> None:
    """The real engine with a tiny model in the place of the catalogue's."""
    keep_machine(SLOW)
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    for model in (SMALL, LARGE):
        keep_model(model, tiny)
    (tmp_path / "a.py").write_text("x = ")
    run = [sys.executable, "-m", "lsp_server"]
    try:
        command = [*run, "complete", f"{tmp_path / 'a.py'}:1:5", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(done.stdout)["model"] == SMALL
        done = subprocess.run([*run, "demo"], capture_output=True, text=True, check=False, timeout=120)
        assert f"{SMALL} is ready after" in done.stdout
        assert sum(name.endswith(".json") for name in os.listdir(state_dir() / "services")) == 1  # one for both
    finally:
        await stop_service(state_dir().parent)
