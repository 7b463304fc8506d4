"""Brokers with an acknowledged log, what is in it, and a sink."""

from __future__ import annotations

from typing import Any

from broker_harness import Broker, Client

from tidegate.spi import AcknowledgedReader, SinkHealth, SinkState


class Log(Broker):
    """A broker that keeps acknowledged messages."""

    def __init__(self, **config: Any) -> None:
        super().__init__(keep_acknowledged=True, **config)


async def acknowledge(broker: Broker, *bodies: str) -> Client:
    """Messages that were sent, consumed and acknowledged, one batch each."""
    client = await broker.client("stomp", "consumer")
    client.subscribe("queue://q")
    client.acknowledge_at_once()
    for body in bodies:
        client.send("queue://q", body)
        await broker.settle()
        client.connection.synchronize("synced")
        await broker.settle()
    client.connection.unsubscribe("s")
    return client


class ToySink:
    """A sink that says what it is told to."""

    def __init__(self) -> None:
        self.says = SinkHealth(SinkState.RUNNING, 0, 0)

    async def start(self, reader: AcknowledgedReader) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> SinkHealth:
        return self.says
