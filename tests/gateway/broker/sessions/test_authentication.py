"""Challenge-response authentication: an exchange stands for the credentials."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from broker_harness import Broker, Client, connect_request, message

from tidegate.broker.sessions.failed_logins import Attempt
from tidegate.plugin_exit import PluginExitError
from tidegate.spi import (
    AccessError,
    Action,
    AuthenticationExchange,
    Credentials,
    FlowControlError,
    Identity,
    Principal,
    Verdict,
)


class Riddle:
    """An exchange: the client must say the answer; crashes on b"crash"."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.claimed = ""
        self.principal: Principal | None = None

    async def step(self, data: bytes) -> bytes:
        if data == b"":
            return b"what goes up?"
        if data.startswith(b"I am "):
            self.claimed = data[5:].decode()
            return b"what goes up?"
        if data == b"exit":
            sys.exit(3)
        if data != b"smoke":
            raise AccessError("wrong answer")
        self.principal = Principal("sphinx-friend")
        return b"pass"


class Sphinx:
    """An extension that offers one method."""

    def __init__(self, *methods: str, bug: BaseException | None = None) -> None:
        self._methods = methods
        self._bug = bug
        self.begun: list[Riddle] = []

    @property
    def methods(self) -> Sequence[str]:
        return self._methods

    def begin(self, method: str, credentials: Credentials) -> Riddle:
        assert method in self._methods
        if self._bug is not None:
            raise self._bug
        self.begun.append(Riddle(credentials))
        return self.begun[-1]


async def test_a_finished_exchange_stands_for_the_credentials() -> None:
    sphinx = Sphinx("RIDDLE")
    async with Broker(extensions=[sphinx]) as broker:
        request = connect_request("mqtt", "c", anonymous_allowed=False, tls_subject="CN=c")
        exchange = broker.core.begin_authentication("RIDDLE", request)
        assert exchange is not None
        assert sphinx.begun[0].credentials.client_id == "c"
        assert sphinx.begun[0].credentials.tls_subject == "CN=c"
        assert await exchange.step(b"") == b"what goes up?"
        assert await exchange.step(b"smoke") == b"pass"
        client = await broker.client("mqtt", "c", anonymous_allowed=False, exchange=exchange)
        assert client.connection.principal == "sphinx-friend"


async def test_an_unfinished_exchange_does_not_even_let_anonymous_clients_in() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        exchange = broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))
        with pytest.raises(AccessError, match="not completed"):
            await broker.client("mqtt", "c", anonymous_allowed=True, exchange=exchange)


async def test_a_certificate_decides_and_an_exchange_must_end_in_the_same_name() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        client = await broker.client(tls_principal=Principal("ann"), username="bob", password=b"x")
        assert client.connection.principal == "ann"
        sensors = frozenset({"sensors"})
        until = broker.core.now() + 9_000_000
        client = await broker.client(tls_principal=Principal("ann", sensors, until))
        assert client.connection.identity.groups == sensors
        broker.core.rights_changed()
        assert client.connection.identity.groups == sensors
        await asyncio.sleep(12)
        assert isinstance(client.ended, AccessError)  # as its certificate has
        for wrong in ("", "anonymous"):
            with pytest.raises(AccessError):
                await broker.client(tls_principal=Principal(wrong), anonymous_allowed=True)
        exchange = broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))
        assert exchange is not None
        for answer in (b"", b"smoke"):  # under way, and done
            await exchange.step(answer)
            with pytest.raises(AccessError, match="two different users"):
                await broker.client("mqtt", "c", exchange=exchange, tls_principal=Principal("ann"))
        friend = Principal("sphinx-friend", sensors, broker.core.now() + 9_000_000)
        client = await broker.client("mqtt", exchange=exchange, tls_principal=friend)
        assert client.connection.principal == "sphinx-friend"
        client.connection.authenticated_again(exchange)  # which has no groups and no end
        assert client.connection.identity.groups == sensors
        await asyncio.sleep(12)
        assert isinstance(client.ended, AccessError)


async def test_a_method_that_nobody_offers_has_no_exchange() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        request = connect_request("mqtt", "c")
        assert broker.core.begin_authentication("KERBEROS", request) is None


async def test_the_first_extension_that_offers_a_method_has_it() -> None:
    extensions = [Sphinx("RIDDLE"), Sphinx("RIDDLE", "OTHER", bug=OSError("no users file"))]
    async with Broker(extensions=extensions) as broker:
        request = connect_request("mqtt", "c")
        assert broker.core.begin_authentication("RIDDLE", request) is not None


async def test_an_extension_that_cannot_begin_refuses(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("failed peer=")

    async with Broker(extensions=[Sphinx("RIDDLE", bug=bug)]) as broker:
        with pytest.raises(AccessError, match="authentication failed"):
            broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))


class Door:
    """An authenticator that takes a second to look, and knows who its users are.

    Attributes: looks: how often it looked; fails: it is out of order.
    """

    def __init__(self, **passwords: bytes) -> None:
        self.passwords = passwords
        self.groups: dict[str, frozenset[str]] = {}
        self.looks = 0
        self.fails = False

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.password is None:
            return None
        self.looks += 1
        if self.fails:
            raise OSError("out of order")
        await asyncio.sleep(1)
        if self.passwords.get(credentials.username) != credentials.password:
            raise AccessError("wrong user name or password", principal=credentials.username)
        return self.known(credentials.username)

    def known(self, name: str) -> Principal:
        return Principal(name, self.groups.get(name, frozenset()), 0, repr(self.passwords[name]))

    def principal_now(self, principal: Principal) -> Principal | None:
        name = principal.name
        is_it = name in self.passwords and principal.proof in ("", repr(self.passwords[name]))
        return self.known(name) if is_it else None


def knock(
    broker: Broker, password: bytes = b"wrong", peer: str = "10.0.0.1:1", name: str = "alice"
) -> asyncio.Task[Client]:
    return asyncio.ensure_future(
        broker.client(anonymous_allowed=False, username=name, password=password, peer=peer)
    )


def elapsed() -> float:
    return asyncio.get_running_loop().time()


async def test_a_flood_of_wrong_passwords_locks_nobody_out() -> None:
    async with Broker(extensions=[Door(alice=b"right")]) as broker:
        flood = [knock(broker) for _ in range(1000)]
        begin = elapsed()
        assert (await knock(broker, b"right", "10.0.0.2:1")).connection.principal == "alice"
        assert elapsed() - begin <= 2
        await asyncio.sleep(30)
        begin = elapsed()
        assert (await knock(broker, b"right")).connection.principal == "alice"
        assert elapsed() - begin <= 7  # the longest pause, and a look before and after it
        for task in flood:
            task.cancel()
        done = await asyncio.gather(*flood, return_exceptions=True)
        refused = [error for error in done if isinstance(error, AccessError)]
        assert refused
        assert {error.problem for error in refused} == {"wrong user name or password"}
        counts = broker.core.client_counts()
        assert counts["logins.refused"] == len(refused)
        assert counts["logins.abandoned"] == 1000 - len(refused) - 8  # who were being checked
        assert 990 <= int(counts["logins.delayed"]) <= 1002
        assert (
            counts["logins.checking"] == counts["logins.waiting"] == counts["logins.dropped"] == 0
        )
        assert counts["logins.failures.bytes"]


async def test_a_client_that_left_is_never_looked_at() -> None:
    door = Door(alice=b"right")
    async with Broker(extensions=[door], login_checks_max=1) as broker:
        first, second = knock(broker), knock(broker)
        await asyncio.sleep(0.5)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(60)
        assert door.looks == 1


@pytest.mark.parametrize(("count", "is_slowed"), [(30, False), (31, True)])
async def test_who_leaves_in_the_middle_of_its_check_counts_against_its_address(
    count: int, is_slowed: bool
) -> None:
    """Or one who never waits for the answer would have checks without end."""
    door = Door(alice=b"right")
    async with Broker(extensions=[door]) as broker:
        for number in range(count):
            task = knock(broker, name=f"user{number}")
            await asyncio.sleep(0.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert door.looks == count
        failed = broker.core._authentication.failed_logins
        assert (failed.address_pause_s("10.0.0.1", elapsed()) is not None) is is_slowed
        assert failed.pause_s(Attempt("10.0.0.1", "user1", ""), elapsed()) is None
        begin = elapsed()
        await knock(broker, b"right")
        assert elapsed() - begin <= 1.25


async def test_who_shows_no_password_waits_for_nobody() -> None:
    async with Broker(extensions=[Door(alice=b"right")], login_checks_max=1) as broker:
        flood = [knock(broker) for _ in range(10)]
        begin = elapsed()
        assert (await broker.client()).connection.principal == "anonymous"
        assert elapsed() == begin
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_an_authenticator_that_is_out_of_order_makes_nobody_suspect(
    logged_errors: list[str],
) -> None:
    logged_errors.append("failed peer=")
    door = Door(alice=b"right")
    async with Broker(extensions=[door]) as broker:
        door.fails = True
        for _ in range(20):
            with pytest.raises(AccessError, match="authentication failed"):
                await knock(broker)
        door.fails = False
        begin = elapsed()
        await knock(broker, b"right")
        assert elapsed() - begin == pytest.approx(1)


async def test_an_exit_in_an_exchange_is_an_error_of_its_extension() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        exchange = broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))
        assert exchange is not None
        with pytest.raises(PluginExitError, match=r"plugin \w+: it called sys.exit\(3\)"):
            await exchange.step(b"exit")


async def test_answers_in_an_exchange_are_counted_and_delayed_too() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        begin = elapsed()
        for _ in range(6):
            exchange = broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "c"))
            assert exchange is not None
            with pytest.raises(AccessError, match="wrong answer"):
                await exchange.step(b"mirrors")
        assert elapsed() - begin == pytest.approx(0.25 + 0.5)
        other = broker.core.begin_authentication("RIDDLE", connect_request("mqtt", "d"))
        assert other is not None
        begin = elapsed()
        assert await other.step(b"smoke") == b"pass"
        assert elapsed() == begin


async def test_what_a_directory_does_not_know_of_a_login_stays() -> None:
    class Short(Door):
        async def authenticate(self, credentials: Credentials) -> Principal | None:
            until = broker.core.now() + 9_000_000
            return Principal("alice", frozenset("old"), until, repr(b"right"))

    door = Short(alice=b"right")
    door.groups["alice"] = frozenset("new")
    async with Broker(extensions=[door]) as broker:
        client = await knock(broker, b"right")
        assert client.connection.identity.groups == frozenset("new")
        broker.core.rights_changed()
        assert client.ended is None
        await asyncio.sleep(12)
        assert "expired" in str(client.ended)


async def test_guesses_in_an_exchange_count_for_who_was_claimed() -> None:
    """Not for the client id, of which who guesses has as many as it wants."""
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        begin = elapsed()
        for number in range(6):
            request = connect_request("mqtt", f"c{number}")
            exchange = broker.core.begin_authentication("RIDDLE", request)
            assert exchange is not None
            assert await exchange.step(b"I am alice") == b"what goes up?"
            assert exchange.claimed == "alice"
            with pytest.raises(AccessError, match="wrong answer"):
                await exchange.step(b"mirrors")
        assert elapsed() - begin == pytest.approx(0.25 + 0.5)


async def test_spellings_of_a_name_are_one_user() -> None:
    async with Broker(extensions=[Door(alice=b"right")]) as broker:
        begin = elapsed()
        for name in ("alice", "al\u00adice", "ALICE", "a\u200blice", "\uff41lice", "\u2060alice"):
            with pytest.raises(AccessError, match="wrong"):
                await knock(broker, name=name)
        assert elapsed() - begin == pytest.approx(6 + 0.25 + 0.5)


async def test_too_many_that_wait_are_refused_so_that_they_try_again() -> None:
    door = Door(alice=b"right")
    async with Broker(extensions=[door], login_checks_max=1, login_waiting_limit=1 << 16) as broker:
        done = await asyncio.gather(*(knock(broker) for _ in range(60)), return_exceptions=True)
        refused = [error for error in done if isinstance(error, FlowControlError)]
        assert 20 < len(refused) < 40
        assert broker.core.client_counts()["logins.dropped"] == len(refused)
        assert door.looks == 60 - len(refused)


async def test_users_that_are_gone_are_disconnected_and_groups_are_those_of_now() -> None:
    door = Door(alice=b"a", bob=b"b")
    async with Broker(extensions=[door]) as broker:
        alice = await knock(broker, b"a", name="alice")
        bob = await knock(broker, b"b", name="bob")
        anonymous = await broker.client()
        del door.passwords["alice"]
        door.groups["bob"] = frozenset({"ops"})
        broker.core.rights_changed()
        assert isinstance(alice.ended, AccessError)
        assert "user no longer exists" in str(alice.ended)
        assert bob.ended is None
        assert bob.connection.identity.groups == {"ops"}
        assert anonymous.ended is None
        door.passwords["bob"] = b"another"
        broker.core.rights_changed()
        assert "log in again" in str(bob.ended)
        assert anonymous.ended is None


async def test_who_is_nobody_any_more_when_the_exchange_ends_does_not_get_in() -> None:
    """What was shown is checked long before the client is let in, or lets itself in again."""

    class Closing(Sphinx):
        is_open = True

        def principal_now(self, principal: Principal) -> Principal | None:
            return principal if self.is_open else None

    sphinx = Closing("RIDDLE")
    async with Broker(extensions=[sphinx]) as broker:
        request = connect_request("mqtt", "c")

        async def solved() -> AuthenticationExchange:
            exchange = broker.core.begin_authentication("RIDDLE", request)
            assert exchange is not None
            await exchange.step(b"smoke")
            return exchange

        client = await broker.client("mqtt", "c", exchange=await solved())
        again, first = await solved(), await solved()
        sphinx.is_open = False
        with pytest.raises(AccessError, match="is no longer valid"):
            client.connection.authenticated_again(again)
        with pytest.raises(AccessError, match="is no longer valid"):
            await broker.client("mqtt", "d", exchange=first)


async def test_a_token_without_a_user_name_is_counted_for_its_client() -> None:
    """Or one device with an old token would slow down all that are behind the same address."""
    async with Broker(extensions=[Door()]) as broker:
        for number in range(12):
            with pytest.raises(AccessError, match="wrong"):
                await broker.client("mqtt", f"c{number % 2}", password=b"old")
        failed = broker.core._authentication.failed_logins
        now = elapsed()
        assert failed.pause_s(Attempt("127.0.0.1", "c0", "c0"), now) is not None
        assert failed.pause_s(Attempt("127.0.0.1", "c5", "c5"), now) is None
        assert failed.pause_s(Attempt("127.0.0.1", "", "c5"), now) is None


async def test_who_authenticates_again_stays_for_as_long_as_the_new_exchange_says() -> None:
    async with Broker(extensions=[Sphinx("RIDDLE")]) as broker:
        now = broker.core.now()
        request = connect_request("mqtt", "c")

        async def solved(expires_at: int, name: str = "oedipus") -> AuthenticationExchange:
            exchange = broker.core.begin_authentication("RIDDLE", request)
            assert exchange is not None
            await exchange.step(b"smoke")
            exchange._exchange.principal = Principal(  # type: ignore[attr-defined]
                name, frozenset({"thebes"}), expires_at
            )
            return exchange

        exchange = await solved(now + 5_000_000)
        client = await broker.client("mqtt", "c", exchange=exchange)
        await asyncio.sleep(3)
        client.connection.authenticated_again(await solved(now + 60_000_000))
        assert client.connection.identity.groups == {"thebes"}
        with pytest.raises(AccessError, match="as a different user"):
            client.connection.authenticated_again(await solved(0, "laius"))
        await asyncio.sleep(30)
        assert client.ended is None
        await asyncio.sleep(30)
        assert isinstance(client.ended, AccessError)
        forever = await broker.client(
            "mqtt", "c", exchange=await solved(broker.core.now() + 9_000_000)
        )
        forever.connection.authenticated_again(await solved(0))
        await asyncio.sleep(60)
        assert forever.ended is None


class ByGroup:
    """What begins with ``topic://g.GROUP`` is for that group."""

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if not destination.startswith("topic://"):
            return Verdict.ALLOW
        levels = destination.removeprefix("topic://").split(".")
        if levels == ["g", "*"]:
            return Verdict.FILTER
        return Verdict.ALLOW if levels[1] in identity.groups else Verdict.DENY


def away(groups: str, **passwords: bytes) -> tuple[Door, ByGroup]:
    """Extensions, and bob in these groups."""
    door = Door(bob=b"b", **passwords)
    door.groups["bob"] = frozenset(groups.split())
    return door, ByGroup()


STORED: dict[str, Any] = {"clean_start": False, "session_expiry": 1000, "username": "bob"}


async def test_who_is_away_has_the_groups_of_when_it_comes_back() -> None:
    door, by_group = away("a b", ann=b"a")
    door.groups["ann"] = frozenset("ab")
    async with Broker(extensions=[door, by_group]) as broker:

        async def bob(client_id: str) -> Client:
            client = await broker.client("mqtt", client_id, password=b"b", **STORED)
            await broker.settle()
            return client

        one, every = await bob("one"), await bob("every")
        one.subscribe("topic://g.a", "one", durable_name="one", qos=1)
        every.subscribe("topic://g.*", "every", durable_name="every", qos=1)
        for client in (one, every):
            client.connection.disconnect(graceful=True)
        ann = await knock(broker, b"a", name="ann")
        for group in "ab":
            ann.send(f"topic://g.{group}", group)
        await broker.settle()
        door.groups["bob"] = frozenset("b")
        await broker.kill()
        one, every = await bob("one"), await bob("every")
        assert one.result is not None
        assert [item.name for item in one.result.refused] == ["one"]
        assert one.bodies() == []
        assert every.bodies() == [b"b"]
        one.connection.disconnect(graceful=True)
        door.groups["bob"] = frozenset("ab")
        broker.core.rights_changed()
        assert (await bob("one")).bodies() == [b"a"]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    ("groups", "is_published"), [("a", True), ("b", False), ("", False), (None, False)]
)
async def test_a_will_has_the_groups_of_when_it_is_published(
    groups: str | None, is_published: bool, is_killed: bool, logged_errors: list[str]
) -> None:
    logged_errors.append("will=lost")
    door, by_group = away("a")
    will = message("topic://g.a", "gone", retain=True)
    async with Broker(extensions=[door, by_group]) as broker:
        bob = await broker.client("mqtt", "c", password=b"b", will=will, will_delay=20, **STORED)
        bob.connection.disconnect(graceful=False)
        await broker.settle()
        door.passwords["bob"] = b"another"
        if groups is None:
            del door.passwords["bob"]
        else:
            door.groups["bob"] = frozenset(groups.split())
        if is_killed:
            await broker.kill()
        else:
            broker.core.rights_changed()
        await asyncio.sleep(60)
        await broker.settle()
        assert (broker.core.retained.get("topic://g.a") is not None) is is_published


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_will_of_a_certificate_has_the_groups_of_the_certificate(is_killed: bool) -> None:
    door, by_group = away("")  # another bob, who has a password and no group
    ann = Principal("bob", frozenset("a"))
    will = message("topic://g.a", "gone", retain=True)
    async with Broker(extensions=[door, by_group]) as broker:
        client = await broker.client(
            "mqtt", "c", tls_principal=ann, will=will, will_delay=20, **STORED
        )
        client.connection.disconnect(graceful=False)
        await broker.settle()
        if is_killed:
            await broker.kill()
        await asyncio.sleep(60)
        await broker.settle()
        assert broker.core.retained.get("topic://g.a") is not None
