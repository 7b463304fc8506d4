"""A connected client as the parts of its connection and the rest of the broker see it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from tidegate.broker.connection.deciding import HeldBack
from tidegate.broker.limits.in_flight import InFlightBytes
from tidegate.broker.lists.pending_list import Consumer
from tidegate.broker.owner import origin_of
from tidegate.broker.parts import Parts
from tidegate.broker.publish.access import Rights
from tidegate.broker.sessions.authentication import Vouched
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.turn.flow import INFLIGHT_WORK
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    ClientPeer,
    ConnectionEndedError,
    ConnectRequest,
    GatewayError,
    Identity,
    InflightRecord,
    Principal,
    PutInflight,
    RequestError,
    StoredMessage,
    Token,
)
from tidegate.spi.clients.bind import host_of

_log = logging.getLogger("tidegate.broker.connection")


class Client(ABC):
    """See the module.

    Attributes:
        prefetch_count: of subscriptions restored with the session.
        identity: who authorizers are told it is; principal: the name in it.
        vouched: can say later who it is; is_certified: its certificate says so.
        expires_at: when it ends, in microseconds since the Unix epoch; 0: never.
        is_writable: the socket takes more, the handshake is finished, and it is decided what the client
            may have.
        is_undecided: rights have changed, and this client has not been decided about yet (deciding.py).
        rights: cached answers about what it may do.
        account: what is charged to it; in_flight: what it has not acknowledged.
        number: of this connection alone; connected_at: microseconds since the epoch.
        version, listener, certificate, heeds_drain: see ConnectRequest.
        delivered: messages it was given; confirmed_count: what it was told is durable.
        origin: of its publishes; key: the client's key, "" without a client id.
    """

    __slots__ = (
        "__weakref__",
        "_at_once",
        "_peer",
        "_throttled",
        "account",
        "add_in_flight",
        "address",
        "certificate",
        "client_id",
        "confirmed_count",
        "connected_at",
        "delivered",
        "expires_at",
        "heeds_drain",
        "held_back",
        "identity",
        "in_flight",
        "is_certified",
        "is_closed",
        "is_undecided",
        "is_writable",
        "key",
        "listener",
        "number",
        "origin",
        "parts",
        "prefetch_count",
        "principal",
        "protocol",
        "rights",
        "rules",
        "session",
        "version",
        "vouched",
    )

    def __init__(
        self, parts: Parts, request: ConnectRequest, peer: ClientPeer, principal: Principal
    ) -> None:
        self.parts = parts
        self.client_id = request.client_id
        self.protocol = request.protocol
        self.rules = request.rules
        self.address = request.peer
        self.version = request.version
        self.listener = request.listener
        self.certificate = request.tls_subject
        self.heeds_drain = request.heeds_drain
        self.number = 0
        self.connected_at = parts.writer.now()
        self.delivered = 0
        self.confirmed_count = 0
        self.prefetch_count = request.prefetch_count
        self.identity = identity_of(principal, request)
        self.principal = principal.name
        self.origin = origin_of(self.identity, request.version)
        self.key = self.origin.key
        self.expires_at = principal.expires_at
        self.vouched = Vouched(principal)
        self.is_certified = request.tls_principal is not None
        self.session: SessionState | None = None
        self.is_writable = False
        self.is_closed = False
        self.is_undecided = False
        self.held_back = HeldBack()
        self.account = parts.accounts.open(principal.name, request.peer)
        self.rights = Rights(self.account)
        self.in_flight = InFlightBytes(self.account, self.crowded)
        self.add_in_flight = self.in_flight.add
        self._peer = peer
        self._throttled: set[object] = set()
        self._at_once: object = None  # the one of these for which nothing more is done

    def __repr__(self) -> str:
        return f"<{self.protocol} {self.address} client_id={self.client_id!r}>"

    @abstractmethod
    def end(self, error: GatewayError) -> None:
        """The broker ends the connection and tells the front-end."""

    def end_behind_answers(self, error: GatewayError) -> None:
        """End it, after the answers to what it sent before."""
        loop = asyncio.get_running_loop()

        def end(_: GatewayError | None = None) -> None:
            loop.call_soon(self.end, error)  # after that of this publish, too

        self.parts.writer.when_durable(end, end)

    @abstractmethod
    def crowded(self) -> None:
        """It has too much in flight to be given more, or no longer has."""

    @abstractmethod
    def decide_who(self) -> None:
        """Rights have changed: who is it now? Raises: AccessError: nobody, or it may not connect."""

    def check_open(self) -> None:
        """Call first in whatever needs a right. Raises: RequestError, AccessError."""
        if self.is_closed:
            raise RequestError("the connection is closed")
        if self.is_undecided:
            self.decide_who()

    def hold_back(self, act: Callable[[], None], size: int = 0) -> bool:
        """Do *act* when it is decided what the client may have; never, if the client ends before.

        Args: size: bytes that *act* hands over. Returns: False when too many wait already.
        """
        return self.held_back.add(act, size)

    # --- what the writer and the lists call ------------------------------------------------

    def confirmed(self, tokens: list[Token]) -> None:
        if self.is_closed:
            return
        self.confirmed_count += len(tokens)
        try:
            self._peer.confirmed(tokens)
        except FAILURES:
            self._front_end_failed("confirm")

    def failed(self, token: Token, error: GatewayError) -> None:
        if self.is_closed:
            return
        try:
            self._peer.failed(token, error)
        except FAILURES:
            self._front_end_failed("tell a failure")

    def deliver(self, consumer: Consumer, messages: Sequence[StoredMessage]) -> None:
        self.delivered += len(messages)
        try:
            self._peer.deliver(consumer.key, messages)
        except FAILURES:
            self._front_end_failed("deliver")

    def _front_end_failed(self, what: str) -> None:
        """The contract forbids it, but one client's front-end must not stop the others."""
        _log.exception("peer=%s: front-end failed to %s", self.address, what)
        self.end(
            ConnectionEndedError(
                "internal-error", "internal error in the protocol front-end; see the gateway's log"
            )
        )

    @property
    def throttled_for(self) -> Collection[object]:
        """Why nothing is read from it."""
        return self._throttled

    def throttle(self, reason: object, *, at_once: bool = False) -> None:
        """Stop reading from this client until :meth:`unthrottle` with the same reason.

        Args: at_once: what was already read waits, too; not for a reason that perhaps only the
            client itself can end.
        """
        if at_once:
            if self._at_once is reason:
                return
            self._at_once = reason
            self._peer.throttle(True, at_once=True)
        elif not self._throttled:
            self._peer.throttle(True)
        self._throttled.add(reason)

    def unthrottle(self, reason: object) -> None:
        if reason in self._throttled:
            self._throttled.discard(reason)
            was_at_once = self._at_once is reason
            if was_at_once:
                self._at_once = None
            if not self.is_closed and (was_at_once or not self._throttled):
                self._peer.throttle(bool(self._throttled))

    # --- its session -----------------------------------------------------------------------

    def put_inflight(
        self, record: InflightRecord | None, undo: list[Callable[[], None]] | None = None
    ) -> None:
        """Put a packet-id state into the filling turn, if there is a session to keep it.

        Args: undo: gets the step that takes it back. A dropped publish must not leave its packet id
            behind: the client's next try with the same id would be taken for a duplicate and the
            message lost.
        """
        session = self.session
        if record is None or session is None:
            return
        key = (record.direction, record.packet_id)
        session.inflight[key] = record
        self.parts.writer.add_operation(PutInflight(record))
        self.parts.flow.add_work(self, INFLIGHT_WORK)

        def forget() -> None:
            if session.inflight.get(key) is record:
                del session.inflight[key]

        if undo is not None:
            undo.append(forget)


def identity_of(principal: Principal, request: ConnectRequest) -> Identity:
    """Who authorizers are told a client is."""
    return Identity(
        principal.name,
        principal.groups,
        request.client_id,
        host_of(request.peer),
        request.protocol,
    )
