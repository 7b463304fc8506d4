"""QoS 2 messages of a shared subscription whose client left in the middle of the handshake."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import Broker, Client, key_of

from tidegate.spi import (
    Discard,
    InflightDirection,
    InflightRecord,
    InflightState,
    StoredMessage,
)

OUT = InflightDirection.OUT


async def member(broker: Broker, name: str, expiry: int = 100) -> Client:
    """A client of the group that records a packet id for what it is given, as a front-end does."""
    client = await broker.client(
        "mqtt", name, clean_start=False, session_expiry=expiry, resume=False
    )

    def record(key: str, messages: object) -> None:
        assert isinstance(messages, list | tuple)
        found: list[StoredMessage] = list(messages)
        client.connection.record_inflight(
            put=[
                InflightRecord(
                    key_of(name),
                    OUT,
                    m.sequence,
                    InflightState.PUBLISHED,
                    key,
                    m.sequence,
                    m.message.qos,
                )
                for m in found
            ]
        )

    client.on_deliver = record
    return client


def join(client: Client, destination: str = "topic://t", group: str = "g") -> None:
    client.subscribe(destination, "s", durable_name="s", qos=2, share_group=group)
    client.connection.resume()


async def send(broker: Broker, destination: str = "topic://t", qos: int = 2) -> None:
    sender = await broker.client()
    sender.send(destination, "m", qos=qos)
    await broker.settle()


async def sent_to_the_first(
    broker: Broker, *, qos: int = 2, expiry: int = 100
) -> tuple[Client, Client]:
    """Two members of the group, of whom the first, whose session lasts *expiry*, was sent the message."""
    first, second = await member(broker, "first", expiry), await member(broker, "second", 1000)
    join(first)
    await send(broker, qos=qos)
    join(second)
    return first, second


def unanswered(client: Client) -> dict[str, list[int]]:
    return {"s": client.sequences("s")}


async def test_it_waits_for_the_client_that_it_was_sent_to() -> None:
    async with Broker() as broker:
        first = await member(broker, "first")
        join(first)
        await send(broker)
        second = await member(broker, "second")
        join(second)
        first.connection.disconnect(graceful=False, unanswered=unanswered(first))
        await broker.settle()
        assert second.bodies() == []
        again = await member(broker, "first")
        assert [r.packet_id for r in again.result.inflight] == first.sequences("s")
        assert again.bodies() == []
        again.connection.resume()
        assert (again.bodies("s"), again.counts("s")) == ([b"m"], [1])
        again.ack_all("s")
        await broker.settle()
        groups = [item for item in broker.contents.subscriptions.values() if not item.session]
        (kept,) = [broker.contents.lists[group.pending_list] for group in groups]
        assert not kept
        assert not any(broker.contents.lists.values())


async def test_it_waits_also_when_the_gateway_was_killed() -> None:
    async with Broker() as broker:
        first, second = await sent_to_the_first(broker)
        await broker.settle()
        await broker.kill()
        second = await member(broker, "second")
        second.connection.resume()
        await broker.settle()
        assert second.bodies() == []
        first = await member(broker, "first")
        first.connection.resume()
        assert first.bodies("s") == [b"m"]
        first.ack_all("s")
        await broker.settle()
        await broker.kill()
        assert not any(broker.contents.lists.values())


async def test_the_end_of_the_session_discards_it() -> None:
    async with Broker() as broker:
        first, second = await sent_to_the_first(broker, expiry=10)
        first.connection.disconnect(graceful=False, unanswered=unanswered(first))
        await asyncio.sleep(20)
        await broker.settle()
        assert second.bodies() == []
        assert len(broker.store.operations(Discard)) == 1
        assert not any(broker.contents.lists.values())


async def test_without_a_stored_session_it_is_discarded_at_once() -> None:
    async with Broker() as broker:
        first, second = await sent_to_the_first(broker, expiry=0)
        first.connection.disconnect(graceful=False, unanswered=unanswered(first))
        await broker.settle()
        assert second.bodies() == []
        assert len(broker.store.operations(Discard)) == 1


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_not_sent_or_needs_no_handshake_goes_to_another_member(qos: int) -> None:
    async with Broker() as broker:
        first, second = await sent_to_the_first(broker, qos=qos)
        first.connection.disconnect(graceful=False)
        await broker.settle()
        assert second.bodies("s") == [b"m"]
        # Its packet id is free, or to be completed: the client may have seen it.
        again = await member(broker, "first")
        states = [r.state for r in again.result.inflight]
        assert states == ([InflightState.RELEASED] if qos == 2 else [])


async def test_a_queue_gives_it_to_anyone_and_the_packet_id_is_completed() -> None:
    async with Broker() as broker:
        first = await member(broker, "first")
        join(first, "queue://q", group="")
        await send(broker, "queue://q")
        first.connection.disconnect(graceful=False, unanswered=unanswered(first))
        other = await broker.consumer()
        assert other.bodies() == [b"m"]
        again = await member(broker, "first")
        assert [r.state for r in again.result.inflight] == [InflightState.RELEASED]


async def test_leaving_the_group_discards_it() -> None:
    async with Broker() as broker:
        first, second = await sent_to_the_first(broker)
        first.connection.disconnect(graceful=False, unanswered=unanswered(first))
        again = await member(broker, "first")
        again.connection.unsubscribe("s", forget=True)
        again.connection.resume()
        await broker.settle()
        assert again.bodies() == second.bodies() == []
        assert len(broker.store.operations(Discard)) == 1
