"""The real peer on a real model, end to end, with little work."""

import json
import subprocess
import sys

import pytest

from engine.bench.llama_server import find_server
from engine.errors import ServiceError
from tests.real_model.conftest import require

pytestmark = pytest.mark.peer


@pytest.mark.timeout(900)
def test_a_quick_comparison_on_the_smallest_model() -> None:
    require("smollm2-135m")
    try:
        find_server(None)
    except ServiceError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "lsp_server", "bench", "peers", "--quick", "--model", "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    (result,) = report["results"]
    ratios = {row["metric"]: row["ratio"] for row in result["rows"]}
    assert all(0.0 < ratio < 100.0 for ratio in ratios.values())
    # this model does not know what stands behind the cursor, which is all that /infill is for
    assert {name for name in ratios if name.startswith("keystroke")} == {
        "keystroke p50, /completion",
        "keystroke p95, /completion",
    }
    assert len(ratios) == 8
    for row in result["rows"]:
        if row["peer_own"] is not None:  # what the peer says of itself agrees with what we have seen
            assert 0.5 < row["peer"] / row["peer_own"] < 2.0 or "keystroke" in row["metric"]
    # both have been given the same prompt, and compute the same model
    (same,) = [remark for remark in result["remarks"] if remark.startswith("decode: both began with the same ")]
    assert int(same.split()[6]) >= 4
