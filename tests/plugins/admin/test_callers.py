"""Who asks: the token, users, and for how long they count."""

from pathlib import Path

import pytest

from tidegate.spi import AccessError, ConnectRequest, Identity
from tidegate.spi.clients.operators import Readiness
from tidegate_admin import _callers
from tidegate_admin._callers import Callers, LoginError
from tidegate_admin._protocol import Credentials

TOKEN = "t" * 40
PEER = "192.0.2.7:5000"


class Known:
    """A caller. Attributes: problem: why it is no longer valid."""

    def __init__(self, name: str, address: str) -> None:
        self.identity = Identity(name, frozenset({"ops"}), "", address, "admin")
        self.problem = ""

    def identity_now(self) -> Identity:
        if self.problem:
            raise AccessError(self.problem)
        return self.identity


class Desk:
    """Lets in whose password is ``right``. Attributes: asked: what it was asked to check."""

    name, version, directory = "gw", "1", Path()

    def __init__(self) -> None:
        self.asked: list[ConnectRequest] = []
        self.known: list[Known] = []

    def readiness(self) -> Readiness:
        raise AssertionError("nobody asks for it")

    async def log_in(self, request: ConnectRequest) -> Known:
        self.asked.append(request)
        if request.password != b"right":
            raise AccessError("wrong password", principal=request.username)
        self.known.append(Known(request.username or "bearer", "192.0.2.7"))
        return self.known[-1]

    async def perform(self, who: Identity, request: object) -> object:
        raise AssertionError("nobody asks for it")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def callers(desk: Desk) -> Callers:
    return Callers(desk, TOKEN, "http://127.0.0.1:8161")  # type: ignore[arg-type]


async def test_the_token_is_the_operator_of_this_machine(callers: Callers, desk: Desk) -> None:
    who = await callers.identity("127.0.0.1:9", Credentials(token=TOKEN))
    assert who.principal.startswith("local:")
    assert (who.address, who.protocol) == ("127.0.0.1", "admin")
    assert not desk.asked


async def test_without_a_token_file_no_token_is_the_operators(desk: Desk) -> None:
    callers = Callers(desk, "", "http://x")  # type: ignore[arg-type]
    for token in ("", TOKEN):
        with pytest.raises(LoginError):
            await callers.identity(PEER, Credentials(token=token))


async def test_another_token_is_a_users(callers: Callers, desk: Desk) -> None:
    assert (await callers.identity(PEER, Credentials(token="right"))).principal == "bearer"
    (asked,) = desk.asked
    assert (asked.username, asked.password, asked.protocol) == ("", b"right", "admin")
    assert (asked.peer, asked.listener) == (PEER, "http://127.0.0.1:8161")
    assert not asked.anonymous_allowed


async def test_a_password_is_checked_once_for_some_time(
    callers: Callers, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = Credentials("", "ann", b"right")
    for _ in range(3):
        assert (await callers.identity(PEER, ann)).principal == "ann"
    assert len(desk.asked) == 1
    await callers.identity("192.0.2.8:1", ann)  # each address by itself: guesses are counted so
    assert len(desk.asked) == 2
    monkeypatch.setattr(_callers, "_REMEMBERED_S", -1.0)
    callers._known.clear()
    await callers.identity(PEER, ann)
    await callers.identity(PEER, ann)
    assert len(desk.asked) == 4


async def test_whoever_does_not_count_any_more_is_asked_again(callers: Callers, desk: Desk) -> None:
    ann = Credentials("", "ann", b"right")
    await callers.identity(PEER, ann)
    desk.known[0].problem = "gone"
    with pytest.raises(LoginError, match="gone"):
        await callers.identity(PEER, ann)
    await callers.identity(PEER, ann)
    assert len(desk.asked) == 2


async def test_a_wrong_password_is_checked_each_time(callers: Callers, desk: Desk) -> None:
    for _ in range(2):
        with pytest.raises(LoginError, match="wrong password"):
            await callers.identity(PEER, Credentials("", "ann", b"wrong"))
    assert len(desk.asked) == 2
    with pytest.raises(LoginError, match="required"):
        await callers.identity(PEER, Credentials("", "ann", None))


async def test_what_is_remembered_is_bounded(
    callers: Callers, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_callers, "_REMEMBERED_MAX", 2)
    for name in ("a", "b", "a", "c", "a", "b"):
        await callers.identity(PEER, Credentials("", name, b"right"))
    assert [item.username for item in desk.asked] == ["a", "b", "c", "b"]
    assert len(callers._known) == 2


def test_credentials_do_not_show() -> None:
    assert "secret" not in repr(Credentials("secret", "ann", b"secret"))
