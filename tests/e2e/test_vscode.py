"""The extension in a real VS Code workbench, with the real server, engine and model."""

import ast
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine.checkpoint.store import resolve_model
from engine.config import DEFAULT_MODEL
from engine.errors import MidlineError
from engine.paths import cache_dir
from tests.e2e.vscode.rig import Tools, Workbench, build_extension, open_workbench
from tests.support.tiny_checkpoints import write_tiny_gguf

pytestmark = [pytest.mark.editor, pytest.mark.timeout(600)]

Steps = dict[str, dict[str, Any]]

COMMAND: dict[str, object] = {"midline.command": [sys.executable, "-m", "lsp_server"]}
SETTINGS: dict[str, object] = {**COMMAND, "midline.engine.model": DEFAULT_MODEL}
FILE = """\
def add(a, b):
    return a + b


def multiply(a, b):
    return


print(add(2, 3))
print(multiply(2, 3))
"""


def _cannot_run(reason: str) -> NoReturn:
    """Skipped on a developer's machine; in CI a rig that is not there is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"VS Code cannot be tested: {reason}")
    pytest.skip(f"VS Code was NOT tested: {reason}")


@pytest.fixture(scope="module")
def tools() -> Tools:
    found = Tools.find()
    if found.missing:
        _cannot_run("; ".join(found.missing))
    build_extension(found)
    return found


def _seen(tools: Tools, scenario: str, settings: dict[str, object], cache: Path) -> Steps:
    """What was seen at each step of one session in the editor, by the step's name."""
    with open_workbench(tools, FILE, settings, cache) as workbench:
        return _steps_of(workbench, scenario)


def _steps_of(workbench: Workbench, scenario: str) -> Steps:
    report = workbench.drive(scenario)
    assert "error" not in report, report
    return {step["name"]: step for step in report["steps"]} | {"end": report}


@pytest.fixture(scope="module")
def default_model() -> None:
    try:
        resolve_model(DEFAULT_MODEL)
    except MidlineError as error:
        _cannot_run(str(error))


@pytest.fixture(scope="module")
def steps(tools: Tools, default_model: None) -> Steps:
    return _seen(tools, "complete", SETTINGS, cache_dir())


@pytest.mark.real_model
class TestSession:
    """One session of a person who types, accepts, dismisses, loses the engine, and turns Midline off and on."""

    def test_ghost_text_fills_the_middle_of_the_file(self, steps: Steps) -> None:
        assert steps["suggested"]["ghost"].strip() == "a * b"

    def test_status_item_says_ready_and_names_the_model(self, steps: Steps) -> None:
        assert steps["suggested"]["status"] == f"Midline: ready · {DEFAULT_MODEL}"

    def test_accepted_text_is_in_the_file_and_nothing_else_has_changed(self, steps: Steps) -> None:
        ghost = steps["suggested"]["ghost"]
        assert steps["accepted"]["text"] == FILE.replace("    return\n", f"    return {ghost}\n")

    def test_escape_hides_the_suggestion_and_leaves_the_file_alone(self, steps: Steps) -> None:
        assert steps["dismissed"]["ghost"] != ""
        assert steps["dismissed"]["ghosts_after"] == []
        assert steps["dismissed"]["text"] == steps["accepted"]["text"] + "\ntotal = "

    def test_suggestions_come_again_after_the_engine_was_killed(self, steps: Steps) -> None:
        again = steps["suggested again"]
        assert again["ghost"] != ""
        assert again["status"] == f"Midline: ready · {DEFAULT_MODEL}"
        assert again["killed"] and not set(again["killed"]) & set(again["running"])

    def test_server_that_was_killed_is_started_again(self, steps: Steps) -> None:
        restarted = steps["server restarted"]
        assert restarted["ghost"] != ""
        assert len(restarted["killed"]) == len(restarted["running"]) == 1
        assert restarted["killed"] != restarted["running"]

    def test_nothing_is_suggested_while_turned_off(self, steps: Steps) -> None:
        assert steps["off"]["status"] == "Midline: off"
        assert steps["off"]["ghosts"] == []
        assert steps["off"]["servers"] == []
        assert steps["on"]["ghost"] != ""

    def test_accepting_between_brackets_leaves_each_bracket_once(self, steps: Steps) -> None:
        text = steps["accepted between brackets"]["text"]
        ast.parse(text)
        assert f"print(multiply({steps['accepted between brackets']['ghost'].rstrip(')')}" in text

    def test_nothing_pops_up(self, steps: Steps) -> None:
        assert steps["end"]["pop_ups"] == []


HOLES = """\
from math import pi


def area(radius):
    raise NotImplementedError


diameter = <FILL>
print(area(diameter / 2))
"""
OTHER = "width, height = 3, 4\nsurface = <FILL>\n"


@pytest.mark.real_model
def test_holes_of_the_workspace_are_filled_reviewed_and_applied(tools: Tools, default_model: None) -> None:
    with open_workbench(tools, HOLES, SETTINGS, cache_dir(), {"other.py": OTHER}) as workbench:
        steps = _steps_of(workbench, "bulk")
        other = workbench.file.with_name("other.py").read_text(encoding="utf-8")
    kinds = [
        (re.match(r"\d (marker|stub|docstring)s?", kind["text"]), kind["ticked"]) for kind in steps["kinds"]["kinds"]
    ]
    assert [(found and found[0], is_ticked) for found, is_ticked in kinds] == [
        ("2 markers", True),
        ("1 stub", True),
        ("1 docstring", False),  # nobody has left a gap there
    ]
    assert "Midline: filling holes" in steps["progress"]["text"]
    assert steps["progress"]["buttons"] == ["Cancel"]
    (summary,) = steps["filled"]["pop_ups"]
    assert all(text in summary for text in ("Midline: 3 of 3 holes filled.", "Review…", "Apply All"))
    assert steps["filled"]["text"] == steps["preview"]["text"] == HOLES  # nothing is changed before the user says so
    assert steps["preview"]["rows"][0] == "calc.py"
    assert not any(steps["preview"]["before"])  # nor is anything ticked that nobody has looked at
    applied = steps["applied"]["text"]
    before, stub, rest = HOLES.partition("raise NotImplementedError")
    between, marker, after = rest.partition("<FILL>")
    assert applied.startswith(before) and between in applied and applied.endswith(after)
    assert stub not in applied and marker not in applied + other
    assert other.startswith(OTHER.partition(marker)[0])  # it was never opened, and is saved
    ast.parse(applied)
    ast.parse(other)
    assert steps["end"]["pop_ups"] == []


def _seen_while_filling(tools: Tools, scenario: str, folder: Path) -> Steps:
    """With a bulk engine that makes up its answers, one every 1.5 s, for 20 holes."""
    settings: dict[str, object] = {
        "midline.command": [sys.executable, "-m", "tests.support.bulk_cli", "slow:1500"],
        "midline.engine.model": str(write_tiny_gguf(folder / "tiny.gguf")),
    }
    text = "".join(f"x{number} = <FILL>\n" for number in range(20))
    with open_workbench(tools, text, settings, folder) as workbench:
        return _steps_of(workbench, scenario)


def test_a_server_that_is_killed_takes_its_progress_down(tools: Tools, tmp_path: Path) -> None:
    steps = _seen_while_filling(tools, "bulk_killed", tmp_path)
    (pop_up,) = steps["server killed"]["pop_ups"]
    assert "Midline: the server has ended meanwhile; try again" in pop_up


def test_a_run_that_is_cancelled_keeps_what_was_filled(tools: Tools, tmp_path: Path) -> None:
    steps = _seen_while_filling(tools, "bulk_cancel", tmp_path)
    (summary,) = steps["cancelled"]["pop_ups"]
    assert re.search(r"Midline: cancelled; [1-9] of 20 holes filled\.", summary)
    (news,) = steps["applied"]["pop_ups"]
    assert re.search(r"Midline: [1-9] holes? in 1 file filled\.", news)
    assert 10 < steps["applied"]["text"].count("<FILL>") < 20


def test_missing_program_is_one_pop_up_with_its_remedies_and_a_log(tools: Tools, tmp_path: Path) -> None:
    program = str(tmp_path / "nowhere" / "midline")
    steps = _seen(tools, "no_program", {"midline.command": [program]}, tmp_path)
    (pop_up,) = steps["problem"]["pop_ups"]
    assert program in pop_up and "Show Log" in pop_up and "Open Settings" in pop_up
    assert steps["problem"]["status"].startswith("Midline: failed")
    assert steps["log"]["channel"] == "Midline"


def test_server_that_ends_at_once_is_one_pop_up(tools: Tools, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    steps = _seen(tools, "no_server", {"midline.command": command}, tmp_path)
    (pop_up,) = steps["problem"]["pop_ups"]
    assert "the server did not start" in pop_up and " ".join(command) in pop_up and "Show Log" in pop_up
    assert steps["problem"]["status"].startswith("Midline: failed")


def test_missing_model_is_one_pop_up_that_offers_the_download(tools: Tools, tmp_path: Path) -> None:
    steps = _seen(tools, "no_model", COMMAND, tmp_path)
    (pop_up,) = steps["problem"]["pop_ups"]
    assert "no model is on this machine yet" in pop_up and "Download" in pop_up
    assert steps["problem"]["status"].startswith("Midline: model not downloaded · auto")
    assert steps["problem"]["ghost"] == ""
