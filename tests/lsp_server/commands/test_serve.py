import pytest

from lsp_server.commands.serve import parse_address
from lsp_server.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0", ("127.0.0.1", 0)),
        ("8123", ("127.0.0.1", 8123)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "1x", "-1", "65536", "localhost:", "192.168.0.1:80", "[::]:80"])
def test_bad_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--tcp "):
        parse_address(text)
