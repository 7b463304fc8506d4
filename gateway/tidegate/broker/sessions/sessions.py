"""MQTT sessions: what outlives a connection, and when it is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate.broker.sessions import in_doubt
from tidegate.broker.sessions.wills import Will
from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    ConnectRequest,
    InflightDirection,
    InflightRecord,
    InflightState,
    PutSession,
    RecoveredState,
    RemoveSession,
    Session,
    StoredMessage,
    Subscription,
)

if TYPE_CHECKING:
    from tidegate.broker.connection import Connection
    from tidegate.broker.core import BrokerCore
    from tidegate.broker.lists.pending_list import PendingList

#: Options kept with a stored session: the front-end's name, and who the client was.
_PROTOCOL_OPTION: Final = "protocol"
_PRINCIPAL_OPTION: Final = "principal"
_DEFAULT_PROTOCOL: Final = "mqtt"

#: The beginning of 2020: a clock that says less was not set yet.
_CLOCK_SET_US: Final = 1_577_836_800_000_000


class SessionState:
    """A session: its stored part, its subscriptions and packet-id states.

    Attributes:
        lists: its durable subscriptions by name.
        inflight: stored packet-id states by (direction, packet id).
        connection: the one that has it now.
        left_at: when its last connection ended, by :meth:`BrokerCore.elapsed`: its expiry and the
            delay of its will run from there, whatever the wall clock does.
        in_doubt: by name of a shared subscription, QoS 2 messages whose handshake its last
            connection left unfinished (:mod:`tidegate.broker.sessions.in_doubt`).
    """

    __slots__ = ("connection", "in_doubt", "inflight", "left_at", "lists", "protocol", "stored")

    def __init__(self, protocol: str, stored: Session) -> None:
        self.protocol = protocol
        self.stored = stored
        self.lists: dict[str, PendingList] = {}
        self.inflight: dict[tuple[InflightDirection, int], InflightRecord] = {}
        self.connection: Connection | None = None
        self.left_at = 0
        self.in_doubt: in_doubt.InDoubt = {}

    @property
    def client_id(self) -> str:
        return self.stored.client_id

    @property
    def principal(self) -> str:
        return self.stored.options.get(_PRINCIPAL_OPTION, "")

    def records(self) -> list[InflightRecord]:
        """Every packet-id state that a resumed connection must know, in the order they began."""
        return list(self.inflight.values())


class Sessions:
    """All sessions of the gateway."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.expired = 0
        self._by_key: dict[tuple[str, str], SessionState] = {}
        # Shared subscriptions, by (group, filter): the sessions that have them also while away.
        self._members: dict[tuple[str, str], set[SessionState]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    # --- start ---------------------------------------------------------------------------------

    def recover(self, state: RecoveredState) -> None:
        """Take up what the store knows. A session that was connected when the gateway died counts
        as disconnected now, and so does one of which the clock says what cannot be: that it was
        left in the future, or before there were any gateways (a clock that was not set yet)."""
        now, elapsed = self._core.now(), self._core.elapsed()
        for stored in state.sessions:
            protocol = stored.options.get(_PROTOCOL_OPTION, _DEFAULT_PROTOCOL)
            if not _CLOCK_SET_US <= stored.disconnected_at <= now:
                stored = msgspec.structs.replace(stored, disconnected_at=now)
            session = SessionState(protocol, stored)
            session.left_at = elapsed - (now - stored.disconnected_at)
            self._by_key[protocol, stored.client_id] = session
            for subscription in stored.attached:
                self._add_member(session, subscription)
        for record in state.inflight:
            session = self._by_key.get((_DEFAULT_PROTOCOL, record.client_id))
            if session is not None:
                session.inflight[record.direction, record.packet_id] = record

    async def recover_in_doubt(self) -> None:
        """Destinations and subscriptions are there, clients are not. Raises: StoreError."""
        await in_doubt.recover(
            self._core, [item for item in self._by_key.values() if item.stored.attached]
        )

    def end_recovery(self) -> None:
        """Destinations and subscriptions are there: wills of clients that are gone take effect."""
        for session in list(self._by_key.values()):
            stored = session.stored
            if stored.will is not None:
                self._leave_will(session, session.principal, "before the start")
        self.expire(self._core.elapsed())

    # --- life ----------------------------------------------------------------------------------

    def get(self, protocol: str, client_id: str) -> SessionState | None:
        return self._by_key.get((protocol, client_id))

    def find(self, protocol: str, client_id: str) -> SessionState | None:
        """The session that a client takes up; none when its time is over by now."""
        session = self.get(protocol, client_id)
        if session is not None and self._remove_if_over(session, self._core.elapsed()):
            return None
        return session

    def is_known(self, session: SessionState) -> bool:
        """Tell whether it was not removed."""
        return self._by_key.get((session.protocol, session.client_id)) is session

    def begin(self, request: ConnectRequest, principal: str) -> SessionState:
        """Create the session, or take up the existing one, as *request* wants it to be."""
        key = (request.protocol, request.client_id)
        session = self._by_key.get(key)
        stored = Session(
            request.client_id,
            request.session_expiry,
            0,
            {_PROTOCOL_OPTION: request.protocol, _PRINCIPAL_OPTION: principal},
            request.will,
            request.will_delay,
            session.stored.attached if session is not None else (),
        )
        if session is None:
            session = self._by_key[key] = SessionState(request.protocol, stored)
        else:
            self._core.wills.cancel(session)
        session.stored = stored
        self._core.add_operation(PutSession(stored))
        return session

    def end_connection(
        self, session: SessionState, connection: Connection, *, has_will: bool
    ) -> None:
        """Its connection is gone; from now on its expiry interval runs.

        Args: has_will: the will is to be published.
        """
        session.connection = None
        session.left_at = self._core.elapsed()
        stored = session.stored
        session.stored = msgspec.structs.replace(
            stored,
            disconnected_at=self._core.now(),
            will=stored.will if has_will else None,
            will_delay=stored.will_delay if has_will else 0,
        )
        self._core.add_operation(PutSession(session.stored))
        if has_will:
            self._leave_will(session, connection.principal, connection.address)
        if session.stored.expiry_interval == 0:
            self.remove(session)
        elif session.stored.attached:
            in_doubt.settle_ids(self._core, session)

    def set_expiry(self, session: SessionState, interval_s: int) -> None:
        """Replace its expiry interval; stored with the end of the connection."""
        session.stored = msgspec.structs.replace(session.stored, expiry_interval=interval_s)

    def _leave_will(self, session: SessionState, principal: str, address: str) -> None:
        stored = session.stored
        assert stored.will is not None
        delay_s = min(stored.will_delay, stored.expiry_interval)
        will = Will(
            self._core.wills,
            stored.will,
            principal=principal,
            client_id=stored.client_id,
            address=address,
            session=session,
            due=session.left_at + delay_s * 1_000_000,
        )
        self._core.wills.take(will)

    def remove(self, session: SessionState) -> None:
        """Forget the session with its subscriptions and packet-id states; a will that waits is
        published [MQTT-3.1.2-8 of 5.0]."""
        self._core.wills.session_ended(session)
        self._by_key.pop((session.protocol, session.client_id), None)
        for pending_list in list(session.lists.values()):
            self._core.remove_subscription(pending_list)
        for subscription in session.stored.attached:
            in_doubt.discard(self._core, session, subscription)
            self._remove_member(session, subscription)
        self._core.add_operation(RemoveSession(session.client_id))

    def count_disconnected(self) -> int:
        """Sessions whose client is away."""
        return sum(session.connection is None for session in self._by_key.values())

    def expire(self, elapsed: int) -> None:
        """Remove the sessions whose time is over; *elapsed*: :meth:`BrokerCore.elapsed`."""
        for session in list(self._by_key.values()):
            self._remove_if_over(session, elapsed)

    def _remove_if_over(self, session: SessionState, elapsed: int) -> bool:
        stored = session.stored
        if (
            session.connection is not None
            or stored.expiry_interval == SESSION_NEVER_EXPIRES
            or session.left_at + stored.expiry_interval * 1_000_000 > elapsed
        ):
            return False
        self.expired += 1
        self.remove(session)
        return True

    def half_sent(self, subscription: Subscription, messages: Sequence[StoredMessage]) -> set[int]:
        """Which of *messages* the session's client may have been sent already: onward delivery has
        begun, so it is completed although they expired since ([MQTT-3.3.2-5], [MQTT-4.3.3-7] of
        5.0)."""
        session = self.get(subscription.protocol, subscription.client_id)
        if session is None:
            return set()
        sent_through = 0
        sent = {message.sequence for message in messages if message.delivery_count}
        for record in session.inflight.values():
            if record.state is InflightState.PUBLISHED:
                if record.packet_id == 0:
                    sent_through = record.sequence
                elif record.subscription == subscription.name:
                    sent.add(record.sequence)
        sent.update(message.sequence for message in messages if message.sequence <= sent_through)
        return sent

    # --- what it shares with others ------------------------------------------------------------

    def attach(self, session: SessionState, subscription: Subscription) -> None:
        """The session consumes from a queue or a shared subscription from now on, also later."""
        attached = session.stored.attached
        if subscription in attached:
            return
        others = tuple(item for item in attached if item.name != subscription.name)
        session.stored = msgspec.structs.replace(session.stored, attached=(*others, subscription))
        self._core.add_operation(PutSession(session.stored))
        self._add_member(session, subscription)

    def detach(self, session: SessionState, name: str) -> None:
        """It does so no more."""
        for subscription in session.stored.attached:
            if subscription.name == name:
                in_doubt.discard(self._core, session, subscription)
                rest = tuple(i for i in session.stored.attached if i is not subscription)
                session.stored = msgspec.structs.replace(session.stored, attached=rest)
                self._core.add_operation(PutSession(session.stored))
                self._remove_member(session, subscription)

    def has_members(self, share_group: str, destination: str) -> bool:
        """Tell whether a stored session has this shared subscription."""
        return (share_group, destination) in self._members

    def _add_member(self, session: SessionState, subscription: Subscription) -> None:
        if subscription.share_group:
            key = (subscription.share_group, subscription.filter)
            self._members.setdefault(key, set()).add(session)
            self._core.update_shared(*key)

    def _remove_member(self, session: SessionState, subscription: Subscription) -> None:
        if subscription.share_group:
            key = (subscription.share_group, subscription.filter)
            members = self._members.get(key)
            if members is not None:
                members.discard(session)
                if not members:
                    del self._members[key]
            self._core.update_shared(*key)
