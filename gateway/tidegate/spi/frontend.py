"""The contract between a protocol front-end and the broker.

Everything that crosses it is a plain value, so that codecs and sessions can one day live in worker
processes in front of one broker core (design, section 8). The front-end calls
:class:`BrokerConnection`; the broker calls back :class:`ClientPeer`. All calls happen on the event
loop. Only :meth:`Broker.connect` waits; everything else queues operations into the batch of this
turn of the loop and answers through the peer when that batch is durable.

*Tokens* are the front-end's own objects: whatever it needs to write the confirmation (a receipt
id, a packet id). ``None`` means that nobody waits.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from tidegate.spi.branches import Branch, BranchId
from tidegate.spi.errors import GatewayError
from tidegate.spi.large import LargeBodies
from tidegate.spi.messages import Message, StoredMessage
from tidegate.spi.operations import InflightDirection, InflightRecord, Subscription
from tidegate.spi.security import AuthenticationExchange

Token: TypeAlias = object


class RetainHandling(enum.IntEnum):
    """What to do with retained messages when subscribing (MQTT 5.0 section 3.8.3.1)."""

    SEND = 0
    SEND_IF_NEW = 1
    DO_NOT_SEND = 2


class ClientRules(msgspec.Struct, frozen=True):
    """What a protocol says about its clients' subscriptions.

    Attributes:
        replaces: a subscription under a key that is in use takes the place of that one; False: it
            is refused.
        acknowledges_unstored: the client also acknowledges messages that are not stored for its
            subscription (of QoS 0); False: it is not expected to.
        delivers_once: a message that several of the client's subscriptions cover is delivered once.
    """

    replaces: bool = False
    acknowledges_unstored: bool = True
    delivers_once: bool = False


class ConnectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client that finished its protocol's handshake.

    Attributes:
        protocol: e.g. ``stomp`` or ``mqtt``; version: e.g. ``1.2``, ``3.1.1``.
        client_id: "" for none. A second connection with the same client id *and protocol* takes
            over the first, which is closed.
        peer: ``host:port`` of the client; listener: ``stomp://host:port``.
        username: "" for none; password: None for none.
        clean_start: forget the stored session (MQTT Clean Session).
        session_expiry: seconds the session outlives the connection; 0 = ends with it,
            SESSION_NEVER_EXPIRES = for ever.
        will: published when the connection ends without :meth:`BrokerConnection.disconnect`.
        will_delay: seconds that the will waits for the client to come back; without effect beyond
            the end of the session, at which it is published in any case.
        anonymous_allowed: the listener's rule for clients without credentials.
        prefetch_count: for subscriptions that are restored with the session; 0 takes the
            destination policy's default.
        tls_subject: subject of the client's verified certificate, "" when it showed none.
        exchange: a finished exchange of :meth:`Broker.begin_authentication`, which stands for the
            credentials; None when the client authenticates by user name and password or not at all.
        rules: of its protocol.
    """

    protocol: str
    version: str
    client_id: str
    peer: str
    listener: str
    username: str = ""
    password: bytes | None = None
    clean_start: bool = True
    session_expiry: int = 0
    will: Message | None = None
    anonymous_allowed: bool = False
    prefetch_count: int = 0
    will_delay: int = 0
    tls_subject: str = ""
    exchange: AuthenticationExchange | None = None
    rules: ClientRules = ClientRules()


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription of one connection.

    Attributes:
        key: the front-end's name for it, unique in the connection. A second request with the
            same key is refused or replaces the first (:class:`ClientRules`); its list, when stored,
            stays.
        destination: canonical destination; may be a filter (wildcard levels).
        acknowledge: the client acknowledges each message; False: a message is acknowledged when
            it is handed to the front-end.
        durable_name: with a client id, names a topic subscription that survives the connection.
            With a stored session it equals *key*, and a queue or a shared subscription that has
            one is taken up again whenever the session is connected.
        qos: highest quality of service wanted; a message's effective one is the smaller of its
            own and this. Effective 0 is never stored for the subscription.
        no_local: do not deliver what this client id published.
        retain_handling: topics only.
        share_group: all connections that name the same group and filter share one list.
        prefetch_count, prefetch_bytes: unacknowledged messages, and bytes of their bodies, that
            may be out at a time; 0 takes the destination policy's default.
        options: stored with a durable subscription for the front-end; opaque.
        browse: look at a queue instead of consuming from it: copies of what is pending when the
            subscription begins, also of what is in flight to consumers, are delivered in order;
            nothing is to be acknowledged. Then ``deliver`` is called once without messages and
            the subscription is over. Prefetch limits do not apply, ``writable`` does.
        selector: only messages that it selects (JMS 2.0 section 3.8.1: SQL-92 over headers); ""
            selects all. On a queue the others stay for other consumers; on a topic they are not
            for this subscription and never stored for it. A durable subscription that is taken
            up with another selector ends, and a new one begins. Not to be used by protocols
            whose subscriptions of one client overlap (MQTT).
    """

    key: str
    destination: str
    acknowledge: bool = True
    durable_name: str = ""
    qos: int = 2
    no_local: bool = False
    retain_handling: RetainHandling = RetainHandling.DO_NOT_SEND
    share_group: str = ""
    prefetch_count: int = 0
    prefetch_bytes: int = 0
    options: dict[str, str] = {}
    browse: bool = False
    selector: str = ""


class ClientPeer(Protocol):
    """The front-end's side of one connection, called by the broker.

    None of these may raise, block, or call back into the broker before it returned, except where
    it says so.
    """

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """The operations with these tokens are durable, in this order."""
        ...

    def failed(self, token: Token, error: GatewayError) -> None:
        """The operation with this token (None: one nobody waited for) was not carried out."""
        ...

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """Write these messages to the client, in order. May call the BrokerConnection.

        With ``acknowledge=True`` each stays in flight until acknowledged or rejected, except, where
        the client does not acknowledge those (:class:`ClientRules`), messages of effective QoS 0 on a
        topic subscription (a queue keeps QoS 0 messages as QoS 1). The body of a message with ``large`` is in :attr:`Broker.large_bodies`; the
        front-end writes nothing else to the client before it is through, and pauses deliveries
        (``writable``) meanwhile. ``delivery_count > 0`` asks for the redelivered mark. *messages*
        is empty only to say that a subscription with ``browse`` has shown everything and is over.
        """
        ...

    def throttle(self, paused: bool) -> None:
        """Stop (True) or resume (False) reading from the socket: producers are too fast."""
        ...

    def closed(self, error: GatewayError) -> None:
        """The broker ended the connection: tell the client if the protocol can, then close.

        From within, the front-end may still call ``acknowledge``, ``record_inflight`` and
        ``disconnect``; the BrokerConnection is dead when this returns.
        """
        ...


class BrokerConnection(Protocol):
    """The broker's side of one connection, called by the front-end.

    Errors that are known at once are raised (RequestError, AccessError, FlowControlError,
    StoreError); later ones come through :meth:`ClientPeer.failed`.
    """

    @property
    def principal(self) -> str: ...

    def resume(self) -> None:
        """The handshake's answer has been written: deliveries to restored subscriptions begin."""
        ...

    def publish(
        self,
        message: Message,
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
        duplicate_id: str = "",
    ) -> bool:
        """Publish; *inflight* is made durable in the same batch (inbound QoS 2 packet id).

        Args: duplicate_id: the producer's id of the message (header ``_AMQ_DUPL_ID``), "" for
            none. A message whose id came before, to the same destination, is confirmed and
            discarded; within a transaction it makes ``commit`` fail.
        Returns: False when nobody subscribes to where it goes (True within a transaction, and for
            one that was discarded).
        Raises: AccessError, FlowControlError, RequestError (unknown transaction),
            StoreError (store full or read-only).
        """
        ...

    def check_publish(self, destination: str) -> None:
        """Refuse before a large body is taken what ``publish`` would refuse whatever it is.

        Raises: AccessError, FlowControlError, StoreError.
        """
        ...

    def subscribe(self, request: SubscribeRequest, token: Token = None) -> bool:
        """Begin to consume. Deliveries may come before the confirmation.

        Returns: True when a stored subscription with messages of its own was taken up again.
        Raises: AccessError, RequestError (bad name, bad selector, already in use, limit),
            StoreError.
        """
        ...

    def make_temporary(self, destination: str) -> str:
        """A destination of this connection alone, for answers; made on first use.

        *destination* is ``queue://NAME`` or ``topic://NAME``; NAME counts in this connection only.

        Returns: the canonical destination that is to be used everywhere, also by whoever answers:
            ``queue://$temporary.TOKEN.NAME`` (or ``topic://``), where nobody can guess TOKEN.
            Whoever knows it may publish to it; only this connection may subscribe. It is never
            stored and is removed, with everything in it, when the connection ends; a publish
            to it is refused (RequestError) from then on.
        Raises: RequestError (bad name, limit).
        """
        ...

    def unsubscribe(self, key: str, token: Token = None, *, forget: bool = False) -> bool:
        """Stop consuming; what is in flight is put back. *forget* also removes a durable one.

        Returns: False when there was no such subscription (the token is confirmed all the same).
        """
        ...

    def acknowledge(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
    ) -> None:
        """The client consumed these in-flight messages of subscription *key*.

        Raises: RequestError naming the first one that is not in flight (nothing is done then).
        """
        ...

    def reject(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
    ) -> None:
        """The client refused these in-flight messages: redeliver, or dead-letter at the limit.

        Raises: as acknowledge.
        """
        ...

    def begin(self, transaction: str) -> None:
        """Open a transaction. Raises: RequestError (already open, too many open)."""
        ...

    def commit(self, transaction: str, token: Token = None) -> None:
        """Put all operations of the transaction into one batch.

        Raises: RequestError. When that is because a duplicate id came before, the transaction is
            rolled back; else it is still open.
        """
        ...

    def abort(self, transaction: str, token: Token = None) -> None:
        """Forget them; acknowledged messages are in flight again. Raises: RequestError."""
        ...

    def prepare(self, transaction: str, branch_id: BranchId, token: Token = None) -> None:
        """Make the transaction durable without carrying it out; it is a branch from then on.

        Its messages can be seen by nobody, what it acknowledged is locked, and the connection has
        nothing to do with it any more. When it fails later (store full) the transaction is
        rolled back.

        Raises: RequestError (unknown transaction, bad or known branch id, temporary destination,
            a store that cannot); RequestError for a duplicate id, and then it is rolled back;
            FlowControlError (broker.prepared_branches_max); StoreError.
        """
        ...

    def commit_branch(self, branch_id: BranchId, token: Token = None) -> None:
        """Carry a prepared branch out, whichever connection prepared it.

        Its messages get their places in their destinations now. When it fails (also later) the
        branch is prepared still, and the call may be repeated.

        Raises: RequestError (no such branch, busy, completed by an operator), AccessError (another
            principal prepared it), StoreError.
        """
        ...

    def roll_back_branch(self, branch_id: BranchId, token: Token = None) -> None:
        """End a prepared branch; what it acknowledged is delivered again. Raises: as commit_branch."""
        ...

    def forget_branch(self, branch_id: BranchId, token: Token = None) -> None:
        """Forget a branch that an operator completed. Raises: RequestError (in doubt, no such)."""
        ...

    def branches(self) -> Sequence[Branch]:
        """The principal's branches: in doubt, or completed by an operator; the oldest first."""
        ...

    def record_inflight(
        self,
        put: Sequence[InflightRecord] = (),
        remove: Sequence[tuple[InflightDirection, int]] = (),
        token: Token = None,
    ) -> None:
        """Put packet-id states into the batch of this turn.

        With a *token* they are SYNCED before it is confirmed (QoS 2 needs that); without one they
        are only WRITTEN (QoS 1: losing one means the same message under another id).
        """
        ...

    def synchronize(self, token: Token) -> None:
        """Confirm *token* when everything this connection asked for before is durable."""
        ...

    def writable(self, value: bool) -> None:
        """The socket's buffer is full (False) or drained (True): deliveries pause meanwhile."""
        ...

    def disconnect(
        self,
        *,
        graceful: bool,
        publish_will: bool = False,
        session_expiry: int | None = None,
        unanswered: Mapping[str, Sequence[int]] = ...,
    ) -> None:
        """The connection ended. Idempotent.

        Everything in flight is put back with its delivery count raised, transactions are rolled
        back, subscriptions that are not durable end. Not *graceful*, or *publish_will*: the will
        is published, after its delay. *session_expiry*: replaces the session's, in seconds.
        *unanswered*: by key, sequences of QoS 2 messages that were sent and not answered: those of
        a shared subscription stay with the session, or are discarded when it ends, because no
        other member may get them (MQTT 5.0 [MQTT-4.8.2-4], [MQTT-4.8.2-5]).
        """
        ...


@dataclass(frozen=True, slots=True)
class ConnectResult:
    """Answer to a ConnectRequest.

    Attributes:
        connection: call ``resume()`` on it when the handshake's answer has been written.
        session_present: stored session state was taken up.
        subscriptions: restored subscriptions (MQTT sessions), already consuming once resumed,
            under ``key = name``; also those to queues and shared ones.
        inflight: packet-id states of the session.
    """

    connection: BrokerConnection
    session_present: bool = False
    subscriptions: Sequence[Subscription] = ()
    inflight: Sequence[InflightRecord] = ()


class Broker(Protocol):
    """What a front-end sees of the gateway."""

    @property
    def name(self) -> str:
        """The gateway's name."""
        ...

    @property
    def store_id(self) -> str:
        """Identity of the store's contents: message ids are made of it and the sequence."""
        ...

    @property
    def version(self) -> str: ...

    @property
    def large_bodies(self) -> LargeBodies | None:
        """Where bodies go that are never whole in memory; None: the store has no such place.

        A front-end that asks for it takes messages with ``large``, which it then has to read from
        here to deliver them.
        """
        ...

    def socket_opened(self) -> bool:
        """Count a socket that a listener just accepted, before any handshake.

        Returns: False when there are too many (``broker.connections_max``, or descriptors that the
            store needs): close it at once. Else :meth:`socket_closed` is called when it is gone.
        """
        ...

    def socket_closed(self) -> None:
        """A socket that was counted is gone."""
        ...

    def begin_authentication(
        self, method: str, request: ConnectRequest
    ) -> AuthenticationExchange | None:
        """Begin a challenge-response exchange for the client of *request*.

        Returns: None when no extension offers *method*. Raises: AccessError.
        """
        ...

    async def connect(self, request: ConnectRequest, peer: ClientPeer) -> ConnectResult:
        """Authenticate, take over an older connection, load the session.

        Raises: AccessError, FlowControlError (connection limit), RequestError, StoreError.
        Cancellation: safe; the connection then does not exist.
        """
        ...


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One ``[[listeners]]`` table, the part the host understands.

    Attributes:
        protocol, transport: e.g. ``stomp``, ``tcp``.
        host, port: parsed from ``bind``; port 0 takes a free one.
        allow_anonymous: clients without credentials are accepted.
        options: an instance of the factory's ``options_type``: the table's other keys.
    """

    protocol: str
    transport: str
    host: str
    port: int
    allow_anonymous: bool
    options: object


class FrontEnd(Protocol):
    """A running listener."""

    async def start(self) -> str:
        """Bind and accept. Returns the address, e.g. ``stomp://127.0.0.1:61613``.

        Raises: OSError (port in use …).
        """
        ...

    async def stop_accepting(self) -> None:
        """No new connections; the existing ones go on. Idempotent."""
        ...

    async def stop(self) -> None:
        """Flush and close what is left. Idempotent; bounded in time."""
        ...


class FrontEndFactory(Protocol):
    """What a plugin registers for a protocol (hook ``register_front_end``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass for the listener's further keys (limits, heart-beats …)."""
        ...

    @property
    def transports(self) -> Sequence[str]:
        """Transports it supports, e.g. ``("tcp",)``; the first is the default."""
        ...

    @property
    def default_port(self) -> int: ...

    def create(self, config: ListenerConfig, broker: Broker) -> FrontEnd:
        """Build a listener; must not bind yet. Raises: ConfigError."""
        ...
