"""What auditors hear of logins and refusals."""

from __future__ import annotations

import pytest
from broker_harness import Broker
from walls import SECRET, Notes

from tidegate.spi import AccessError, Action, AuditKind


async def test_auditors_hear_of_logins_and_refusals() -> None:
    notes = Notes((Action.PUBLISH, "topic://t"), SECRET)
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client(username="ann", password=b"right")
        with pytest.raises(AccessError):
            await broker.client(username="bob", password=b"wrong")
        with pytest.raises(AccessError):
            client.send("topic://t", "m")
        client.subscribe("topic://*.plan", qos=0, acknowledge=False)
        client.send("topic://secret.plan", "what a filter leaves out is no news")
        await broker.settle()
        told = [(event.kind, event.identity.principal, event.destination) for event in notes.events]
        assert told == [
            (AuditKind.LOGIN, "ann", ""),
            (AuditKind.LOGIN_REFUSED, "bob", ""),
            (AuditKind.REFUSED, "ann", "topic://t"),
        ]
        assert notes.events[1].problem == "wrong user name or password"
        assert notes.events[2].action is Action.PUBLISH
        assert notes.events[0].identity.groups == {"g"}


async def test_an_auditor_that_fails_changes_nothing(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("auditor=")
    async with Broker(extensions=[Notes(bug=bug)]) as broker:
        client = await broker.client(username="ann")
        client.send("topic://t", "m")
