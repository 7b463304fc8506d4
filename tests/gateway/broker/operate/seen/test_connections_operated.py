"""Connections as operators see them: pages, why one is slow, its end; who may, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, Client
from operated import ME, Guard, ask_now

from tidegate.broker.limits.meter import RATE
from tidegate.broker.operate.paging import STEP, page
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    AccessError,
    Action,
    AuditKind,
    ConnectionEndedError,
    Held,
    RequestError,
)
from tidegate.spi.operate import (
    SERVED_MAX,
    ConnectionDetails,
    ConnectionRow,
    ConnectionSort,
    EndConnection,
    ListConnections,
    ShowConnection,
    Wait,
    WaitReason,
)

A = "queue://a"


async def shown(broker: Broker, client: Client) -> ConnectionDetails:
    return await ask_now(broker, ShowConnection(client.connection.number))


async def listed(broker: Broker, **wanted: Any) -> list[ConnectionRow]:
    """All pages of two rows each."""
    rows: list[ConnectionRow] = []
    after = ""
    while True:
        found = await ask_now(broker, ListConnections(after=after, limit=2, **wanted))
        assert len(found.rows) <= 2
        rows += found.rows
        after = found.next
        if not after:
            return rows


async def test_a_connection_is_shown_with_what_it_has() -> None:
    async with Broker() as broker:
        await asyncio.sleep(3)
        client = await broker.client(client_id="c", tls_subject="CN=c", version="1.2")
        client.subscribe(A, "s", prefetch_count=2, prefetch_bytes=1000)
        client.connection.begin("t")
        for number in range(5):
            client.send(A, str(number), number)
        await broker.settle()
        found = await shown(broker, client)
        row = found.row
        assert (row.client_id, row.protocol, row.version, row.certificate) == (
            "c",
            "stomp",
            "1.2",
            "CN=c",
        )
        assert row.connected_at == broker.core.now()
        assert (row.subscriptions, row.in_flight, row.delivered, row.confirmed) == (1, 2, 2, 5)
        assert row.per_second == 7
        assert row.in_flight_bytes >= 2 * MESSAGE_OVERHEAD_BYTES
        (served,) = found.served
        assert (served.key, served.destination, served.waiting) == ("s", A, 3)
        assert (served.in_flight, served.in_flight_max, served.in_flight_bytes_max) == (2, 2, 1000)
        assert served.oldest_at == broker.core.now()
        assert found.transactions == 1
        assert found.waits == (Wait(WaitReason.ACKNOWLEDGEMENTS, "s"),)
        assert found.held.used == client.connection.account.held == row.held_bytes
        assert found.user_held.used >= found.held.used
        client.ack_all()
        await broker.settle()
        client.ack_all()
        await broker.settle()
        assert (await shown(broker, client)).waits == ()


async def test_it_is_said_why_a_connection_is_not_read_from_and_not_given_anything() -> None:
    limit = 3 * (MESSAGE_OVERHEAD_BYTES + 10)
    policy = DestinationPolicy(match="queue://full", cursor="vm", memory_limit=limit)
    async with Broker(policy) as broker:
        fresh = await broker.client(resume=False)
        assert (await shown(broker, fresh)).waits == (Wait(WaitReason.HANDSHAKE),)
        fresh.connection.resume()

        fresh.connection.writable(False)
        fresh.connection.holds(Held.OUTPUT, 70_000)
        found = await shown(broker, fresh)
        assert found.waits == (Wait(WaitReason.UNREAD),)
        assert found.row.unread_bytes == 70_000
        fresh.connection.holds(Held.OUTPUT, 0)
        fresh.connection.writable(True)

        fresh.connection.throttle(RATE)
        assert (await shown(broker, fresh)).waits == (Wait(WaitReason.RATE),)
        fresh.connection.unthrottle(RATE)

        for number in range(10):
            fresh.send("queue://full", str(number))
            await broker.settle()
        assert (await shown(broker, fresh)).waits == (Wait(WaitReason.LIST, "queue://full"),)
        (row,) = await listed(broker)
        assert row.waits == (WaitReason.LIST,)


async def test_a_page_is_sorted_and_goes_on_where_the_one_before_ended() -> None:
    async with Broker() as broker:
        clients = {
            name: await broker.client(client_id=name, peer=f"10.0.0.{number}:1")
            for number, name in enumerate(("d", "b", "a", "c", "e"))
        }
        for count, client in enumerate(clients.values()):
            for _ in range(count):
                client.send(A, "x", "token")
            client.connection.holds(Held.OUTPUT, 1000 * count)
        await broker.settle()
        by_name = [row.client_id for row in await listed(broker)]
        assert by_name == ["a", "b", "c", "d", "e"]
        for sort in (ConnectionSort.RATE, ConnectionSort.UNREAD, ConnectionSort.HELD):
            assert [row.client_id for row in await listed(broker, sort=sort)] == list("ecabd"), sort
        assert [row.client_id for row in await listed(broker, match="10.0.0.3")] == ["c"]
        assert [row.client_id for row in await listed(broker, match="ANONYM")] == by_name
        assert await listed(broker, match="nobody") == []
        with pytest.raises(RequestError, match="previous page"):
            await ask_now(broker, ListConnections(after="nonsense"))
        for client in clients.values():
            client.connection.holds(Held.OUTPUT, 0)


async def test_pages_by_name_stay_in_order_while_others_come_and_go() -> None:
    async with Broker() as broker:
        clients = [await broker.client(client_id=f"{number:02d}") for number in range(0, 20, 2)]
        first = await ask_now(broker, ListConnections(limit=5))
        clients[0].connection.disconnect(graceful=True)
        clients[7].connection.disconnect(graceful=True)
        for number in (1, 3, 11, 19):
            await broker.client(client_id=f"{number:02d}")
        second = await ask_now(broker, ListConnections(limit=50, after=first.next))
        assert [row.client_id for row in first.rows] == ["00", "02", "04", "06", "08"]
        assert [row.client_id for row in second.rows] == ["10", "11", "12", "16", "18", "19"]
        assert second.next == ""


async def test_ten_thousand_are_looked_at_in_steps() -> None:
    looked: list[int] = []
    others: list[int] = []

    async def other() -> None:
        while len(looked) < 10_000:
            others.append(len(looked))
            await asyncio.sleep(0)

    def key(number: int) -> tuple[int, str]:
        looked.append(number)
        return -number, str(number)

    beside = asyncio.create_task(other())
    shown, following = await page(range(10_000), key, "", 3)
    await beside
    assert shown == [9999, 9998, 9997]
    assert following == "9997 9997"
    assert max(b - a for a, b in zip(others, [*others[1:], 10_000], strict=True)) <= STEP
    assert (await page(range(10_000), key, following, 2))[0] == [9996, 9995]


async def test_one_with_thousands_of_subscriptions_is_shown_with_the_first_of_them() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(SERVED_MAX + 5):
            client.subscribe(f"topic://t.{number}", str(number), acknowledge=False)
        await broker.settle()
        found = await shown(broker, client)
        assert (found.row.subscriptions, len(found.served)) == (SERVED_MAX + 5, SERVED_MAX)
        assert found.served[0].in_flight_max == 0


async def test_an_operator_ends_a_connection_and_auditors_are_told() -> None:
    guard = Guard(Action.ADMIN)
    async with Broker(extensions=[guard]) as broker:
        client = await broker.client("mqtt", "c", clean_start=False, session_expiry=100)
        other = await broker.client()
        number = client.connection.number
        guard.events.clear()
        assert (await ask_now(broker, EndConnection(number))).count == 1
        assert isinstance(client.ended, ConnectionEndedError)
        assert client.ended.reason == "administrative"
        assert other.ended is None
        (told,) = guard.events
        assert (told.kind, told.identity, told.action) == (AuditKind.OPERATED, ME, Action.ADMIN)
        assert "'c'" in told.detail
        assert len(broker.core.sessions) == 1
        with pytest.raises(RequestError, match="may have ended"):
            await ask_now(broker, EndConnection(number))


@pytest.mark.parametrize("request_", [ListConnections(), ShowConnection(1), EndConnection(1)])
async def test_nobody_without_the_right_sees_or_ends_one(request_: Any) -> None:
    guard = Guard()
    async with Broker(extensions=[guard]) as broker:
        client = await broker.client()
        guard.events.clear()
        with pytest.raises(AccessError):
            await ask_now(broker, request_)
        assert [(e.kind, e.action) for e in guard.events] == [(AuditKind.REFUSED, Action.ADMIN)]
        assert client.ended is None
