"""MQTT sessions: what outlives a connection, and when it is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, Protocol

import msgspec

from tidegate.broker.destinations import Destinations
from tidegate.broker.limits.accounts import Accounts, Counted
from tidegate.broker.owner import key_of, origin_of
from tidegate.broker.publish.access import Requester
from tidegate.broker.sessions import in_doubt
from tidegate.broker.sessions.authentication import Vouched
from tidegate.broker.sessions.state import (
    FOLLOWED_OPTION,
    KEPT_OPTIONS,
    ONCE_OPTION,
    SESSION_BYTES,
    SessionState,
    identity_options,
)
from tidegate.broker.sessions.wills import Will, Wills
from tidegate.broker.turn.flow import STATE_WORK, Flow
from tidegate.broker.turn.walks import Walk
from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    ConnectRequest,
    Held,
    Identity,
    InflightState,
    MessageStore,
    Principal,
    PutSession,
    PutSubscription,
    RecoveredState,
    RemoveSession,
    RemoveSubscription,
    Session,
    StoredMessage,
    Subscription,
)

#: Subscriptions removed with a session between looks at the clock: some 50 microseconds each.
REMOVED_AT_ONCE: Final = 16

#: The same for sessions found not to be over.
LOOKED_AT_ONCE: Final = 1000

#: The beginning of 2020: an earlier clock has not been set yet.
_CLOCK_SET_US: Final = 1_577_836_800_000_000


class Client(Requester, Protocol):
    """The connected client of a session."""

    vouched: Vouched


@dataclass(eq=False, repr=False)
class Sessions:
    """All sessions of the gateway.

    Attributes: who_now: tells who the client of a session is now, None: nobody.
    """

    _flow: Flow
    _destinations: Destinations
    _wills: Wills
    _accounts: Accounts
    who_now: Callable[[Principal], Principal | None] = lambda principal: principal
    expired: int = 0
    _by_key: dict[str, SessionState] = field(default_factory=dict[str, SessionState])
    _connected: set[SessionState] = field(default_factory=set[SessionState])

    def __post_init__(self) -> None:
        self._writer = self._flow.writer

    def __len__(self) -> int:
        return len(self._by_key)

    def all(self) -> list[SessionState]:
        """All current sessions."""
        return list(self._by_key.values())

    # --- start ---------------------------------------------------------------------------------

    def recover(self, state: RecoveredState) -> None:
        """Restore what the store knows. A session that was connected when the gateway died counts
        as disconnected now, and so does one left at an impossible time: in the future, or before
        there were any gateways (the clock was not set yet)."""
        now, elapsed = self._writer.now(), self._writer.elapsed()
        for stored in state.sessions:
            if not _CLOCK_SET_US <= stored.disconnected_at <= now:
                stored = msgspec.structs.replace(stored, disconnected_at=now)
            session = SessionState(stored)
            self._count(session)
            session.left_at = elapsed - (now - stored.disconnected_at)
            self._by_key[stored.key] = session
        for subscription in state.subscriptions:
            if subscription.session:
                session = self._by_key.get(subscription.session)
                if session is None:  # no gateway writes that, and nobody could remove it
                    self._writer.add_operation(RemoveSubscription(subscription.pending_list))
                else:
                    self._keep(session, subscription)
        for record in state.inflight:
            session = self._by_key.get(record.session)
            if session is not None:
                session.inflight[record.direction, record.packet_id] = record
        for session in self._by_key.values():
            session.charge()

    async def recover_in_doubt(self, store: MessageStore) -> None:
        """Destinations and subscriptions exist, clients are not here yet. Raises: StoreError."""
        attached = [item for item in self._by_key.values() if item.attached]
        await in_doubt.recover(self._writer, self._destinations, store, attached)

    def end_recovery(self) -> None:
        """Destinations and subscriptions exist: wills of clients that are gone take effect."""
        for session in list(self._by_key.values()):
            stored = session.stored
            if stored.will is not None:
                identity = session.identity
                known = Principal(identity.principal, identity.groups)
                who_now = partial(self.who_now, known) if session.is_followed else None
                self._leave_will(session, identity, "before the start", who_now)
        for _ in self.expire(self._writer.elapsed()):
            pass

    # --- life ----------------------------------------------------------------------------------

    def get(self, key: str) -> SessionState | None:
        """The session under *key*, see :func:`client_key`."""
        return self._by_key.get(key)

    def find(self, key: str) -> SessionState | None:
        """The session that a client resumes, or one that is ending; none when it is over."""
        session = self.get(key)
        if session is not None and self._is_over(session, self._writer.elapsed()):
            self._expire(session)
        return None if session is None or session.is_removed else session

    def check_room(self, request: ConnectRequest, identity: Identity) -> None:
        """Call before a client gets a session. Raises: FlowControlError: its principal has too many."""
        key = origin_of(identity).key
        wants = request.session_expiry > 0 or request.will is not None
        if wants and key not in self._by_key:
            account = self._accounts.of(identity.principal)
            account.check_count(Counted.SESSIONS)
            account.check(Held.SESSIONS, SESSION_BYTES)

    def _count(self, session: SessionState) -> None:
        account = session.account = self._accounts.of(session.stored.owner)
        account.recount(Counted.SESSIONS, 1)
        session.charge()

    def begin(
        self, request: ConnectRequest, identity: Identity, *, is_followed: bool = False
    ) -> SessionState:
        """Create the session, or resume the existing one, as *request* wants it.

        Args: is_followed: see :class:`SessionState`.
        """
        key = origin_of(identity).key
        session = self._by_key.get(key)
        options = identity_options(identity)
        if request.rules.delivers_once:
            options[ONCE_OPTION] = "1"
        if is_followed:
            options[FOLLOWED_OPTION] = "1"
        stored = Session(
            key,
            request.session_expiry,
            0,
            options,
            request.will,
            request.will_delay,
            identity.protocol,
            identity.principal,
            identity.client_id,
        )
        if session is None:
            session = self._by_key[key] = SessionState(stored)
            self._count(session)
        else:
            self._wills.cancel(session)
        session.stored = stored
        session.charge()
        self._writer.add_operation(PutSession(stored))
        return session

    def take_up(self, session: SessionState, connection: Client) -> None:
        """*connection* owns it from now on."""
        session.connection = connection
        self._connected.add(session)
        session.charge()

    def identify(self, session: SessionState, identity: Identity) -> None:
        """Its client's groups have changed: after a kill its will is authorized by them."""
        before = session.stored
        kept = {name: before.options[name] for name in KEPT_OPTIONS if name in before.options}
        options = identity_options(identity) | kept
        if options != before.options:
            session.stored = msgspec.structs.replace(before, options=options)
            self._writer.add_operation(PutSession(session.stored))

    def end_connection(self, session: SessionState, connection: Client, *, has_will: bool) -> None:
        """Its connection is gone; its expiry interval runs from now on.

        Args: has_will: the will must be published.
        """
        session.connection = None
        self._connected.discard(session)
        session.left_at = self._writer.elapsed()
        stored = session.stored
        session.stored = msgspec.structs.replace(
            stored,
            disconnected_at=self._writer.now(),
            will=stored.will if has_will else None,
            will_delay=stored.will_delay if has_will else 0,
        )
        session.charge()
        self._writer.add_operation(PutSession(session.stored))
        if has_will:
            self._leave_will(
                session, connection.identity, connection.address, connection.vouched.left_behind
            )
        if session.stored.expiry_interval == 0:
            self.remove(session)
        elif session.attached:
            in_doubt.settle_ids(self._writer, session)

    def set_expiry(self, session: SessionState, interval_s: int) -> None:
        """Replace its expiry interval; stored when the connection ends."""
        session.stored = msgspec.structs.replace(session.stored, expiry_interval=interval_s)

    def _leave_will(
        self,
        session: SessionState,
        identity: Identity,
        address: str,
        who_now: Callable[[], Principal | None] | None = None,
    ) -> None:
        stored = session.stored
        assert stored.will is not None
        delay_s = min(stored.will_delay, stored.expiry_interval)
        will = Will(
            self._wills,
            stored.will,
            identity=identity,
            address=address,
            session=session,
            due=session.left_at + delay_s * 1_000_000,
            who_now=who_now,
        )
        self._wills.take(will)

    def remove(self, session: SessionState, why: str = "its session ended") -> None:
        """Forget the session with its subscriptions and packet-id states; a waiting will is published
        [MQTT-3.1.2-8 of 5.0].

        A session with many subscriptions exists, and is ending, until the last one is gone. A few go
        in each turn, so that a kill never leaves a session that lives on without some of them.
        Args: why: for the rows of what they held.
        """
        if session.is_ending:
            return
        session.is_ending = True
        self._wills.session_ended(session)
        if self._size_of(session) >= REMOVED_AT_ONCE:
            session.gone = asyncio.Event()
            # After a kill in the middle it has expired, and the rest is removed at the start.
            session.stored = msgspec.structs.replace(session.stored, expiry_interval=0, will=None)
            self._writer.add_operation(PutSession(session.stored))
        self._flow.walks.begin(self._remove(session, why))

    def _remove(self, session: SessionState, why: str) -> Walk:
        destinations, flow = self._destinations, self._flow
        work = STATE_WORK * REMOVED_AT_ONCE
        lists = destinations.lists_of(session.key)  # shrinks meanwhile
        while lists:
            for pending_list in list(islice(lists.values(), REMOVED_AT_ONCE)):
                destinations.remove_subscription(pending_list, why)
            if lists:
                yield flow.add_own_work(work)
        for count, name in enumerate(list(session.attached), 1):
            self._forget(session, name)
            if not count % REMOVED_AT_ONCE:
                yield flow.add_own_work(work)
        del self._by_key[session.key]
        self._connected.discard(session)
        session.uncharge()
        session.is_removed = True
        self._writer.add_operation(RemoveSession(session.key))
        if session.gone is not None:
            session.gone.set()

    def _size_of(self, session: SessionState) -> int:
        """How many subscriptions it has."""
        return len(self._destinations.lists_of(session.key)) + len(session.attached)

    def count_disconnected(self) -> int:
        """Sessions whose client is away."""
        return len(self._by_key) - len(self._connected)

    def expire(self, elapsed: int) -> Iterator[int]:
        """Remove expired sessions; *elapsed*: :meth:`BrokerCore.elapsed`.

        Yields: after each, its cost: the subscriptions that went with it, and itself; and now and then 0.
        """
        for count, session in enumerate(list(self._by_key.values()), 1):
            if self._is_over(session, elapsed) and self._by_key.get(session.key) is session:
                size = 1 + min(self._size_of(session), REMOVED_AT_ONCE)
                self._expire(session)
                yield size
            elif not count % LOOKED_AT_ONCE:
                yield 0

    @staticmethod
    def _is_over(session: SessionState, elapsed: int) -> bool:
        interval_s = session.stored.expiry_interval
        return (
            session.connection is None
            and not session.is_ending
            and interval_s != SESSION_NEVER_EXPIRES
            and session.left_at + interval_s * 1_000_000 <= elapsed
        )

    def _expire(self, session: SessionState) -> None:
        self.expired += 1
        self.remove(session, "its session expired")

    def delivers_once(self, subscription: Subscription) -> bool:
        """See :attr:`tidegate.spi.ClientRules.delivers_once`, for a stored subscription's client."""
        session = self.get(key_of(subscription))
        return session is not None and ONCE_OPTION in session.stored.options

    def half_sent(self, subscription: Subscription, messages: Sequence[StoredMessage]) -> set[int]:
        """Which of *messages* the session's client may have been sent already: onward delivery has
        begun, so it is completed although they have expired since ([MQTT-3.3.2-5], [MQTT-4.3.3-7]
        of 5.0)."""
        session = self.get(key_of(subscription))
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
        """The session consumes from a queue or a shared subscription from now on, even after it is resumed."""
        before = session.attached.get(subscription.name)
        list_id = before.pending_list if before is not None else self._writer.take_list_id()
        kept = msgspec.structs.replace(subscription, pending_list=list_id, session=session.key)
        if kept == before:
            return
        self._writer.add_operation(PutSubscription(kept))
        self._keep(session, kept)
        session.charge()

    def detach(self, session: SessionState, name: str) -> None:
        """It no longer does."""
        if name in session.attached:
            self._forget(session, name)
            session.charge()

    def _keep(self, session: SessionState, subscription: Subscription) -> None:
        session.attach(subscription)
        if subscription.share_group:
            self._destinations.add_member(subscription, session)

    def _forget(self, session: SessionState, name: str) -> None:
        subscription = session.detach(name)
        in_doubt.discard(self._writer, self._destinations, session, subscription)
        self._writer.add_operation(RemoveSubscription(subscription.pending_list))
        if subscription.share_group:
            self._destinations.remove_member(subscription, session)
