"""A durable subscription that nobody takes up ends after a time, if a policy says so."""

import asyncio
import logging

import pytest
from broker_harness import Broker

from tidegate.config import DestinationPolicy
from tidegate.spi import RemoveSubscription

EXPIRING = DestinationPolicy(match="t", subscription_expiry=100)


async def away(broker: Broker, destination: str, **more: object) -> None:
    """A durable STOMP subscription whose client has gone, named like its destination."""
    client = await broker.client("stomp", "c")
    client.subscribe(destination, durable_name=destination)
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()


async def test_it_ends_with_what_waits_in_it_when_its_client_was_away_for_so_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker(EXPIRING) as broker:
        await away(broker, "topic://t")
        await away(broker, "topic://other")
        sender = await broker.client()
        for destination in ("topic://t", "topic://other"):
            sender.send(destination, "x")
        await broker.settle()
        await asyncio.sleep(99)
        assert not broker.store.operations(RemoveSubscription)
        await asyncio.sleep(22)
        await broker.settle()
        (left,) = broker.core.destinations.durable.values()
        assert left.destination == "topic://other"
        assert left.cursor.size == 1
        assert len(broker.store.operations(RemoveSubscription)) == 1
        assert broker.core.client_counts()["subscriptions.expired"] == 1
    (text,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert text.startswith("subscription='topic://t' client='c' principal='anonymous' ended with 1")


async def test_a_client_that_was_there_between_two_looks_begins_the_time_anew() -> None:
    async with Broker(EXPIRING) as broker:
        await away(broker, "topic://t")
        for _ in range(5):
            await asyncio.sleep(95)
            await away(broker, "topic://t")  # it comes and goes at once
        assert len(broker.core.destinations.durable) == 1


async def test_while_it_is_served_and_behind_a_restart_it_does_not_end() -> None:
    async with Broker(EXPIRING) as broker:
        client = await broker.client("stomp", "c")
        client.subscribe("topic://t", durable_name="d")
        await asyncio.sleep(500)
        client.connection.disconnect(graceful=True)
        await asyncio.sleep(60)
        await broker.kill()
        await asyncio.sleep(60)
        assert len(broker.core.destinations.durable) == 1
        await asyncio.sleep(60)
        assert not broker.core.destinations.durable


async def test_an_mqtt_session_has_its_own_expiry() -> None:
    async with Broker(EXPIRING) as broker:
        client = await broker.client("mqtt", "c", session_expiry=1000)
        client.subscribe("topic://t", durable_name="s", qos=1)
        await broker.settle()
        client.connection.disconnect(graceful=True)
        await asyncio.sleep(900)
        assert len(broker.core.destinations.durable) == 1
