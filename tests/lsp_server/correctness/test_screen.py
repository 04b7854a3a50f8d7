"""The editor of the other tests, by hand: what they rely on knows nothing of the server's code."""

from tests.support.lsp_session import LspSession
from tests.support.screen import Screen


class _Deaf(LspSession):
    """Sends nothing."""

    def __init__(self) -> None:
        self.num_sent = 0

    def notify(self, method: str, params: object = None) -> None:
        self.num_sent += 1


def test_positions_count_as_lsp_says() -> None:
    screen = Screen(_Deaf(), "a😀b\r\nc\rd\ne", encoding="utf-16")
    assert [screen.position(at) for at in range(len(screen.text) + 1)] == [
        *[(0, 0), (0, 1), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    ]
    assert (screen.snapped(4), screen.snapped(3), screen.snapped(5)) == (3, 3, 5)
    screen.cursor = 5
    assert (screen.situation.prefix, screen.situation.suffix) == ("a😀b\n", "c\nd\ne")


def test_undo_sends_what_differs() -> None:
    deaf = _Deaf()
    screen = Screen(deaf, "ab\r\ncd", cursor=1)
    screen.type("x")
    screen.jump(7)
    screen.backspace(3)
    assert screen.text == "axb"
    screen.undo()
    assert (screen.text, screen.cursor) == ("axb\r\ncd", 7)
    screen.undo()
    assert (screen.text, screen.cursor) == ("ab\r\ncd", 1)
    assert deaf.num_sent == 1 + 4
