import sys
from pathlib import Path
from typing import Any

import pytest

from lsp_server.completion.request import EmptyReason
from lsp_server.postprocess import postprocess
from tests.support.cursor import hole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_GOLDEN = Path(__file__).parents[2] / "golden" / "postprocess"
_CASES = [case for file in sorted(_GOLDEN.glob("*.toml")) for case in tomllib.loads(file.read_text("utf-8"))["case"]]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: str(case["name"]))
def test_golden(case: dict[str, Any]) -> None:
    cleaned = postprocess(case["generated"], hole(case["at"]))
    reason = EmptyReason(case["reason"]) if "reason" in case else None
    assert (cleaned.text, cleaned.reason) == (case.get("text", ""), reason)


def test_nothing_generated() -> None:
    assert postprocess("", hole("x = ║")).reason is EmptyReason.NOTHING_GENERATED


def test_only_closers_that_are_there_already() -> None:
    assert postprocess(")", hole("f(║)")).reason is EmptyReason.DUPLICATES_SUFFIX
