"""User name and password, and the methods that are offered."""

import asyncio
import threading

import pytest

from tidegate.spi import (
    AccessError,
    Authenticator,
    Authorizer,
    EnhancedAuthenticator,
    Interceptor,
    Principal,
    parse_options,
)
from tidegate_auth_file import _authenticator
from tidegate_auth_file._authenticator import ScramAuthenticator, ScramOptions


@pytest.fixture
def authenticator(users_file, line):
    path = users_file(line("alice", "secret"), line("bob", "se\u00a0cret", "SCRAM-SHA-512"))
    return ScramAuthenticator(ScramOptions(path))


def test_it_is_both_kinds_of_authenticator_and_nothing_else(authenticator):
    assert isinstance(authenticator, Authenticator)
    assert isinstance(authenticator, EnhancedAuthenticator)
    assert not isinstance(authenticator, Authorizer | Interceptor)
    assert repr(authenticator) == "scram"


@pytest.mark.parametrize(
    ("name", "password", "principal"),
    [
        ("alice", b"secret", "alice"),
        ("al\u00adice", b"secret", "alice"),
        ("bob", b"se cret", "bob"),
    ],
)
async def test_a_correct_password_gives_the_name(
    authenticator, credentials, name, password, principal
):
    assert await authenticator.authenticate(credentials(name, password)) == Principal(principal)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", b"Secret"),
        ("alice", b""),
        ("alice", b"\xff"),
        ("alice", b"\0"),
        ("alice", b"secret" * 1000),
        ("nobody", b"secret"),
        ("", b"secret"),
        ("a\nb", b"secret"),
        ("x" * 5000, b"secret"),
    ],
)
async def test_anything_else_is_refused_in_the_same_words(
    authenticator, credentials, name, password
):
    with pytest.raises(AccessError) as caught:
        await authenticator.authenticate(credentials(name, password))
    assert caught.value.problem == "wrong user name or password"
    assert "secret" not in str(caught.value)


async def test_a_client_without_a_password_is_left_to_others(authenticator, credentials):
    assert await authenticator.authenticate(credentials("alice")) is None
    assert await authenticator.authenticate(credentials("")) is None


async def test_the_offered_methods_can_be_begun_and_others_not(authenticator, credentials):
    assert authenticator.methods == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    for method in authenticator.methods:
        exchange = authenticator.begin(method, credentials("somebody else"))
        assert (await exchange.step(b"n,,n=alice,r=abc")).startswith(b"r=abc")
    with pytest.raises(AccessError, match="SCRAM-SHA-1"):
        authenticator.begin("SCRAM-SHA-1", credentials("alice"))


async def test_a_changed_password_counts_at_once(users_file, line, credentials):
    authenticator = ScramAuthenticator(ScramOptions(users_file(line("alice", "old"))))
    assert await authenticator.authenticate(credentials("alice", b"old")) == Principal("alice")
    users_file(line("alice", "new"))
    assert await authenticator.authenticate(credentials("alice", b"new")) == Principal("alice")
    with pytest.raises(AccessError):
        await authenticator.authenticate(credentials("alice", b"old"))


async def test_no_more_passwords_are_checked_at_a_time_than_allowed(
    users_file, line, credentials, monkeypatch
):
    """And a client that went away while it waited costs nothing."""
    authenticator = ScramAuthenticator(ScramOptions(users_file(line("alice", "a")), checks_max=2))
    go = threading.Event()
    both = threading.Event()
    lock = threading.Lock()
    checking: list[str] = []

    def check(password, verifier):
        with lock:
            checking.append(password)
            if len(checking) == 2:
                both.set()
        assert go.wait(60)
        return True

    monkeypatch.setattr(_authenticator, "is_correct", check)

    tasks = [
        asyncio.create_task(authenticator.authenticate(credentials("alice", b"%d" % number)))
        for number in range(4)
    ]
    await asyncio.to_thread(both.wait, 30)
    assert sorted(checking) == ["0", "1"]
    tasks[3].cancel()
    go.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[:3] == [Principal("alice")] * 3
    assert isinstance(done[3], asyncio.CancelledError)
    assert sorted(checking) == ["0", "1", "2"]


async def test_a_flood_is_refused_instead_of_waiting(authenticator, credentials, monkeypatch):
    monkeypatch.setattr(_authenticator, "WAITING_MAX", 3)

    done = await asyncio.gather(
        *(authenticator.authenticate(credentials("alice", b"secret")) for _ in range(5)),
        return_exceptions=True,
    )
    assert done[:3] == [Principal("alice")] * 3
    assert all("try again later" in str(error) for error in done[3:])
    assert await authenticator.authenticate(credentials("alice", b"secret")) == Principal("alice")


def test_the_options_are_read_from_a_table(users_file):
    path = users_file()
    assert parse_options(ScramOptions, {"users": str(path)}) == ScramOptions(path, 2)
