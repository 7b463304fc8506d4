"""The gateway as a whole, as operators see it: what is counted, how it is, how long clients waited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker

from tidegate.broker.operate.operations import Operations
from tidegate.broker.turn.latencies import BOUNDS, HALF_S, Latencies
from tidegate.spi import Identity, StoreIOError
from tidegate.spi.operate import GatewayState, Overview, ShowOverview, perform

ME = Identity("local:me", frozenset(), "", "", "operator")
A, B = "queue://a", "queue://b"


async def shown(broker: Broker) -> Overview:
    found = await perform(Operations(broker.core), ME, ShowOverview())
    assert isinstance(found, Overview)
    return found


async def test_what_goes_through_is_counted_once() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe(A)
        for number in range(5):
            client.send(A, str(number), number)
        await broker.settle()
        client.ack_all(token="acknowledged")
        client.send(B, "waits")
        await broker.settle()
        found = await shown(broker)
        assert (found.published.total, found.delivered.total, found.acknowledged.total) == (6, 5, 5)
        assert (found.confirmed.total, found.confirmation.count) == (6, 6)
        assert (found.backlog, found.queues, found.connections.used) == (1, 2, 1)
        assert 0 < found.confirmation.p50_ms <= found.confirmation.p99_ms
        assert (found.state, found.problem) == (GatewayState.RUNNING, "")


async def test_it_has_the_numbers_that_system_topics_have() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send(A, "x")
        await broker.settle()
        told = {**broker.core.client_counts(), **broker.core.events.snapshot()}
        found = (await shown(broker)).counts
        assert found["events.client-connected.count"] == 1
        assert found == {name: value for name, value in told.items() if not isinstance(value, str)}
        assert found["held.queues.bytes"] > 0
        assert {"overflow.dropped", "logins.refused", "overload.active"} <= set(found)


async def test_nobody_is_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be ten thousand of each, and it is asked for every two seconds."""

    class Unseen(dict[Any, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("walked over")

        values = items = keys = __iter__

    async with Broker() as broker:
        core = broker.core
        for number in range(3):
            client = await broker.client("mqtt", f"c{number}", session_expiry=1000)
            client.subscribe("topic://t", "t", durable_name="t", qos=1)
            client.subscribe("topic://u", "u", qos=0)
        client.connection.disconnect(graceful=True)
        await broker.settle()
        with monkeypatch.context() as patch:
            for owner, name in (
                (core, "connections"),
                (core.sessions, "_by_key"),
                (core.destinations, "durable"),
                (core.destinations, "queues"),
                (core.destinations, "charged"),
            ):
                patch.setattr(owner, name, Unseen.fromkeys(getattr(owner, name)))
            found = await shown(broker)
        assert found.counts["subscriptions.count"] == 5
        assert found.counts["clients.disconnected"] == 1
        assert (found.connections.used, found.sessions, found.subscriptions) == (2, 3, 5)


async def test_a_transaction_counts_what_it_acknowledges_when_it_is_durable() -> None:
    async with Broker() as broker:
        client = await broker.consumer(A, *map(str, range(3)))

        def acknowledge(transaction: str) -> None:
            client.connection.begin(transaction)
            held = list(client.connection.consumers["s"].in_flight)
            client.connection.acknowledge("s", held, transaction=transaction)
            client.send(B, "with it", transaction=transaction)
            client.connection.commit(transaction, transaction)

        broker.store.refuse(1)
        acknowledge("no room")
        await broker.settle()
        assert [token for token, _ in client.failures] == ["no room"]
        assert (await shown(broker)).acknowledged.total == 0
        await asyncio.sleep(5)
        acknowledge("room")
        await broker.settle()
        assert client.confirmations == ["room"]
        assert (await shown(broker)).acknowledged.total == 3


async def test_rates_are_of_the_last_ten_seconds() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for _ in range(100):
            client.send(A, "x")
        await asyncio.sleep(5)
        assert 15 <= (await shown(broker)).published.per_second <= 25
        await asyncio.sleep(20)
        found = await shown(broker)
        assert (found.published.total, found.published.per_second) == (100, 0)
        assert 25 <= found.uptime_s < 27


async def test_it_says_when_the_store_has_no_room_and_when_it_has_failed(
    logged_errors: list[str],
) -> None:
    logged_errors.append("store=read-only")
    async with Broker() as broker:
        client = await broker.client()
        broker.store.refuse(1)
        client.send(A, "1", "one")
        await broker.settle()
        found = await shown(broker)
        assert found.state is GatewayState.STORE_FULL
        assert "full" in found.problem
        await asyncio.sleep(5)
        client.send(A, "2", "two")
        await broker.settle()
        assert (await shown(broker)).state is GatewayState.RUNNING
        broker.store.error = StoreIOError("the disk is gone")
        client.send(A, "3", "three")
        await broker.settle()
        found = await shown(broker)
        assert (found.state, found.problem) == (GatewayState.STORE_FAILED, "the disk is gone")


async def test_it_answers_while_the_store_hangs() -> None:
    async with Broker() as broker:
        client = await broker.client()
        broker.store.hold()
        client.send(A, "1", "one")
        await broker.settle()
        assert (await shown(broker)).confirmed.total == 0
        broker.store.release()
        await broker.settle()
        assert (await shown(broker)).confirmed.total == 1


def test_a_histogram_is_of_the_last_half_to_one_minute() -> None:
    found = Latencies()
    assert found.quantiles(0.5, 0.99) == (0, [0.0, 0.0])
    found.add(0.001, 98)
    found.add(0.1, 1)
    found.add(1e9, 1)
    count, (median, most, all_of_them) = found.quantiles(0.5, 0.99, 1.0)
    assert count == 100
    assert 0.001 <= median <= 0.00125
    assert 0.1 <= most <= 0.125
    assert all_of_them == BOUNDS[-1]
    for _ in range(HALF_S):
        found.tick()
    found.add(0.002, 100)
    assert found.quantiles(0.5)[0] == 200
    for _ in range(HALF_S):
        found.tick()
    count, (least,) = found.quantiles(0.0)
    assert (count, least) == (100, BOUNDS[0])
