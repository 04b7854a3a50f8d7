import logging
from collections.abc import Iterator

import pytest

from lsp_server.errors import UsageError
from lsp_server.logs import TRACE, log_failure, set_up_logging

_logger = logging.getLogger("lsp_server.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    names = (None, "lsp_server", "pygls.protocol.json_rpc")
    levels = [logging.getLogger(name).level for name in names]
    handlers = logging.getLogger().handlers[:]
    yield
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers[:] = handlers


def fail() -> None:
    try:
        raise ValueError("text of the buffer")
    except ValueError as error:
        log_failure(_logger, "a test", error)


def test_failure_names_kind_and_place_and_keeps_its_text_for_trace(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        fail()
    assert "a test failed: ValueError at" in caplog.text
    assert "text of the buffer" not in caplog.text
    with caplog.at_level(TRACE, logger="lsp_server"):
        fail()
    assert "text of the buffer" in caplog.text


def test_libraries_stay_at_warning(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug")
    logging.getLogger("pygls.server").info("body of a message")
    logging.getLogger("lsp_server.x").debug("ours")
    output = capsys.readouterr()
    assert output.out == ""
    assert "ours" in output.err
    assert "body" not in output.err


def test_unknown_level_names_the_known() -> None:
    with pytest.raises(UsageError, match="--log-level loud is unknown; use one of error, warning, info, debug, trace"):
        set_up_logging("loud")
