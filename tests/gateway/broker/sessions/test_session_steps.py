"""A session with very many subscriptions ends, and is taken up, in steps: nobody waits for it but its client.

A walk goes one step further in each turn of the loop here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from broker_harness import Broker, Client, key_of

from tidegate.broker.connection import serving
from tidegate.broker.sessions import sessions
from tidegate.broker.turn import walks
from tidegate.spi import AccessError, Action, ConnectionEndedError, Identity, Verdict

STORED: dict[str, Any] = {"clean_start": False, "session_expiry": 1000}
COUNT = 100


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "SLICE_S", 0)


async def large(broker: Broker, client_id: str = "c", **more: Any) -> Client:
    """A client with a session of many subscriptions."""
    client = await broker.client("mqtt", client_id, **STORED)
    for number in range(COUNT):
        client.subscribe(f"topic://{number}", f"{number}", qos=1, durable_name=f"{number}", **more)
    await broker.settle()
    return client


async def most_in_a_turn(
    is_over: Callable[[], bool], count: Callable[[], int], before: int = 0
) -> int:
    """How much is done in one turn of the loop, at most, until it *is_over*. Args: before: *count*."""
    most = 0
    for _ in range(10_000):
        most, before = max(most, abs(count() - before)), count()
        if is_over():
            return most
        await asyncio.sleep(0)
    raise AssertionError("it never ends")


ENDS: dict[str, Callable[[Broker, Client], object]] = {
    "clean start": lambda broker, client: asyncio.ensure_future(broker.client("mqtt", "c")),
    "expiry": lambda broker, client: broker.core.flow.walks.begin(
        None for _ in broker.core.sessions.expire(1 << 60)
    ),
    "the connection": lambda broker, client: client.connection.disconnect(
        graceful=True, session_expiry=0
    ),
}


@pytest.mark.parametrize("is_sliced", [True, False])
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("more", [{}, {"share_group": "g"}], ids=["own", "shared"])
async def test_a_session_is_removed_in_steps(
    how: str, is_sliced: bool, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_sliced:
        monkeypatch.setattr(sessions, "REMOVED_AT_ONCE", 1 << 30)
    async with Broker() as broker:
        client = await large(broker, **more)
        if how == "expiry":
            client.connection.disconnect(graceful=True)
        lists = broker.core.destinations
        ended = ENDS[how](broker, client)
        most = await most_in_a_turn(
            lambda: not broker.core.sessions.get(key_of("c")),
            lambda: len(lists.durable) + len(lists.shared),
            COUNT,
        )
        assert most <= 16 if is_sliced else most == COUNT
        await broker.settle()
        if isinstance(ended, asyncio.Future):
            client = await ended
            assert not client.result.session_present
        assert not broker.contents.subscriptions
        assert not broker.contents.sessions


@pytest.mark.parametrize("count", [15, 16, 17])
@pytest.mark.parametrize("name", ["topic", "queue"])
async def test_a_kill_never_leaves_a_session_without_some_of_its_subscriptions(
    name: str, count: int
) -> None:
    """Whatever of its end is durable: it is there as it was, or its time is over."""
    async with Broker() as broker:
        client = await broker.client("mqtt", "c", **STORED)
        for number in range(count):
            key = str(number)
            client.subscribe(f"{name}://{key}", key, qos=1, durable_name=key)
        await broker.settle()
        session = broker.core.sessions.get(key_of("c"))
        assert session is not None
        broker.core.sessions.remove(session)
        while broker.contents.sessions:
            (stored,) = broker.contents.sessions.values()
            left = len(broker.contents.subscriptions)
            assert left == count or stored.expiry_interval == 0
            await asyncio.sleep(0)
        assert not broker.contents.subscriptions


async def test_a_client_that_begins_anew_is_let_in_when_nothing_is_left() -> None:
    async with Broker() as broker:
        await large(broker)
        sender = await broker.client("mqtt", "z")
        coming = asyncio.ensure_future(broker.client("mqtt", "c", clean_start=True))
        await asyncio.sleep(0)
        sender.send("topic://99", "of the session before")
        for _ in range(3):
            await asyncio.sleep(0)
        assert not coming.done()
        client = await coming
        assert not client.result.session_present
        assert not broker.core.destinations.durable
        client.subscribe("topic://99", qos=1)
        sender.send("topic://99", "new")
        await broker.settle()
        assert client.bodies() == [b"new"]


@pytest.mark.parametrize("is_clean", [True, False])
async def test_of_those_that_come_meanwhile_the_last_one_is_let_in(is_clean: bool) -> None:
    async with Broker() as broker:
        await large(broker)
        first = asyncio.ensure_future(broker.client("mqtt", "c"))
        await asyncio.sleep(0)
        more = {} if is_clean else STORED
        second = asyncio.ensure_future(broker.client("mqtt", "c", **more))
        with pytest.raises(ConnectionEndedError):
            await first
        client = await second
        assert not client.result.session_present
        assert client.ended is None
        assert len(broker.core.connections) == 1
        assert not broker.core.destinations.durable


async def test_a_client_that_leaves_before_it_is_let_in_leaves_nothing() -> None:
    async with Broker() as broker:
        await large(broker)
        coming = asyncio.ensure_future(broker.client("mqtt", "c"))
        await asyncio.sleep(0)
        coming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await coming
        assert not broker.core.connections
        await most_in_a_turn(lambda: not len(broker.core.sessions), lambda: 0)


@pytest.mark.parametrize("how", ENDS)
async def test_a_session_that_was_ending_when_the_gateway_was_killed_is_gone(how: str) -> None:
    async with Broker() as broker:
        client = await large(broker)
        if how == "expiry":
            client.connection.disconnect(graceful=True)
            await broker.settle()
        ended = ENDS[how](broker, client)
        for _ in range(4):
            await asyncio.sleep(0)
        if isinstance(ended, asyncio.Future):
            ended.cancel()
        while len(broker.contents.subscriptions) == COUNT:  # the first of them are gone
            await asyncio.sleep(0)
        assert broker.contents.subscriptions
        await broker.kill()
        client = await broker.client("mqtt", "c", **STORED)
        assert not client.result.session_present
        assert not broker.core.destinations.durable
        await broker.settle()
        assert not broker.contents.subscriptions


@pytest.mark.parametrize("is_sliced", [True, False])
@pytest.mark.parametrize("more", [{}, {"share_group": "g"}], ids=["own", "shared"])
async def test_a_session_is_taken_up_in_steps(
    is_sliced: bool, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_sliced:
        monkeypatch.setattr(serving, "RESTORED_AT_ONCE", 1 << 30)
    async with Broker() as broker:
        client = await large(broker, **more)
        client.connection.disconnect(graceful=True)
        written = len(broker.store.batches)
        coming = asyncio.ensure_future(broker.client("mqtt", "c", **STORED))
        sender = await broker.client("mqtt", "z")

        def taken_up() -> int:
            return sum(len(item.consumers) for item in broker.core.connections)

        most = await most_in_a_turn(lambda: taken_up() == COUNT, taken_up)
        assert (most <= 16) is is_sliced
        sender.send("topic://0", "m")
        client = await coming
        await broker.settle()
        assert len(client.result.subscriptions) == COUNT
        assert client.bodies() == [b"m"]
        sizes = [len(batch) for batch in broker.store.batches[written:]]
        assert sum(sizes) < 10  # it is not written once more for each of them


async def test_a_session_that_is_being_taken_up_can_be_taken_over() -> None:
    async with Broker() as broker:
        client = await large(broker)
        client.connection.disconnect(graceful=True)
        first = asyncio.ensure_future(broker.client("mqtt", "c", **STORED))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client = await broker.client("mqtt", "c", **STORED)
        with pytest.raises(ConnectionEndedError):
            await first
        sender = await broker.client("mqtt", "z")
        for number in (0, COUNT - 1):
            sender.send(f"topic://{number}", "m")
        await broker.settle()
        assert client.bodies() == [b"m", b"m"]


async def test_rights_that_change_while_a_session_is_taken_up_count() -> None:
    class Wall:
        is_shut = False

        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            is_refused = self.is_shut and destination in ("topic://0", f"topic://{COUNT - 1}")
            return Verdict.DENY if is_refused else Verdict.ALLOW

    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        client = await large(broker)
        client.connection.disconnect(graceful=True)
        coming = asyncio.ensure_future(broker.client("mqtt", "c", **STORED))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wall.is_shut = True
        broker.core.rights_changed()
        with pytest.raises((AccessError, ConnectionEndedError)):
            await coming
        client = await broker.client("mqtt", "c", **STORED)
        assert {item.name for item in client.result.refused} == {"0", f"{COUNT - 1}"}


async def test_looking_for_sessions_that_are_over_is_no_work_of_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "LOOKED_AT_ONCE", 2)
    async with Broker() as broker:
        for number in range(7):
            await broker.client("mqtt", f"c{number}", **STORED)
        assert list(broker.core.sessions.expire(0)) == [0, 0, 0]
