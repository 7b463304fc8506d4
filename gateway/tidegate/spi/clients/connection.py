"""The contract between a protocol front-end and the broker.

Everything that crosses it is a plain value, so that codecs and sessions can one day live in worker
processes in front of one broker core (design, section 8). The front-end calls
:class:`BrokerConnection`; the broker calls back :class:`ClientPeer`. All calls happen on the event
loop. Only :meth:`Broker.connect` waits; everything else queues operations into the batch of this
turn of the loop and answers through the peer when that batch is durable.

*Tokens* are the front-end's own objects: whatever it needs to write the confirmation (a receipt
id, a packet id). ``None`` means that nobody is waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tidegate.spi.clients.held import Held
from tidegate.spi.clients.requests import ConnectRequest, SubscribeRequest
from tidegate.spi.clients.security import AuthenticationExchange
from tidegate.spi.errors import GatewayError
from tidegate.spi.events import Tell
from tidegate.spi.messages import Message, StoredMessage
from tidegate.spi.storage.branches import Branch, BranchId
from tidegate.spi.storage.large import LargeBodies
from tidegate.spi.storage.operations import InflightDirection, InflightRecord, Subscription

Token: TypeAlias = object


class Stranger(Protocol):
    """A client that has not been let in yet, seen from the broker."""

    def closed(self, error: GatewayError) -> None:
        """The broker ended it: tell the client if the protocol can, then close."""
        ...


class ClientPeer(Protocol):
    """The front-end's side of one connection, called by the broker.

    None of these methods may raise, block, or call back into the broker before it returns, unless
    its docstring allows that.
    """

    @property
    def has_unsent(self) -> bool:
        """True while something delivered still waits, here or in the link, for the client to take it."""
        ...

    def confirmed(self, tokens: Sequence[Token]) -> None:
        """The operations with these tokens are durable, in this order."""
        ...

    def failed(self, token: Token, error: GatewayError) -> None:
        """The operation with this token was not carried out (None: nobody was waiting for it)."""
        ...

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        """Write these messages to the client, in order. May call the BrokerConnection.

        With ``acknowledge=True`` each stays in flight until acknowledged or rejected. Exception:
        messages of effective QoS 0 on a topic subscription, if the client does not acknowledge those
        (:class:`ClientRules`). A queue keeps QoS 0 messages as QoS 1.

        The body of a message with ``large`` is in :attr:`Broker.large_bodies`. The front-end writes
        nothing else to the client until that body is complete, and pauses deliveries (``writable``)
        meanwhile. ``delivery_count > 0`` asks for the redelivered mark. *messages* is empty only to say
        that a subscription with ``browse`` has shown everything and has ended.
        """
        ...

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """Stop (True) or resume (False) reading from the socket: producers are too fast.

        Args: at_once: what has been read already waits too. The next call without it ends that.
        """
        ...

    def closed(self, error: GatewayError) -> None:
        """The broker ended the connection: tell the client if the protocol can, then close.

        After an AccessError nothing still waiting here may go out, because the client may have lost
        the right to it: rather tell the client nothing. During this call the front-end may still call
        ``acknowledge``, ``record_inflight`` and ``disconnect``; the BrokerConnection is dead once
        this returns.
        """
        ...


class BrokerConnection(Protocol):
    """The broker's side of one connection, called by the front-end.

    Errors known at once are raised (RequestError, AccessError, FlowControlError, StoreError); later
    ones come through :meth:`ClientPeer.failed`.
    """

    @property
    def principal(self) -> str:
        """Name of the principal that the client authenticated as."""
        ...

    def authenticated_again(self, exchange: AuthenticationExchange) -> None:
        """The client has successfully completed another exchange: its groups are replaced by the
        current ones, and the connection lasts as long as *exchange* says.

        Only for a client whose ConnectRequest had an exchange. Raises: AccessError when the exchange
        authenticated somebody else.
        """
        ...

    def resume(self) -> None:
        """The handshake's answer has been written: start deliveries to restored subscriptions."""
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
            none. A message whose id was already used for the same destination is confirmed and
            discarded; within a transaction it makes ``commit`` fail.
        Returns: False when nobody subscribes to its destination (True within a transaction, and for
            a discarded duplicate).
        Raises: AccessError, FlowControlError, RequestError (unknown transaction),
            StoreError (store full or read-only).
        """
        ...

    def check_publish(self, destination: str) -> None:
        """Check, before a large body is taken, for reasons to refuse any publish to *destination*.

        Raises: AccessError, FlowControlError, StoreError.
        """
        ...

    def subscribe(self, request: SubscribeRequest, token: Token = None) -> bool:
        """Begin to consume. Deliveries may come before the confirmation.

        Returns: True when a stored subscription with its own messages was resumed.
        Raises: AccessError, RequestError (bad name, bad selector, already in use, limit),
            StoreError.
        """
        ...

    def make_temporary(self, destination: str) -> str:
        """Return a destination of this connection alone, for replies; made on first use.

        *destination* is ``queue://NAME`` or ``topic://NAME``; NAME is local to this connection.

        Returns: the canonical destination to use everywhere, by repliers too:
            ``queue://$temporary.TOKEN.NAME`` (or ``topic://``), where TOKEN cannot be guessed.
            Anybody who knows it may publish to it; only this connection may subscribe. It is never
            stored. When the connection ends, it is removed with all its messages, and any later
            publish to it is refused (RequestError).
        Raises: RequestError (bad name, limit).
        """
        ...

    def unsubscribe(self, key: str, token: Token = None, *, forget: bool = False) -> bool:
        """Stop consuming; messages in flight are put back. *forget* also removes a durable subscription.

        Returns: False when there was no such subscription (the token is confirmed anyway).
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

        Raises: RequestError naming the first one that is not in flight; nothing is done then.
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

    def refuse(self, key: str, sequences: Sequence[int], reason: str) -> None:
        """The client refused these in-flight messages for good, or cannot take them: they are never
        delivered again. They leave the list as acknowledged ones do, with a different outcome.

        Args: reason: in words, for the row of the acknowledged log.
        Raises: as acknowledge.
        """
        ...

    def begin(self, transaction: str) -> None:
        """Open a transaction. Raises: RequestError (already open, too many open)."""
        ...

    def commit(self, transaction: str, token: Token = None) -> None:
        """Put all operations of the transaction into one batch.

        Raises: RequestError. If the cause is a repeated duplicate id, the transaction is rolled
            back; otherwise it stays open.
        """
        ...

    def abort(self, transaction: str, token: Token = None) -> None:
        """Roll the transaction back; messages it acknowledged are in flight again. Raises: RequestError."""
        ...

    def prepare(self, transaction: str, branch_id: BranchId, token: Token = None) -> None:
        """Make the transaction durable without carrying it out; it becomes a branch.

        Nobody can see its messages, the messages it acknowledged are locked, and the connection no
        longer controls it. If this fails later (store full), the transaction is rolled back.

        Raises: RequestError (unknown transaction, bad or known branch id, temporary destination,
            a store without branches); RequestError for a duplicate id, which also rolls back;
            FlowControlError (broker.prepared_branches_max); StoreError.
        """
        ...

    def commit_branch(self, branch_id: BranchId, token: Token = None) -> None:
        """Carry a prepared branch out, whichever connection prepared it.

        Its messages get their places in their destinations now. If this fails, even later, the
        branch stays prepared and the call may be repeated.

        Raises: RequestError (no such branch of this principal, busy, completed by an operator),
            StoreError.
        """
        ...

    def roll_back_branch(self, branch_id: BranchId, token: Token = None) -> None:
        """Roll a prepared branch back; messages it acknowledged are redelivered. Raises: as commit_branch."""
        ...

    def forget_branch(self, branch_id: BranchId, token: Token = None) -> None:
        """Forget a branch that an operator completed. Raises: RequestError (in doubt, no such branch)."""
        ...

    def branches(self) -> Sequence[Branch]:
        """The principal's branches, in doubt or completed by an operator, oldest first."""
        ...

    def record_inflight(
        self,
        put: Sequence[InflightRecord] = (),
        remove: Sequence[tuple[InflightDirection, int]] = (),
        token: Token = None,
    ) -> None:
        """Put packet-id states into the batch of this turn.

        With a *token* they are SYNCED before it is confirmed (QoS 2 needs that). Without one they are
        only WRITTEN (QoS 1: if one is lost, the same message comes again under another id).
        """
        ...

    def synchronize(self, token: Token) -> None:
        """Confirm *token* when everything this connection asked for earlier is durable."""
        ...

    def may_take(self, destination: str) -> bool:
        """Whether the client may have messages of *destination* (canonical, no wildcards) by its
        current rights: consume or browse for a queue, subscribe for a topic. The answer is cached
        until rights change, so this may be called for each message. A refusal is not audited.

        Raises: RequestError (the connection is closed), AccessError (the user no longer exists).
        """
        ...

    @property
    def has_unconfirmed(self) -> bool:
        """True while a token given here has been neither confirmed nor failed.

        Scans everything that waits for the store: do not call it for every message.
        """
        ...

    @property
    def meter(self) -> Callable[[int], None] | None:
        """A function to call with the number of bytes of each read, once the client is let in; None when
        nobody needs it. It may call :meth:`ClientPeer.throttle`."""
        ...

    def holds(self, kind: Held, size: int) -> None:
        """Set how many bytes of *kind* the front-end holds for this client, replacing the last value.

        Report in coarse steps, and only what lasts: bytes read and dealt with in the same turn are
        not held.

        Raises: FlowControlError: the client, its principal or the gateway is at its limit; the
            previous value stands. Refuse whatever caused the growth, or disconnect the client.
        """
        ...

    def writable(self, value: bool) -> None:
        """The socket's buffer is full (False) or has drained (True): deliveries pause in between."""
        ...

    def disconnect(
        self,
        *,
        graceful: bool,
        publish_will: bool = False,
        session_expiry: int | None = None,
        unanswered: Mapping[str, Sequence[int]] = ...,
        reason: str = "",
    ) -> None:
        """The connection ended. Idempotent.

        Everything in flight is put back with its delivery count raised, transactions are rolled
        back, and non-durable subscriptions end. When not *graceful*, or with *publish_will*, the
        will is published after its delay. *session_expiry* replaces the session's, in seconds.
        *unanswered*: by key, the sequences of QoS 2 messages sent but not answered. Those of a
        shared subscription stay with the session, or are discarded when it ends, because no
        other member may get them (MQTT 5.0 [MQTT-4.8.2-4], [MQTT-4.8.2-5]).
        *reason*: why, for operators, when the front-end ended it.
        """
        ...


@dataclass(frozen=True, slots=True)
class ConnectResult:
    """Answer to a ConnectRequest.

    Attributes:
        connection: call ``resume()`` on it once the handshake's answer has been written.
        session_present: stored session state was resumed.
        subscriptions: restored subscriptions (MQTT sessions), under ``key = name``, including those
            to queues and shared ones. They consume once resumed.
        inflight: packet-id states of the session.
        session: the key that its InflightRecords carry; "" when no session is kept.
        refused: subscriptions of the session that are not restored because the client has lost the
            right to them. They can be unsubscribed, and come back with the right.
    """

    connection: BrokerConnection
    session_present: bool = False
    subscriptions: Sequence[Subscription] = ()
    inflight: Sequence[InflightRecord] = ()
    session: str = ""
    refused: Sequence[Subscription] = ()


class Broker(Protocol):
    """What a front-end sees of the gateway."""

    @property
    def name(self) -> str:
        """The gateway's name."""
        ...

    @property
    def store_id(self) -> str:
        """Identity of the store's contents: message ids consist of it and the sequence."""
        ...

    @property
    def version(self) -> str:
        """The gateway's version."""
        ...

    @property
    def large_bodies(self) -> LargeBodies | None:
        """Where bodies go that are never whole in memory; None when the store has no such place.

        A front-end that reads this attribute accepts messages with ``large``, whose bodies it must
        read from here to deliver them.
        """
        ...

    @property
    def tell(self) -> Tell:
        """Reports events to operators: see :mod:`tidegate.spi.events`."""
        ...

    def socket_opened(self, size: int) -> bool:
        """Count a socket that a listener just accepted, before any handshake.

        Args: size: bytes that it takes with its buffers, before anything is read from it.
        Returns: False when there are too many (``broker.connections_max``, or descriptors that the
            store needs): close it at once. Otherwise call :meth:`socket_closed` when it is gone.
        """
        ...

    def socket_closed(self, size: int) -> None:
        """A socket that was counted with *size* is gone."""
        ...

    def unauthenticated_holds(self, peer: Stranger, size: int) -> None:
        """Set how many bytes are held from a client that has not been let in yet: part of its first
        frame or packet, or of the HTTP request before it.

        Call it with 0 when the client is let in or gone. When all of them together exceed
        ``broker.login_input_limit``, those holding most are ended: their ``closed()`` is called,
        perhaps this one's, and before this returns.
        """
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
        Cancellation: safe; no connection is made then.
        """
        ...
