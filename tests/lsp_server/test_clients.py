from typing import Any

import pytest
from lsprotocol import types

from lsp_server.clients import midline_options, profile_of
from lsp_server.protocol import make_converter


def params(**fields: Any) -> types.InitializeParams:
    message = {"processId": None, "rootUri": None, "capabilities": {}, **fields}
    return make_converter().structure(message, types.InitializeParams)


def test_bare_client() -> None:
    profile = profile_of(params())
    assert profile == type(profile)()


@pytest.mark.parametrize(
    ("name", "can_overlay"),
    [("Visual Studio Code", True), ("Visual Studio Code - Insiders", True), ("coc.nvim", True), ("Neovim", False)],
)
def test_overlay_clients(name: str, can_overlay: bool) -> None:
    assert profile_of(params(clientInfo={"name": name})).can_overlay is can_overlay


@pytest.mark.parametrize("options", [None, 3, [], {}, {"midline": 3}, {"midline": None}, {"other": {}}])
def test_options_that_are_not_ours(options: Any) -> None:
    assert midline_options(params(initializationOptions=options)) == {}


def test_options_may_be_an_experimental_capability() -> None:
    capabilities = {"experimental": {"midline": {"status": True}}}
    assert profile_of(params(capabilities=capabilities)).wants_status
