"""Browsing: what is pending, in order, as copies, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.connection.browser import PAGE_COUNT
from tidegate.spi import Acknowledge, Held, RequestError, StoredMessage, StoreIOError


async def test_shows_everything_in_order_and_consumes_nothing() -> None:
    async with Broker() as broker:
        client = await broker.client()
        wanted = [b"%d" % n for n in range(3 * PAGE_COUNT + 7)]
        for body in wanted:
            client.send("queue://q", body)
        await broker.settle()
        await client.browse("queue://q", token="began")
        assert client.bodies() == wanted
        assert client.confirmations == ["began"]
        assert broker.store.pending("queue://q") == wanted
        client.deliveries.clear()
        client.subscribe("queue://q", acknowledge=False)
        await broker.settle()
        assert client.bodies() == wanted
        assert set(client.counts()) == {0}


async def test_shows_what_is_in_flight_and_leaves_it_to_its_consumer() -> None:
    async with Broker() as broker:
        consumer, looking = await broker.client(), await broker.client()
        consumer.subscribe("queue://q", prefetch_count=1)
        for body in ("1", "2"):
            consumer.send("queue://q", body)
        await broker.settle()
        await looking.browse("queue://q")
        assert looking.bodies() == [b"1", b"2"]
        assert consumer.bodies() == [b"1"]
        consumer.ack_all()
        await broker.settle()
        assert consumer.bodies() == [b"1", b"2"]
        consumer.ack_all()
        await broker.settle()
        acknowledged = broker.store.operations(Acknowledge)
        assert [s for op in acknowledged for s in op.sequences] == consumer.sequences()
        await looking.browse("queue://q")
        assert looking.bodies() == [b"1", b"2"], "what was consumed is shown"


async def test_what_was_shown_is_held_no_more() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "m")
        await broker.settle()
        account = client.connection.account
        for number in range(3):
            client.begin_browsing("queue://q", f"{number}")
            assert account.kinds[Held.SUBSCRIPTIONS] > 0
            await client.browsed(f"{number}")
            assert account.kinds[Held.SUBSCRIPTIONS] == 0


async def test_shows_what_the_client_published_just_before_and_nothing_later() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "before")
        client.begin_browsing("queue://q")
        client.send("queue://q", "after")
        await client.browsed()
        assert client.bodies() == [b"before"]


async def test_ends_under_a_producer_that_never_does() -> None:
    async with Broker() as broker:
        client, producer = await broker.client(), await broker.client()
        for number in range(2 * PAGE_COUNT):
            client.send("queue://q", str(number))

        def publish_as_many(_key: str, messages: Sequence[StoredMessage]) -> None:
            for _ in messages:
                producer.send("queue://q", "more")

        client.on_deliver = publish_as_many
        client.begin_browsing("queue://q")
        await client.browsed()
        assert len(client.bodies()) == 2 * PAGE_COUNT


@pytest.mark.parametrize("exists", [True, False])
async def test_of_nothing_is_over_at_once_and_makes_no_queue(exists: bool) -> None:
    async with Broker() as broker:
        client = await broker.client()
        if exists:
            client.subscribe("queue://q", "other")
        await client.browse("queue://q", token="t")
        assert client.deliveries == []
        assert client.confirmations == ["t"]
        assert ("queue://q" in broker.core.destinations.queues) is exists
        assert client.connection.unsubscribe("b") is False


async def test_leaves_out_what_has_expired() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "short", expires_at=broker.core.now() + 1)
        client.send("queue://q", "long", expires_at=broker.core.now() + 10_000_000)
        await asyncio.sleep(0.001)
        await client.browse("queue://q")
        assert client.bodies() == [b"long"]


async def stuck(broker: Broker, pages: int) -> Client:
    """Browses a queue of so many pages, and reads no more after each delivery."""
    client = await broker.client()
    for number in range(pages * PAGE_COUNT):
        client.send("queue://q", str(number))
    await broker.settle()
    client.on_deliver = lambda *_: client.connection.writable(False)
    client.begin_browsing("queue://q")
    return client


async def test_holds_one_page_while_the_client_does_not_read() -> None:
    async with Broker() as broker:
        client = await stuck(broker, 5)
        for turn in range(1, 6):
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(client.bodies()) == turn * PAGE_COUNT
            client.connection.writable(True)
        await client.browsed()
        assert client.bodies() == [b"%d" % n for n in range(5 * PAGE_COUNT)]


@pytest.mark.parametrize("how", ["unsubscribe", "disconnect"])
async def test_that_is_given_up_stops_and_leaves_no_task(how: str) -> None:
    async with Broker() as broker:
        client = await stuck(broker, 3)
        for _ in range(50):
            await asyncio.sleep(0)
        assert [t for t in broker.core.tasks.running if t.get_name().startswith("browse")]
        if how == "unsubscribe":
            assert client.connection.unsubscribe("b") is True
        else:
            client.connection.disconnect(graceful=True)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(client.bodies()) == PAGE_COUNT
        assert not [t for t in broker.core.tasks.running if t.get_name().startswith("browse")]


@pytest.mark.parametrize("destination", ["topic://t", "queue://a.*", "queue://>"])
async def test_is_of_one_queue(destination: str) -> None:
    async with Broker() as broker:
        client = await broker.client()
        with pytest.raises(RequestError, match="cannot be browsed"):
            client.subscribe(destination, browse=True)


async def test_is_not_of_a_temporary_queue() -> None:
    async with Broker() as broker:
        client = await broker.client()
        own = client.connection.make_temporary("queue://a")
        with pytest.raises(RequestError, match="temporary queue"):
            client.subscribe(own, browse=True)


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
async def test_and_consuming_need_keys_of_their_own(protocol: str) -> None:
    async with Broker() as broker:
        client = await broker.client(protocol, "me")
        client.subscribe("queue://q", "consumer")
        with pytest.raises(RequestError, match="already exists"):
            client.subscribe("queue://q", "consumer", browse=True)
        client.begin_browsing("queue://q")
        with pytest.raises(RequestError, match="already exists"):
            client.subscribe("queue://q", "b")
        await client.browsed()


async def test_what_a_page_cannot_be_read_for_is_told() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://q", "m")
        await broker.settle()

        async def broken(*_arguments: Any) -> Sequence[StoredMessage]:
            raise StoreIOError("the disk is gone")

        broker.store.page_in = broken  # type: ignore[method-assign]
        client.begin_browsing("queue://q")
        await broker.settle()
        ((token, error),) = client.failures
        assert (token, str(error)) == (None, "the disk is gone")
