"""The broker's side of one client connection: see :class:`tidegate.spi.BrokerConnection`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Never

import msgspec

from tidegate.broker.connection.client import Client
from tidegate.broker.connection.deciding import Deciding
from tidegate.broker.connection.messages import Messages
from tidegate.broker.connection.serving import Serving
from tidegate.broker.connection.transacting import Transacting
from tidegate.broker.limits.accounts import Counted
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.parts import Parts
from tidegate.broker.sessions import in_doubt
from tidegate.broker.sessions.authentication import vouched_of
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.sessions.wills import Will
from tidegate.broker.turn.flow import INFLIGHT_WORK
from tidegate.broker.turn.walks import Walk
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    AccessError,
    Action,
    AuthenticationExchange,
    Branch,
    BranchId,
    ClientPeer,
    ConnectRequest,
    GatewayError,
    Held,
    InflightDirection,
    InflightRecord,
    Message,
    Principal,
    PutInflight,
    RemoveInflight,
    RequestError,
    SubscribeRequest,
    Subscription,
    Token,
    memory_bytes,
)

_log = logging.getLogger("tidegate.broker.connection")

#: Throttle reason: the gateway stops and takes no new work.
STOPPING: Final = "stopping"

#: What ending a connection costs, in answers of authorizers.
_END_WORK: Final = 4

#: Memory of an idle client, here and in its front-end, besides its socket: measured with a thousand.
CONNECTION_BYTES: Final = 6 * 1024

#: Why a connection ended, if nobody says anything else.
_LEFT: Final = "the client disconnected"
_LOST: Final = "the connection was lost"

#: No QoS 2 message is in the middle of its handshake.
NOTHING_UNANSWERED: Final[Mapping[str, Sequence[int]]] = {}


class Connection(Client):
    """One connected client. Made by :meth:`BrokerCore.connect`.

    When closed it drops its parts, which refer to it: reference counts free it (decision 12).

    Args: deciding: decides again when its rights change; on_end: called once, last.

    Attributes:
        is_admitted: False while its session is not durable yet.
        ended_by: why it ended, if the gateway or its front-end said so; "": its client or the network ended it.
        consumers: what it consumes from, by the front-end's key.
    """

    __slots__ = (
        "_deciding",
        "_given",
        "_is_counted",
        "_is_ending",
        "_is_known",
        "_messages",
        "_on_end",
        "_resumed",
        "_serving",
        "_socket_writable",
        "_transacting",
        "_will",
        "_writer",
        "acknowledge",
        "check_publish",
        "consumers",
        "ended_by",
        "is_admitted",
        "publish",
    )

    def __init__(
        self,
        parts: Parts,
        request: ConnectRequest,
        peer: ClientPeer,
        principal: Principal,
        deciding: Deciding,
        on_end: Callable[[Connection], None],
    ) -> None:
        super().__init__(parts, request, peer, principal)
        self._is_counted = False
        self.is_admitted = True
        self._is_ending = False
        self.ended_by = ""
        self._deciding = deciding
        self._is_known = True
        # When rights change: the rights by which it was handed what it has not taken, if known.
        self._given: set[tuple[Action, str]] | None = set()
        self._writer = parts.writer
        self._will = request.will
        self._on_end = on_end
        self._socket_writable = True
        self._resumed = False
        self._serving = Serving(parts, self)
        self.consumers = self._serving.consumers
        self._transacting = Transacting(self, self._serving)
        self._messages = Messages(self, self._serving, self._transacting)
        # Nearly every message takes these paths.
        self.publish = self._messages.publish
        self.acknowledge = self._messages.acknowledge
        self.check_publish = self._messages.check_publish

    def enter(self, older: Connection | None) -> None:
        """Count it. Args: older: a connection that it replaces.

        Raises: FlowControlError: its principal has too many, or no room for its will.
        """
        if older is None:
            self.account.count(Counted.CONNECTIONS)
        else:
            self.account.recount(Counted.CONNECTIONS, 1)
        self._is_counted = True
        # Whether there is room or not: a client that comes in may be the one that frees some.
        self.account.add(Held.CONNECTIONS, CONNECTION_BYTES)
        if self._will is not None:
            self.account.charge(Held.WILLS, memory_bytes(self._will))

    @property
    def meter(self) -> Callable[[int], None] | None:
        meter = self.parts.accounts.meter(self.principal)
        return None if meter is None else partial(meter.received, self)

    def end(self, error: GatewayError) -> None:
        """The front-end is told first: from within ``closed()`` it can still say what the client
        acknowledged and which packet ids are in flight (acknowledge, disconnect)."""
        if self.is_closed or self._is_ending:
            return
        self._is_ending = True
        self.ended_by = str(error)
        self.is_writable = False
        try:
            self._peer.closed(error)
        except FAILURES:
            _log.exception("peer=%s: front-end failed to close", self.address)
        self.disconnect(graceful=not self.is_admitted)

    def hold(self) -> None:
        """The gateway stops: nothing more is read from this client or delivered to it."""
        self._resumed = False
        self.held_back.clear()
        self._set_writable()
        self.throttle(STOPPING)

    def finish(self) -> bool:
        """Deliver nothing more to this client; all else goes on. Returns: whether it was delivered to until now."""
        was = self._resumed
        self._resumed = False
        self._set_writable()
        return was

    def go_on(self) -> None:
        """Deliver to it again. Only if :meth:`finish` returned True."""
        if not self.is_closed:
            self._resumed = True
            self._set_writable()

    @property
    def is_idle(self) -> bool:
        """It has nothing to acknowledge, and no transaction."""
        if self.is_closed:
            return True
        return not (len(self._transacting) or any(one.in_flight for one in self.consumers.values()))

    def authenticated_again(self, exchange: AuthenticationExchange) -> None:
        vouched = vouched_of(exchange)
        principal = vouched.principal
        if principal.name != self.principal:
            raise AccessError("authenticated again as a different user", principal=self.principal)
        if self.is_certified:
            return  # its groups, and how long it may stay, are those of the certificate
        self.vouched = vouched
        self.expires_at = principal.expires_at
        self._deciding.begin((self,))

    # --- BrokerConnection: consuming -------------------------------------------------------

    def resume(self) -> None:
        if self.is_closed:
            return
        if self.is_undecided:
            self.hold_back(self.resume)
            return
        self._resumed = True
        self._serving.hand_back()
        self._set_writable()

    def holds(self, kind: Held, size: int) -> None:
        if not self.is_closed:
            self.account.put(kind, size)

    @property
    def is_resumed(self) -> bool:
        """Its handshake is finished."""
        return self._resumed

    @property
    def is_read(self) -> bool:
        """Its socket takes what is written."""
        return self._socket_writable

    @property
    def transaction_count(self) -> int:
        """Transactions it has begun."""
        return 0 if self.is_closed else len(self._transacting)

    def writable(self, value: bool) -> None:
        self._socket_writable = value
        self._set_writable()

    def _set_writable(self) -> None:
        was = self.is_writable
        self.is_writable = (
            self._socket_writable
            and self._resumed
            and not self.is_closed
            and not self.is_undecided
            and not self.in_flight.is_crowded
        )
        if self.is_writable and not was:
            self._serving.wake()

    def crowded(self) -> None:
        self._set_writable()

    def make_temporary(self, destination: str) -> str:
        self.check_open()
        return self.parts.temporary.make(self, destination)

    def may_take(self, destination: str) -> bool:
        self.check_open()
        return self.parts.access.may_take(self, destination)

    def subscribe(self, request: SubscribeRequest, token: Token = None) -> bool:
        self.check_open()
        return self._serving.subscribe(request, token)

    def unsubscribe(self, key: str, token: Token = None, *, forget: bool = False) -> bool:
        self.check_open()
        return self._serving.unsubscribe(key, token, forget=forget)

    def reject(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
    ) -> None:
        self.check_open()
        self._messages.reject(key, sequences, token, transaction)

    def refuse(self, key: str, sequences: Sequence[int], reason: str) -> None:
        self.check_open()
        self._messages.refuse(key, sequences, reason)

    # --- BrokerConnection: transactions ----------------------------------------------------

    def begin(self, transaction: str) -> None:
        self.check_open()
        self._transacting.begin(transaction)

    def commit(self, transaction: str, token: Token = None) -> None:
        self.check_open()
        self._transacting.commit(transaction, token)

    def abort(self, transaction: str, token: Token = None) -> None:
        self.check_open()
        self._transacting.abort(transaction, token)

    def prepare(self, transaction: str, branch_id: BranchId, token: Token = None) -> None:
        self.check_open()
        self._transacting.prepare(transaction, self._own(branch_id), token)

    def commit_branch(self, branch_id: BranchId, token: Token = None) -> None:
        self.check_open()
        self.parts.branches.complete(
            self._own(branch_id), self, token, commit=True, check=self._check_held
        )

    def roll_back_branch(self, branch_id: BranchId, token: Token = None) -> None:
        self.check_open()
        self.parts.branches.complete(self._own(branch_id), self, token, commit=False)

    def forget_branch(self, branch_id: BranchId, token: Token = None) -> None:
        self.check_open()
        self.parts.branches.forget(self._own(branch_id), self, token)

    def _check_held(self, message: Message) -> None:
        """The committing client must have the right. Raises: AccessError."""
        if self.is_closed:  # since it asked: nobody keeps the cached answers up to date
            self.rights.forget()
        elif self.is_undecided:
            self.decide_who()
        self.parts.access.check_held(self, message)

    def _own(self, branch_id: BranchId) -> BranchId:
        """Nobody learns of another's branch with the same id."""
        return msgspec.structs.replace(branch_id, owner=self.principal)

    def held_of(self, pending_list: PendingList) -> int:
        """How many messages of the list its open transactions hold."""
        return self._transacting.held_of(pending_list)

    def branches(self) -> Sequence[Branch]:
        return self.parts.branches.all_of(self.principal)

    # --- BrokerConnection: the rest --------------------------------------------------------

    def record_inflight(
        self,
        put: Sequence[InflightRecord] = (),
        remove: Sequence[tuple[InflightDirection, int]] = (),
        token: Token = None,
    ) -> None:
        self.check_open()
        session = self.session
        if session is not None:
            # A token waits for the sync; without one nobody needs it.
            operations = self._writer.turn.operations
            for record in put:
                session.inflight[record.direction, record.packet_id] = record
                operations.append(PutInflight(record))
            for key in remove:
                if session.inflight.pop(key, None) is not None:
                    operations.append(RemoveInflight(session.key, *key))
            session.removed()
            self._writer.schedule()
            self.parts.flow.add_work(self, INFLIGHT_WORK * (len(put) + len(remove)))
        if token is not None:
            self._writer.confirm(self, token)

    def synchronize(self, token: Token) -> None:
        deferred = self.parts.flow.deferred
        if self in deferred.clients:
            deferred.behind(self, partial(self._writer.confirm, self, token))
        else:
            self._writer.confirm(self, token)

    @property
    def has_unconfirmed(self) -> bool:
        return not self.is_closed and (
            self._writer.owes(self) or self in self.parts.flow.deferred.clients
        )

    def disconnect(
        self,
        *,
        graceful: bool,
        publish_will: bool = False,
        session_expiry: int | None = None,
        unanswered: Mapping[str, Sequence[int]] = NOTHING_UNANSWERED,
        reason: str = "",
    ) -> None:
        if self.is_closed:
            return
        parts = self.parts
        self.ended_by = self.ended_by or reason or (_LEFT if graceful else _LOST)
        self._transacting.abort_all()
        self.rights.end()
        self.account.clear()
        if self._is_counted:
            self._is_counted = False
            self.account.recount(Counted.CONNECTIONS, -1)
        self.is_closed = True
        self.is_writable = False
        self.held_back.clear()
        session, consumers = self.session, self.consumers
        if session is not None and session_expiry is not None:
            parts.sessions.set_expiry(session, session_expiry)
        if unanswered:
            in_doubt.set_aside(self._writer, session, consumers, unanswered)
        self._serving.drop_all()
        self.in_flight.end()
        parts.temporary.remove_of(self)
        will = self._will
        has_will = will is not None and (publish_will or not graceful)
        if session is not None:
            parts.sessions.end_connection(session, self, has_will=has_will)
        elif will is not None and has_will:
            parts.wills.take(
                Will(
                    parts.wills,
                    will,
                    identity=self.identity,
                    address=self.address,
                    session=None,
                    due=self._writer.elapsed(),
                    who_now=self.vouched.left_behind,
                )
            )
        parts.flow.forget_client(self)
        self.publish = self.acknowledge = self.check_publish = _is_closed
        del self._messages, self._transacting, self._serving
        self._on_end(self)

    def restore(
        self, session: SessionState, restored: list[Subscription], refused: list[Subscription]
    ) -> Walk:
        """See :meth:`Serving.restore`."""
        return self._serving.restore(session, restored, refused)

    # --- when rights change, see deciding.py ---------------------------------------------------

    def hold_until_decided(self) -> bool:
        if self.is_closed:
            return False
        self.is_undecided = True
        self._is_known = False
        self.is_writable = False
        self._messages.look_at_publishes(all_of_them=True)
        return self._peer.has_unsent

    def decide_who(self) -> None:
        if self._is_known:
            return
        access, rights = self.parts.access, self.rights
        principal = self.vouched.now()
        if principal is None:
            raise AccessError(
                "the user no longer exists, or has to log in again",
                principal=self.principal,
            )
        if self._given is not None and access.authorizers and self._peer.has_unsent:
            # For what nobody acknowledges, only the earlier answers tell what it was.
            self._given |= access.given(rights)
            if not rights.is_complete:
                self._given = None
        rights.forget()
        self.identity = dataclasses.replace(self.identity, groups=principal.groups)
        if self.session is not None:
            self.parts.sessions.identify(self.session, self.identity)
        access.authorize(self, Action.CONNECT, "")
        self._is_known = True

    def decide_again(self) -> Iterator[int]:
        access = self.parts.access
        if self.is_closed:
            return
        try:
            self.decide_who()
            yield 1
            if access.authorizers and not self.is_closed:
                yield from self._serving.decide_again()
                if self._peer.has_unsent and not self.is_closed:
                    yield from access.check_unsent(self, self._given)
        except AccessError as error:
            _log.warning("peer=%s client=%r ended: %s", self.address, self.client_id, error)
            self.end(error)
            yield _END_WORK
            return
        if self.is_closed:
            return
        self.is_undecided = False
        self._given = set()
        self._messages.look_at_publishes(all_of_them=False)
        self._set_writable()
        self.held_back.release()


def _is_closed(*_: object, **__: object) -> Never:
    """Replaces what only an open connection has."""
    raise RequestError("the connection is closed")
