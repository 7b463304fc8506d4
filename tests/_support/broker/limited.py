"""Queues with a limit, and what is sent to them and taken from them."""

from __future__ import annotations

from typing import Any

from broker_harness import Broker, Client

from tidegate.config import DestinationPolicy
from tidegate.spi import FlowControlError

QUEUE, TOPIC, DEAD = "queue://q", "topic://t", "queue://DLQ.q"


def policy(overflow: str = "slow", **more: Any) -> DestinationPolicy:
    return DestinationPolicy(match="queue://q", overflow=overflow, **more)


def bodies(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def send(
    broker: Broker, client: Client, numbers: range, *, at_once: bool = False, **more: Any
) -> int:
    """Publish. Returns: how many were refused."""
    refused = 0
    for number in numbers:
        try:
            client.send(QUEUE, f"{number}", **more)
        except FlowControlError:
            refused += 1
        if not at_once:
            await broker.settle()
    await broker.settle()
    return refused


async def consume(broker: Broker, destination: str = QUEUE) -> list[bytes]:
    """Take all that is there."""
    client = await broker.client()
    client.on_deliver = lambda key, _: client.ack_all(key)
    client.subscribe(destination)
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()
    return client.bodies()
