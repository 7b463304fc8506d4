"""Sessions and subscriptions as operators see them, and their end, which outlives a kill."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, Client, key_of, message
from operated import Guard, ask_now

from tidegate.broker.sessions.sessions import REMOVED_AT_ONCE
from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    AccessError,
    Action,
    AuditKind,
    ConnectionEndedError,
    RequestError,
    StoreIOError,
)
from tidegate.spi.operate import (
    DeleteSession,
    DeleteSubscription,
    ListSessions,
    ListSubscriptions,
    SessionSort,
    ShowSession,
    ShowSubscription,
    SubscriptionRow,
    SubscriptionSort,
)

T = "topic://t"


async def mqtt(broker: Broker, client_id: str, *filters: str, **more: Any) -> Client:
    """A client whose session is kept, with durable subscriptions."""
    fields: dict[str, Any] = {"clean_start": False, "session_expiry": 100} | more
    client = await broker.client("mqtt", client_id, **fields)
    for name in filters:
        client.subscribe(name, name, durable_name=name, qos=1)
    await broker.settle()
    return client


async def stomp(broker: Broker, client_id: str, name: str, **more: Any) -> Client:
    """A client with one durable subscription."""
    client = await broker.client("stomp", client_id)
    client.subscribe(T, "s", durable_name=name, **more)
    await broker.settle()
    return client


async def away(broker: Broker, *clients: Client) -> None:
    for client in clients:
        client.connection.disconnect(graceful=True)
    await broker.settle()


async def published(broker: Broker, count: int, destination: str = T) -> None:
    client = await broker.client()
    for number in range(count):
        client.send(destination, str(number), qos=1)
    await broker.settle()
    await away(broker, client)


async def subscriptions(broker: Broker, **wanted: Any) -> list[SubscriptionRow]:
    return list((await ask_now(broker, ListSubscriptions(**wanted))).rows)


async def test_sessions_are_listed_with_what_waits_for_them() -> None:
    async with Broker() as broker:
        one = await mqtt(broker, "one", T, "topic://u")
        two = await mqtt(broker, "two", T, session_expiry=SESSION_NEVER_EXPIRES)
        there = await mqtt(broker, "there", "queue://q", will=message("topic://w", "gone"))
        await away(broker, one)
        await asyncio.sleep(5)
        await away(broker, two)
        await published(broker, 3)
        await published(broker, 1, "topic://u")
        rows = (await ask_now(broker, ListSessions())).rows
        assert [(row.client_id, row.pending) for row in rows] == [
            ("one", 4),
            ("there", 0),
            ("two", 3),
        ]
        assert [row.connection for row in rows] == [None, there.connection.number, None]
        assert [row.expiry_s for row in rows] == [100, 100, None]
        assert [(row.subscriptions, row.attached) for row in rows] == [(2, 0), (0, 1), (1, 0)]
        assert [row.has_will for row in rows] == [False, True, False]
        assert rows[1].left_at == 0
        assert broker.core.now() - rows[0].left_at >= 5_000_000

        async def order(**wanted: Any) -> list[str]:
            return [row.client_id for row in (await ask_now(broker, ListSessions(**wanted))).rows]

        assert await order(sort=SessionSort.PENDING) == ["one", "two", "there"]
        assert await order(sort=SessionSort.AWAY) == ["one", "two", "there"]
        assert await order(away=True) == ["one", "two"]
        assert await order(match="TWO") == ["two"]
        page = await ask_now(broker, ListSessions(limit=2))
        assert [row.client_id for row in page.rows] == ["one", "there"]
        assert await order(after=page.next) == ["two"]

        found = await ask_now(broker, ShowSession(key_of("one")))
        assert {row.filter for row in found.subscriptions} == {T, "topic://u"}
        assert (await ask_now(broker, ShowSession(key_of("there")))).attached == ("queue://q",)
        with pytest.raises(RequestError, match="no session 'none'"):
            await ask_now(broker, ShowSession("none"))
        await away(broker, there)


async def test_a_deleted_session_is_gone_with_what_waited_also_after_a_kill() -> None:
    guard = Guard(Action.ADMIN)
    async with Broker(extensions=[guard]) as broker:
        many = [f"topic://t.{number}" for number in range(3 * REMOVED_AT_ONCE)]
        await away(broker, await mqtt(broker, "c", *many), await mqtt(broker, "other", T))
        await published(broker, 2, many[5])
        await published(broker, 1)
        guard.events.clear()
        assert (await ask_now(broker, DeleteSession(key_of("c")))).count == 2
        (told,) = guard.events
        assert (told.kind, told.action) == (AuditKind.OPERATED, Action.ADMIN)
        assert "with 2 pending messages" in told.detail
        await broker.kill()
        assert [row.client_id for row in (await ask_now(broker, ListSessions())).rows] == ["other"]
        assert [row.filter for row in await subscriptions(broker)] == [T]
        back = await mqtt(broker, "c")
        assert not back.result.session_present
        await away(broker, back)


async def test_a_session_in_use_is_deleted_only_when_that_is_asked_for() -> None:
    async with Broker() as broker:
        client = await mqtt(broker, "c", T, will=message("topic://w", "gone"))
        heir = await broker.consumer("topic://w")
        with pytest.raises(RequestError, match="its client is connected"):
            await ask_now(broker, DeleteSession(key_of("c")))
        assert client.ended is None
        await published(broker, 2)
        assert (await ask_now(broker, DeleteSession(key_of("c"), with_connection=True))).count == 2
        await broker.settle()
        assert isinstance(client.ended, ConnectionEndedError)
        assert heir.bodies() == [b"gone"]
        assert not broker.contents.sessions
        await away(broker, heir)


async def test_a_failed_store_deletes_nothing(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")
    async with Broker() as broker:
        await away(broker, await mqtt(broker, "c", T), await stomp(broker, "s", "n"))
        broker.store.error = StoreIOError("the disk is gone")
        client = await broker.client()
        client.send(T, "x", "t", qos=1)
        await broker.settle()
        for request in (
            DeleteSession(key_of("c")),
            *(DeleteSubscription(row.number) for row in await subscriptions(broker)),
        ):
            with pytest.raises(StoreIOError):
                await ask_now(broker, request)
        assert len(broker.core.sessions) == 1
        assert len(await subscriptions(broker)) == 2
        await away(broker, client)


async def test_subscriptions_are_listed_whoever_made_them() -> None:
    async with Broker() as broker:
        durable = await stomp(broker, "s", "n", selector="a = 1")
        kept = await mqtt(broker, "m", T)
        passing = await broker.client()
        passing.subscribe(T, "p", acknowledge=False)
        queue = await broker.client()
        queue.subscribe("queue://q")
        await published(broker, 4)
        rows = await subscriptions(broker)
        assert sorted((row.client_id, row.name, row.durable) for row in rows) == [
            ("", "p", False),
            ("m", T, True),
            ("s", "n", True),
        ]
        by_client = {row.client_id: row for row in rows}
        assert (by_client["s"].selector, by_client["s"].protocol) == ("a = 1", "stomp")
        assert (by_client["m"].qos, by_client["m"].in_flight, by_client["m"].consumers) == (1, 4, 1)
        assert by_client[""].number < 0
        assert len(await subscriptions(broker, durable=True)) == 2
        assert len(await subscriptions(broker, match="topic://T")) == 3
        await away(broker, kept)
        await published(broker, 3)
        rows = await subscriptions(broker, sort=SubscriptionSort.PENDING)
        assert [row.pending for row in rows][:1] == [7]
        found = await ask_now(broker, ShowSubscription(by_client["s"].number))
        assert found.connections == (durable.connection.number,)
        with pytest.raises(RequestError, match="no subscription 4711"):
            await ask_now(broker, ShowSubscription(4711))
        with pytest.raises(RequestError, match="no subscription"):
            await ask_now(broker, ShowSubscription(broker.queue("q").id))
        await away(broker, durable, passing, queue)


async def test_a_durable_subscription_is_deleted_with_what_waits_also_after_a_kill() -> None:
    guard = Guard(Action.ADMIN)
    async with Broker(extensions=[guard]) as broker:
        client = await stomp(broker, "s", "n")
        (row,) = await subscriptions(broker)
        with pytest.raises(RequestError, match="its client is connected"):
            await ask_now(broker, DeleteSubscription(row.number))
        await away(broker, client)
        await published(broker, 3)
        guard.events.clear()
        assert (await ask_now(broker, DeleteSubscription(row.number))).count == 3
        (told,) = guard.events
        assert (told.kind, told.action, told.destination) == (AuditKind.OPERATED, Action.ADMIN, T)
        await broker.kill()
        assert await subscriptions(broker) == []

        client = await stomp(broker, "s", "n")
        await published(broker, 3)
        (row,) = await subscriptions(broker)
        request = DeleteSubscription(row.number, with_connection=True)
        assert (await ask_now(broker, request)).count == 3
        assert isinstance(client.ended, ConnectionEndedError)
        assert await subscriptions(broker) == []


async def test_what_is_not_durable_and_what_sessions_share_is_not_deleted() -> None:
    async with Broker() as broker:
        passing = await broker.client()
        passing.subscribe(T, "p", acknowledge=False)
        await broker.settle()
        (row,) = await subscriptions(broker)
        with pytest.raises(RequestError, match="not durable"):
            await ask_now(broker, DeleteSubscription(row.number, with_connection=True))
        assert passing.ended is None
        await away(broker, passing)

        member = await mqtt(broker, "m")
        member.subscribe(T, "shared", durable_name="shared", share_group="g", qos=1)
        await broker.settle()
        await away(broker, member)
        (row,) = await subscriptions(broker)
        assert (row.share_group, row.client_id, row.durable) == ("g", "", True)
        with pytest.raises(RequestError, match="delete those"):
            await ask_now(broker, DeleteSubscription(row.number))
        await ask_now(broker, DeleteSession(key_of("m")))
        assert await subscriptions(broker) == []


@pytest.mark.parametrize(
    "request_",
    [
        ListSessions(),
        ShowSession(key_of("c")),
        DeleteSession(key_of("c")),
        ListSubscriptions(),
        ShowSubscription(1),
        DeleteSubscription(1),
    ],
)
async def test_nobody_without_the_right_sees_or_deletes_any(request_: Any) -> None:
    guard = Guard()
    async with Broker(extensions=[guard]) as broker:
        await away(broker, await mqtt(broker, "c", T))
        guard.events.clear()
        with pytest.raises(AccessError):
            await ask_now(broker, request_)
        assert [(e.kind, e.action) for e in guard.events] == [(AuditKind.REFUSED, Action.ADMIN)]
        assert len(broker.core.sessions) == 1
