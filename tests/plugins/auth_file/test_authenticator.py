"""User name and password, and the methods that are offered."""

import asyncio
import threading
from dataclasses import replace

import pytest

from tidegate.spi import (
    AccessError,
    Authenticator,
    Authorizer,
    Directory,
    EnhancedAuthenticator,
    Interceptor,
    KnownUser,
    Principal,
    Service,
    UserList,
    parse_options,
)
from tidegate_auth_file import _authenticator, _edit, _hashes
from tidegate_auth_file._authenticator import AuthFileOptions, FileAuthenticator


@pytest.fixture
def authenticator(users_file, line):
    path = users_file(line("alice", "secret"), line("bob", "se\u00a0cret", "SCRAM-SHA-512"))
    return FileAuthenticator(AuthFileOptions(path))


def test_it_is_both_kinds_of_authenticator_and_nothing_else(authenticator):
    assert isinstance(authenticator, Authenticator)
    assert isinstance(authenticator, EnhancedAuthenticator)
    assert not isinstance(authenticator, Authorizer | Interceptor)
    assert repr(authenticator) == "auth-file"


def test_it_lists_its_users_and_none_of_their_secrets(users_file, line):
    path = users_file(
        line("alice", "secret"),
        line("bob", "secret", "SCRAM-SHA-512"),
        line("bob", "secret"),
        "!groups:senders,readers:bob",
    )
    found = FileAuthenticator(AuthFileOptions(path))
    assert isinstance(found, UserList)
    assert sorted(found.user_names()) == ["alice", "bob"]
    assert found.known_user("alice") == KnownUser("alice", frozenset(), ("SCRAM-SHA-256",))
    bob = found.known_user("bob")
    assert bob is not None
    assert bob.groups == {"senders", "readers"}
    assert sorted(bob.checks) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert found.known_user("nobody") is None


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
    authenticator = FileAuthenticator(AuthFileOptions(users_file(line("alice", "old"))))
    assert await authenticator.authenticate(credentials("alice", b"old")) == Principal("alice")
    users_file(line("alice", "new"))
    assert await authenticator.authenticate(credentials("alice", b"new")) == Principal("alice")
    with pytest.raises(AccessError):
        await authenticator.authenticate(credentials("alice", b"old"))


async def test_no_more_passwords_are_checked_at_a_time_than_allowed(
    users_file, line, credentials, monkeypatch
):
    """And a client that went away while it waited costs nothing."""
    authenticator = FileAuthenticator(AuthFileOptions(users_file(line("alice", "a")), checks_max=2))
    go = threading.Event()
    both = threading.Event()
    lock = threading.Lock()
    checking: list[str] = []

    def check(verifier, password):
        with lock:
            checking.append(password)
            if len(checking) == 2:
                both.set()
        assert go.wait(60)
        return True

    monkeypatch.setattr(_hashes.Scram, "matches", check)

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


def test_the_options_are_read_from_a_table(users_file):
    path = users_file()
    assert parse_options(AuthFileOptions, {"users": str(path)}) == AuthFileOptions(
        path, 2, 128 << 20, False
    )


SESAME = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="


async def test_groups_come_with_the_name(users_file, hashed, credentials):
    path = users_file(hashed("alice", "secret"), "!groups:ops:alice")
    authenticator = FileAuthenticator(AuthFileOptions(path))
    principal = Principal("alice", frozenset({"ops"}))
    found = await authenticator.authenticate(credentials("alice", b"secret"))
    assert found is not None
    assert found == principal
    assert authenticator.principal_now(found) == principal
    assert authenticator.principal_now(replace(found, name="bob")) is None
    assert authenticator.principal_now(principal) == principal  # by name alone
    assert authenticator.principal_now(Principal("bob")) is None


async def test_who_has_another_password_is_not_who_was_let_in(
    users_file, hashed, line, credentials, monkeypatch
):
    authenticator = FileAuthenticator(
        AuthFileOptions(users_file(hashed("alice", "a"), line("bob", "b")))
    )
    alice = await authenticator.authenticate(credentials("alice", b"a"))
    bob = await authenticator.authenticate(credentials("bob", b"b"))
    assert alice is not None
    assert bob is not None
    assert alice.proof != bob.proof
    told = []
    monkeypatch.setattr(authenticator._users, "_changed", lambda: told.append(1))
    users_file(hashed("alice", "a"), line("bob", "b"), "!groups:ops:alice")
    await authenticator._users.refresh()
    assert told == [1]
    # The same password anew is another one as far as anybody can tell.
    assert authenticator.principal_now(alice) is None
    assert authenticator.principal_now(bob) == bob
    users_file(hashed("bob", "b"), line("bob", "b"))
    await authenticator._users.refresh()
    assert authenticator.principal_now(bob) == bob  # it has one more
    users_file(hashed("bob", "c"))
    await authenticator._users.refresh()
    assert authenticator.principal_now(bob) is None
    assert len(told) == 3


async def test_without_any_user_a_password_costs_what_it_costs(
    users_file, credentials, monkeypatch
):
    asked = []
    monkeypatch.setattr(_hashes.Argon2, "matches", lambda found, password: asked.append(password))
    authenticator = FileAuthenticator(AuthFileOptions(users_file()))
    for _ in range(2):
        with pytest.raises(AccessError, match="wrong user name or password"):
            await authenticator.authenticate(credentials("alice", b"secret"))
    assert asked == ["secret", "secret"]


async def test_a_user_that_does_not_exist_is_checked_like_another(
    users_file, hashed, credentials, monkeypatch
):
    asked = []
    monkeypatch.setattr(_hashes.Argon2, "matches", lambda found, password: asked.append(password))
    authenticator = FileAuthenticator(AuthFileOptions(users_file(hashed("alice", "secret"))))
    with pytest.raises(AccessError, match="wrong user name or password"):
        await authenticator.authenticate(credentials("nobody", b"secret"))
    assert asked == ["secret"]


@pytest.mark.parametrize("others", [[], ["other"]])
async def test_a_user_that_is_removed_or_changed_while_checked_does_not_get_in(
    users_file, hashed, credentials, monkeypatch, others
):
    authenticator = FileAuthenticator(AuthFileOptions(users_file(hashed("alice", "secret"))))
    matches = _hashes.Argon2.matches

    def slowly(found, password):
        users_file(hashed("bob", "b"), *(hashed("alice", other) for other in others))
        asyncio.run_coroutine_threadsafe(authenticator._users.refresh(), loop).result(60)
        return matches(found, password)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(_hashes.Argon2, "matches", slowly)
    with pytest.raises(AccessError, match="wrong user name or password"):
        await authenticator.authenticate(credentials("alice", b"secret"))


class TestRehash:
    @pytest.fixture(autouse=True)
    def cheap(self, monkeypatch):
        make = _hashes.make_hash
        monkeypatch.setattr(
            _authenticator, "make_hash", lambda word: make(word, memory_kib=64, time_cost=1)
        )

    async def test_a_foreign_hash_is_replaced_when_its_user_logs_in(self, users_file, credentials):
        path = users_file("# ours", f"alice:{SESAME}", f"bob:{SESAME}", "!groups:ops:alice")
        authenticator = FileAuthenticator(AuthFileOptions(path, rehash=True))
        with pytest.raises(AccessError):
            await authenticator.authenticate(credentials("alice", b"wrong"))
        assert f"alice:{SESAME}" in path.read_text()
        for _ in range(2):
            await authenticator.authenticate(credentials("alice", b"sesame"))
        text = path.read_text()
        assert "alice:$argon2id$" in text
        assert f"bob:{SESAME}" in text
        assert "# ours" in text
        assert "!groups:ops:alice" in text
        principal = await authenticator.authenticate(credentials("alice", b"sesame"))
        assert principal == Principal("alice", frozenset({"ops"}))

    async def test_nobody_is_out_because_of_it(self, users_file, credentials, monkeypatch):
        path = users_file(f"alice:{SESAME}")
        authenticator = FileAuthenticator(AuthFileOptions(path, rehash=True))
        told = []
        monkeypatch.setattr(authenticator._users, "_changed", lambda: told.append(1))
        before = await authenticator.authenticate(credentials("alice", b"sesame"))
        await authenticator._users.refresh()
        after = await authenticator.authenticate(credentials("alice", b"sesame"))
        assert before is not None
        assert after is not None
        assert before.proof != after.proof
        assert authenticator.principal_now(before) == authenticator.principal_now(after) == after
        assert told == []

    async def test_unless_it_is_asked_for_hashes_stay(self, users_file, credentials):
        path = users_file(f"alice:{SESAME}")
        before = path.read_text()
        authenticator = FileAuthenticator(AuthFileOptions(path))
        await authenticator.authenticate(credentials("alice", b"sesame"))
        assert path.read_text() == before

    async def test_a_file_that_cannot_be_written_is_told_once_and_lets_in(
        self, users_file, credentials, monkeypatch, caplog
    ):
        def fails(*_):
            raise PermissionError(13, "Permission denied")

        path = users_file(f"alice:{SESAME}")
        monkeypatch.setattr(_edit, "_write", fails)
        authenticator = FileAuthenticator(AuthFileOptions(path, rehash=True))
        for _ in range(2):
            assert await authenticator.authenticate(credentials("alice", b"sesame")) is not None
        assert len(caplog.records) == 1
        assert "hashes are not replaced" in caplog.text


async def test_while_it_runs_it_watches_and_then_it_ends(users_file, hashed, monkeypatch):
    monkeypatch.setattr("tidegate_auth_file._directory.WATCH_INTERVAL_S", 0.001)
    path = users_file(hashed("alice", "a"), hashed("bob", "b"))
    authenticator = FileAuthenticator(AuthFileOptions(path))
    told = asyncio.Event()
    await authenticator.start(told.set)
    users_file(hashed("bob", "b"))
    await asyncio.wait_for(told.wait(), 60)
    assert authenticator._users.find_hash("alice")[1] is False
    await authenticator.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_it_keeps_the_contract_of_a_service_and_a_directory(users_file):
    made = FileAuthenticator(AuthFileOptions(users_file()))
    assert isinstance(made, Service)
    assert isinstance(made, Directory)
