"""Requests of an operator's at a broker of the test's own, and queues with something in them."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import Broker

from tidegate.broker.operate.operations import Operations
from tidegate.spi import AccessError, Action, AuditEvent, AuditKind, Identity, Verdict
from tidegate.spi.operate import perform

ME = Identity("local:me", frozenset(), "", "", "operator")


async def ask(broker: Broker, request: Any) -> Any:
    """The answer, when all that follows from it has happened."""
    answer = await ask_now(broker, request)
    await broker.settle()
    return answer


async def ask_now(broker: Broker, request: Any) -> Any:
    return await perform(Operations(broker.core), ME, request)


async def filled(broker: Broker, count: int, destination: str = "queue://a", **more: Any) -> None:
    """Publish bodies 0, 1, … with a header `n` that says which."""
    client = await broker.client()
    for number in range(count):
        client.send(destination, str(number), headers=(("n", str(number)),), **more)
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()


async def consumed(broker: Broker, destination: str) -> list[bytes]:
    """What a consumer gets, which acknowledges."""
    client = await broker.client()
    client.acknowledge_at_once()
    client.subscribe(destination, prefetch_count=10)
    await broker.settle()
    found = client.bodies()
    client.connection.disconnect(graceful=True)
    await broker.settle()
    return found


def bodies(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


async def check_is_refused(request: Any) -> None:
    """Without the right nobody gets an answer, and auditors hear of it."""
    guard = Guard()
    async with Broker(extensions=[guard]) as broker:
        with pytest.raises(AccessError):
            await ask_now(broker, request)
        assert [(e.kind, e.action) for e in guard.events] == [(AuditKind.REFUSED, Action.ADMIN)]


class Guard:
    """Allows what it is told, and hears of everything."""

    def __init__(self, *allowed: Action) -> None:
        self.allowed = {Action.CONNECT, Action.PUBLISH, *allowed}
        self.events: list[AuditEvent] = []

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if identity.protocol != "operator":
            return Verdict.ALLOW
        return Verdict.ALLOW if action in self.allowed else Verdict.DENY

    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)
