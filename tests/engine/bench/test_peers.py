"""Taking turns, ratios and what is asked of them; and a whole comparison with a stand-in for the peer."""

import json
import math
import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.bench import turns as turns_module
from engine.bench.peer_rows import BARS, MS, PEER_COLUMNS, TOKENS_PER_S, PeerRow, compared, peer_bars
from engine.bench.peers import PeerOutcome, measure_peers
from engine.bench.settings import QUICK_PEERS, PeersSettings, check, is_asked_comparison
from engine.bench.turns import Turn, Turns
from engine.errors import ConfigError, ServiceError
from tests.support.llama_stand_in import pid_of, questions_of, write_stand_in
from tests.support.tiny_checkpoints import write_tiny_gguf


class _Side:
    """Uses as much of a CPU as it is told, whoever works."""

    def __init__(self, name: str, share: float) -> None:
        self.name = name
        self._share = share

    def cpu_s(self) -> float:
        return time.perf_counter() * self._share


def test_sides_work_in_turn_and_the_other_one_is_watched() -> None:
    log: list[str] = []

    def work(name: str) -> Turn[int]:
        def turn(number: int) -> int:
            log.append(name)
            return number

        return Turn(sides[name], turn)

    sides = {"busy": _Side("busy", 0.5), "quiet": _Side("quiet", 0.0)}
    turns = Turns(3)
    assert turns.take(work("busy"), work("quiet")) == [[0, 1, 2], [0, 1, 2]]
    assert log == ["busy", "quiet"] * 3
    assert set(turns.idle_shares) == {"busy", "quiet"}
    assert turns.idle_shares["quiet"] == 0.0 < turns.idle_shares["busy"]


def test_other_programs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is busy with one and a half CPUs, a half of which is the side's."""
    monkeypatch.setattr(turns_module, "_busy_s", lambda: time.perf_counter() * 1.5)
    turns = Turns(1)
    turns.take(Turn(_Side("one", 0.5), lambda _: time.sleep(0.05)))
    assert turns.others_share == pytest.approx(1.0, abs=0.05)


def test_a_side_with_two_turns_does_not_watch_itself() -> None:
    side = _Side("one", 1.0)
    turns = Turns(1)
    turns.take(Turn(side, lambda _: 0), Turn(side, lambda _: 1))
    assert turns.idle_shares == {}


def test_above_one_midline_is_faster_in_tokens_and_in_time() -> None:
    speed = compared(("a", TOKENS_PER_S), [10.0, 30.0, 20.0], [10.0, 5.0, 90.0], asked=2.5)
    assert (speed.midline, speed.peer, speed.peer_own, speed.ratio) == (20.0, 10.0, None, 2.0)
    slow = compared(("b", MS), [10.0, 30.0, 20.0], [5.0, 5.0, 5.0], [4.0], percent=95.0, asked=0.1)
    assert (slow.midline, slow.peer, slow.peer_own) == (29.0, 5.0, 4.0) and math.isclose(slow.ratio, 5 / 29)
    (first, second) = peer_bars([speed, compared(("c", MS), [1.0], [1.0]), slow])
    assert (first.name, first.value, first.limit, first.is_met) == ("a", 2.0, 2.5, False)
    assert second.is_met


def test_columns_are_fields_of_a_row() -> None:
    assert {column.name for column in PEER_COLUMNS} <= set(PeerRow.__dataclass_fields__)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_repetitions": 2}, "--repetitions is 2; it must be 3 to 1000"),
        ({"precision": "int2"}, "--precision is 'int2'; it must be one of "),
        ({"seed": -1}, "--seed is -1"),
        ({"models": ("published",)}, "--model is published; it must be a model that llama.cpp can load"),
        ({"speculation": "--spec-type 'x"}, '--peer-spec is "--spec-type \'x": No closing quotation'),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    check(PeersSettings())
    with pytest.raises(ConfigError) as caught:
        check(replace(PeersSettings(), **changes))
    assert str(caught.value).startswith(message)


def test_ratios_are_asked_only_of_what_they_are_meant_for() -> None:
    assert is_asked_comparison(PeersSettings(models=("x",), num_repetitions=9, data="x", server="x", seed=3))
    assert not is_asked_comparison(QUICK_PEERS)
    assert not is_asked_comparison(PeersSettings(num_together=8))


@pytest.fixture
def settings(tmp_path: Path) -> PeersSettings:
    if os.name == "nt":
        pytest.skip("the stand-in is a shell script")
    return replace(QUICK_PEERS, server=str(write_stand_in(tmp_path)), precision="exact")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture(autouse=True)
def _without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_REST_S", 0.0)


def test_a_whole_comparison(settings: PeersSettings, model: str) -> None:
    outcome = measure_peers(model, settings, lambda _: None)
    _check_rows(outcome)
    _check_questions(questions_of(Path(settings.server)), model, outcome.info.num_threads)


def _check_rows(outcome: PeerOutcome) -> None:
    names = [row.metric for row in outcome.rows]
    keystrokes = [f"keystroke p{percent}, {path}" for path in ("/completion", "/infill") for percent in (50, 95)]
    assert names == [
        *("prefill 512", "prefill 16", "decode", "cold first token", *keystrokes),
        *("decode code, drafting", "decode 8-way"),
    ]
    for row in outcome.rows:
        assert row.midline > 0.0 and row.peer > 0.0 and row.asked is None
        ratio = row.midline / row.peer if row.unit == TOKENS_PER_S else row.peer / row.midline
        assert math.isclose(row.ratio, ratio)
    assert len(outcome.rows[0].midline_values) == len(outcome.rows[0].peer_values) == 3
    assert outcome.peer["version"] == "version: stand-in"
    assert set(outcome.peer["idle_cpu_shares"]) == {"midline", "llama.cpp"}
    assert any(remark.startswith("drafts that came true: Midline ") for remark in outcome.remarks)
    assert json.dumps(outcome.remarks).count("llama.cpp 3 of 6") == 1  # one prompt in each of three repetitions


def _check_questions(questions: list[dict[str, Any]], model: str, num_threads: int) -> None:
    """The peer gets the same work, and none of it twice."""
    for question in questions:
        options = question["options"]
        assert options[options.index("-m") + 1] == model
        assert options[options.index("-t") + 1] == options[options.index("-tb") + 1] == str(num_threads)
        assert (question["temperature"], question["top_k"]) == (0.0, 1)
    cold = [q["prompt"] for q in questions if not q["cache_prompt"]]
    assert len(set(map(tuple, cold))) == len(cold)
    assert [len(prompt) for prompt in cold[:10]] == [512] + [512] * 3 + [16] * 3 + [1200] * 3
    typed = [q["prompt"] for q in questions if q["path"] == "/infill"]
    assert [len(later) - len(earlier) for earlier, later in pairwise(typed[:5])] == [1] * 4
    appended = [q["prompt"] for q in questions if q["path"] == "/completion" and isinstance(q["prompt"], str)]
    assert appended[0].startswith("<|fim_prefix|>") and "<|fim_suffix|>" in appended[0]
    for number in range(4):
        assert appended[number + 1][:-1] == appended[number]
        assert appended[number].endswith("<|fim_middle|>" + typed[number])
    together = [q for q in questions if "8" in q["options"][q["options"].index("-np") :][:2]]
    assert len(together) == 8 * 4


def test_only_what_the_peer_knows_is_tried(settings: PeersSettings, model: str) -> None:
    said: list[str] = []
    measure_peers(model, replace(settings, num_speculations=5), said.append)
    tried = [line.split()[6:8] for line in said if line.startswith("trying how the peer drafts with ")]
    assert tried == [["nothing"], ["--spec-type", "ngram-simple"]]


def test_given_options_for_drafting_are_not_tried_but_used(settings: PeersSettings, model: str) -> None:
    outcome = measure_peers(model, replace(settings, speculation="--spec-type 'my own'"), lambda _: None)
    assert outcome.peer["speculation"] == "--spec-type 'my own'"
    drafting = [q["options"] for q in questions_of(Path(settings.server)) if "--spec-type" in q["options"]]
    assert {options[options.index("--spec-type") + 1] for options in drafting} == {"my own"}


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("short", "^llama.cpp has generated .* tokens instead of"),
        ("falls", "^llama-server ended with code 7 while it was measured"),
        ("differs", r"^llama-server's answer to /completion is not understood: KeyError\('timings'\)$"),
    ],
)
def test_a_failing_peer_ends_the_comparison(
    settings: PeersSettings, model: str, monkeypatch: pytest.MonkeyPatch, behaviour: str, message: str
) -> None:
    monkeypatch.setenv("STAND_IN", behaviour)
    with pytest.raises(ServiceError, match=message):
        measure_peers(model, settings, lambda _: None)
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(Path(settings.server)), 0)


def test_bars_are_of_metrics_that_are_measured(settings: PeersSettings, model: str) -> None:
    metrics = {"prefill 512", "decode", "decode code, drafting", f"decode {PeersSettings().num_together}-way"}
    assert {name for bars in BARS.values() for name in bars} == metrics
