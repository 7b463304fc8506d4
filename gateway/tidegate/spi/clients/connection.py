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
    """A client that is not let in yet, seen from the broker."""

    def closed(self, error: GatewayError) -> None:
        """The broker ended it: tell it if the protocol can, then close."""
        ...


class ClientPeer(Protocol):
    """The front-end's side of one connection, called by the broker.

    None of these may raise, block, or call back into the broker before it returned, except where
    it says so.
    """

    @property
    def has_unsent(self) -> bool:
        """Something that was delivered still waits here, or in the link, for the client to take it."""
        ...

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

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        """Stop (True) or resume (False) reading from the socket: producers are too fast.

        Args: at_once: what was read already waits, too. The next call without it ends that.
        """
        ...

    def closed(self, error: GatewayError) -> None:
        """The broker ended the connection: tell the client if the protocol can, then close.

        With an AccessError what waits here must not go out any more, because the client may not
        have it by now: rather it is told nothing.
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

    def authenticated_again(self, exchange: AuthenticationExchange) -> None:
        """The client has gone through another exchange, which has succeeded: groups are those of now,
        and the connection lasts as long as *exchange* says.

        Only for one whose ConnectRequest had an exchange. Raises: AccessError for somebody else.
        """
        ...

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

    def refuse(self, key: str, sequences: Sequence[int], reason: str) -> None:
        """The client refused these in-flight messages for good, or cannot take them: nobody gets them
        again. They are done with, as acknowledged ones are, with another outcome.

        Args: reason: in words, for the row of the acknowledged log.
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

        Raises: RequestError (no such branch of this principal, busy, completed by an operator),
            StoreError.
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

    def may_take(self, destination: str) -> bool:
        """Whether the client may have messages of *destination*, canonical and without wildcards, as
        rights are now: consume or browse of a queue, subscribe of a topic. Its answer is remembered
        until rights change, so it may be asked for each message. Nobody is told of a refusal.

        Raises: RequestError (the connection is closed), AccessError (it is nobody any more).
        """
        ...

    @property
    def has_unconfirmed(self) -> bool:
        """Of a token that was given here nobody has said yet that it is confirmed or failed.

        It looks through all that waits for the store: not for every message.
        """
        ...

    @property
    def meter(self) -> Callable[[int], None] | None:
        """To be called with the number of bytes of each read, once the client is let in; None: nobody
        wants to know. It may call :meth:`ClientPeer.throttle`."""
        ...

    def holds(self, kind: Held, size: int) -> None:
        """The front-end holds *size* bytes of *kind* for this client now, no longer what it said before.

        To be told in steps of some size, and only where it lasts: what one read brings and the same
        turn deals with is not held.

        Raises: FlowControlError: the client, its principal or the gateway is at its limit; what the
            front-end said before stands. The client is refused what made it more, or disconnected.
        """
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
        reason: str = "",
    ) -> None:
        """The connection ended. Idempotent.

        Everything in flight is put back with its delivery count raised, transactions are rolled
        back, subscriptions that are not durable end. Not *graceful*, or *publish_will*: the will
        is published, after its delay. *session_expiry*: replaces the session's, in seconds.
        *unanswered*: by key, sequences of QoS 2 messages that were sent and not answered: those of
        a shared subscription stay with the session, or are discarded when it ends, because no
        other member may get them (MQTT 5.0 [MQTT-4.8.2-4], [MQTT-4.8.2-5]).
        *reason*: why, for operators, where the front-end ended it.
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
        session: the key that its InflightRecords carry; "" when none is kept.
        refused: subscriptions of the session that are not restored, because the client may not have
            them any more; they can be unsubscribed, and come back with the right to them.
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

    @property
    def tell(self) -> Tell:
        """What operators want to know of goes there: see :mod:`tidegate.spi.events`."""
        ...

    def socket_opened(self, size: int) -> bool:
        """Count a socket that a listener just accepted, before any handshake.

        Args: size: bytes that it takes with its buffers, before anything is read from it.
        Returns: False when there are too many (``broker.connections_max``, or descriptors that the
            store needs): close it at once. Else :meth:`socket_closed` is called when it is gone.
        """
        ...

    def socket_closed(self, size: int) -> None:
        """A socket that was counted with *size* is gone."""
        ...

    def unauthenticated_holds(self, peer: Stranger, size: int) -> None:
        """From now on *size* bytes wait that came from a client which is not let in yet: the half of
        its first frame or packet, or of the HTTP request before it.

        Call it with 0 when it is, and when it is gone. Where all of them together hold more than
        ``broker.login_input_limit``, those that hold most end: ``closed()`` is called, perhaps of
        this one and before this returns.
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
        Cancellation: safe; the connection then does not exist.
        """
        ...
