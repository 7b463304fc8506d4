"""MQTT sessions: what outlives a connection, and when it is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    InflightDirection,
    InflightRecord,
    PutSession,
    RecoveredState,
    RemoveSession,
    Session,
)

if TYPE_CHECKING:
    from tidegate.broker._connection import Connection
    from tidegate.broker._core import BrokerCore
    from tidegate.broker._pending_list import PendingList

#: Option under which the front-end's name is kept with a stored session.
_PROTOCOL_OPTION: Final = "protocol"
_DEFAULT_PROTOCOL: Final = "mqtt"


class SessionState:
    """A session: its stored part, its subscriptions and packet-id states.

    Attributes:
        lists: its durable subscriptions by name.
        inflight: stored packet-id states by (direction, packet id).
        detached: OUT records of QoS 1 messages, kept from one connection to the next in memory.
        connection: the one that has it now.
    """

    __slots__ = ("connection", "detached", "inflight", "lists", "protocol", "stored")

    def __init__(self, protocol: str, stored: Session) -> None:
        self.protocol = protocol
        self.stored = stored
        self.lists: dict[str, PendingList] = {}
        self.inflight: dict[tuple[InflightDirection, int], InflightRecord] = {}
        self.detached: list[InflightRecord] = []
        self.connection: Connection | None = None

    @property
    def client_id(self) -> str:
        return self.stored.client_id

    def records(self) -> list[InflightRecord]:
        """Everything a resumed connection must know; stored records win over detached ones."""
        known = {(record.direction, record.packet_id) for record in self.inflight.values()}
        rest = [r for r in self.detached if (r.direction, r.packet_id) not in known]
        return [*self.inflight.values(), *rest]


class Sessions:
    """All sessions of the gateway."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._by_key: dict[tuple[str, str], SessionState] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def recover(self, state: RecoveredState, now: int) -> None:
        """Take up what the store knows. A session that was connected when the gateway died
        counts as disconnected now."""
        for stored in state.sessions:
            protocol = stored.options.get(_PROTOCOL_OPTION, _DEFAULT_PROTOCOL)
            if stored.disconnected_at == 0:
                stored = Session(stored.client_id, stored.expiry_interval, now, stored.options)
            self._by_key[protocol, stored.client_id] = SessionState(protocol, stored)
        for record in state.inflight:
            session = self._by_key.get((_DEFAULT_PROTOCOL, record.client_id))
            if session is not None:
                session.inflight[record.direction, record.packet_id] = record

    def get(self, protocol: str, client_id: str) -> SessionState | None:
        return self._by_key.get((protocol, client_id))

    def begin(self, protocol: str, client_id: str, expiry: int) -> SessionState:
        """Create the session, or take up the existing one, with a new expiry interval."""
        stored = Session(client_id, expiry, 0, {_PROTOCOL_OPTION: protocol})
        session = self._by_key.get((protocol, client_id))
        if session is None:
            session = self._by_key[protocol, client_id] = SessionState(protocol, stored)
        session.stored = stored
        self._core.add_operation(PutSession(stored))
        return session

    def end_connection(self, session: SessionState, now: int) -> None:
        """Its connection is gone; from now on its expiry interval runs."""
        session.connection = None
        old = session.stored
        session.stored = Session(old.client_id, old.expiry_interval, now, old.options)
        self._core.add_operation(PutSession(session.stored))

    def remove(self, session: SessionState) -> None:
        """Forget the session with its subscriptions and packet-id states."""
        self._by_key.pop((session.protocol, session.client_id), None)
        for pending_list in list(session.lists.values()):
            self._core.remove_subscription(pending_list)
        self._core.add_operation(RemoveSession(session.client_id))

    def expire(self, now: int) -> None:
        """Remove the sessions whose time is over."""
        for session in list(self._by_key.values()):
            stored = session.stored
            if (
                session.connection is None
                and stored.expiry_interval != SESSION_NEVER_EXPIRES
                and stored.disconnected_at + stored.expiry_interval * 1_000_000 <= now
            ):
                self.remove(session)
