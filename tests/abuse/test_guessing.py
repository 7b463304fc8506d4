"""Floods of wrong passwords: the right one gets in, and few of the others cost anything.

Nothing here looks at a watch: what is counted is how many passwords were checked before the right one
was. The check itself is replaced by one that begins when everybody is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tidegate.broker.sessions import authentication
from tidegate.broker.sessions import checks as broker_checks
from tidegate.broker.sessions.checks import WAITER_BYTES
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_auth_file import _hashes

FLOOD = 250
#: Checks that may come before the right one; with the defence off, all of the flood do.
BEFORE_MAX = 20
LIMIT_S = 120.0

SESAME = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="


class Checks:
    """What the extension checks, from when it may.

    Attributes: go: it may; passwords: what was checked, in order; most: at a time.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.passwords: list[str] = []
        self.running = self.most = 0
        self._lock = threading.Lock()

    def matches(self, password: str) -> bool:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.go.wait(LIMIT_S)
        with self._lock:
            self.running -= 1
            self.passwords.append(password)
        return password == "sesame"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Checks]:
    made = Checks()
    monkeypatch.setattr(_hashes.Sha1, "matches", lambda _found, password: made.matches(password))
    yield made
    made.go.set()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.touch(0o600)
    path.write_text(f"alice:{SESAME}\nbob:{SESAME}\n")
    return path


def config(users: Path, **broker: str) -> str:
    """In memory; a client has all the time to be answered; delays that cost a test little."""
    options = {"login_delay": "'20ms'", "login_delay_max": "'100ms'"} | broker
    return (
        "[broker]\npersistent = false\n"
        + "".join(f"{key} = {value}\n" for key, value in options.items())
        + f"[[extensions]]\nplugin = 'auth-file'\nusers = '{users}'\n"
        + "[[listeners]]\nprotocol = 'mqtt'\nbind = '127.0.0.1:0'\n"
        + f"connect_timeout = '{LIMIT_S:.0f}s'\n"
    )


def field(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def connect(client_id: str, username: str, password: str) -> bytes:
    shown = field(client_id) + field(username) + field(password)
    rest = field("MQTT") + bytes((4, 0xC2, 0, 0)) + shown
    return bytes((0x10, len(rest))) + rest


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def socket(gateway: EmbeddedGateway, address: str = "127.0.0.1") -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", gateway.mqtt_port, local_addr=(address, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def door(gateway: EmbeddedGateway) -> broker_checks.Checks:
    return gateway.gateway.broker._authentication.checks


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def there(gateway: EmbeddedGateway) -> int:
    """How many are being checked, or wait for it."""
    return door(gateway).waiting_count + door(gateway).running_count


async def log_in(
    gateway: EmbeddedGateway, checks: Checks, client_id: str, username: str, address: str
) -> bytes:
    """Log in with the right password, when nobody was checked before; the CONNACK's last byte."""
    before = there(gateway)
    async with asyncio.timeout(LIMIT_S), socket(gateway, address) as (reader, writer):
        writer.write(connect(client_id, username, "sesame"))
        if not checks.go.is_set():
            await until(lambda: there(gateway) > before)
            checks.go.set()
        return (await reader.readexactly(4))[-1:]


@asynccontextmanager
async def flood(
    gateway: EmbeddedGateway, *, usernames: int = 0, addresses: int = 1
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Many wrong passwords for alice, or for so many others, from so many addresses."""
    async with AsyncExitStack() as stack:
        pairs = [
            await stack.enter_async_context(
                socket(gateway, f"127.0.0.{1 if addresses == 1 else 10 + number % addresses}")
            )
            for number in range(FLOOD)
        ]
        for number, (_, writer) in enumerate(pairs):
            username = f"user{number % usernames}" if usernames else "alice"
            writer.write(connect(f"guess{number}", username, f"wrong{number}"))
        yield [reader for reader, _ in pairs]


@pytest.mark.parametrize(
    ("username", "address"),
    [("alice", "127.0.0.2"), ("bob", "127.0.0.1"), ("alice", "127.0.0.1")],
    ids=["from elsewhere", "another user of that address", "the same user of that address"],
)
async def test_the_right_password_gets_in_while_many_guess(
    users: Path, checks: Checks, username: str, address: str
) -> None:
    async with EmbeddedGateway(config(users)) as gateway, flood(gateway) as readers:
        await until(lambda: there(gateway) == FLOOD)
        assert await log_in(gateway, checks, "device", username, address) == b"\0"
        assert checks.passwords.index("sesame") <= BEFORE_MAX
        assert checks.most <= 2  # whoever floods has no more of the machine than two threads
        async with asyncio.timeout(LIMIT_S):  # what those hear whose password was looked at
            assert await readers[0].readexactly(4) == b"\x20\x02\0\4"


@pytest.mark.parametrize(
    "address", ["127.0.0.2", "127.0.0.1"], ids=["from elsewhere", "from there"]
)
async def test_the_right_password_gets_in_while_many_users_are_guessed(
    users: Path, checks: Checks, address: str
) -> None:
    """Thirty failures of one address cost it nothing; then it has one check at a time."""
    async with (
        EmbeddedGateway(config(users)) as gateway,
        flood(gateway, usernames=FLOOD),
    ):
        await until(lambda: there(gateway) == FLOOD)
        assert await log_in(gateway, checks, "device", "alice", address) == b"\0"
        assert checks.passwords.index("sesame") <= 30 + BEFORE_MAX


async def test_the_right_password_gets_in_while_many_addresses_guess(
    users: Path, checks: Checks
) -> None:
    """It waits for one check of each of them; a client that is known for nearly none."""
    addresses = 25
    async with EmbeddedGateway(config(users)) as gateway:
        checks.go.set()
        known = "127.0.0.200"
        assert await log_in(gateway, checks, "known", "alice", known) == b"\0"
        checks.go.clear()
        async with flood(gateway, addresses=addresses):
            await until(lambda: there(gateway) == FLOOD)
            before = len(checks.passwords)
            assert await log_in(gateway, checks, "device", "alice", "127.0.0.2") == b"\0"
            assert checks.passwords[before:].index("sesame") <= addresses + BEFORE_MAX
            before = len(checks.passwords)
            assert await log_in(gateway, checks, "known", "alice", known) == b"\0"
            assert checks.passwords[before:].index("sesame") <= BEFORE_MAX


async def test_with_the_defence_off_it_waits_behind_them_all(
    users: Path, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: no delay, and nobody's address counts."""
    monkeypatch.setattr(authentication, "address_of", lambda peer: "everybody")
    config_ = config(users, login_delay="0")
    async with EmbeddedGateway(config_) as gateway, flood(gateway):
        await until(lambda: there(gateway) == FLOOD)
        assert await log_in(gateway, checks, "device", "alice", "127.0.0.2") == b"\0"
        assert checks.passwords.index("sesame") > FLOOD - BEFORE_MAX


async def test_who_leaves_before_its_password_was_checked_costs_nothing(
    users: Path, checks: Checks
) -> None:
    async with EmbeddedGateway(config(users)) as gateway:
        async with flood(gateway):
            await until(lambda: there(gateway) == FLOOD)
        await until(lambda: there(gateway) == 0)
        assert await log_in(gateway, checks, "device", "alice", "127.0.0.2") == b"\0"
        assert len(checks.passwords) <= 3  # the two that threads had begun, and the right one


async def test_a_flood_that_waits_takes_no_more_memory_than_it_may(
    users: Path, checks: Checks
) -> None:
    """Those that have waited longest hear that the gateway cannot."""
    limit = 64 << 10
    config_ = config(users, login_waiting_limit="'64kb'")
    async with EmbeddedGateway(config_) as gateway, flood(gateway) as readers:
        answers = [asyncio.create_task(reader.read(4)) for reader in readers]
        refused = FLOOD - limit // WAITER_BYTES - 8
        await until(lambda: sum(answer.done() for answer in answers) >= refused)
        assert door(gateway)._waiting_bytes <= limit
        assert {answer.result() for answer in answers if answer.done()} == {b"\x20\x02\0\3"}
        checks.go.set()
        assert await log_in(gateway, checks, "device", "alice", "127.0.0.2") == b"\0"
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
