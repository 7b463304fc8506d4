"""Who decides about rights: allows all but what it is told."""

from __future__ import annotations

from typing import Any

from broker_harness import Broker, Client

from tidegate.spi import (
    AccessError,
    Action,
    AuditEvent,
    Credentials,
    Identity,
    Principal,
    Verdict,
    names,
)

#: A stored MQTT session.
STORED: dict[str, Any] = {"clean_start": False, "session_expiry": 1000}


class Wall:
    """Refuses (action, destination); a filter that covers some of those is answered FILTER."""

    def __init__(self, *refused: tuple[Action, str]) -> None:
        self.refused = set(refused)
        self.asked: list[tuple[Action, str]] = []

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        self.asked.append((action, destination))
        if (action, destination) in self.refused:
            return Verdict.DENY
        for refused, concrete in self.refused:
            if (
                refused is action
                and destination[:8] == concrete[:8]
                and names.matches(names.name_of(destination), names.name_of(concrete))
            ):
                return Verdict.FILTER
        return Verdict.ALLOW


SECRET = (Action.SUBSCRIBE, "topic://secret.plan")


async def stored(broker: Broker, client_id: str = "c", **more: Any) -> Client:
    return await broker.client("mqtt", client_id, **{**STORED, **more})


class Notes(Wall):
    """Takes note of everything."""

    def __init__(self, *refused: tuple[Action, str], bug: BaseException | None = None) -> None:
        super().__init__(*refused)
        self.events: list[AuditEvent] = []
        self.bug = bug

    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)
        if self.bug is not None:
            raise self.bug

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.password == b"wrong":
            raise AccessError("wrong user name or password", principal=credentials.username)
        return Principal(credentials.username, frozenset({"g"}))
