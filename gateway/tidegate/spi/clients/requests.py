"""What a front-end asks for: plain values that say who connects, and what it subscribes to."""

from __future__ import annotations

import enum

import msgspec

from tidegate.spi.clients.security import AuthenticationExchange, Principal
from tidegate.spi.messages import Message


class RetainHandling(enum.IntEnum):
    """What to do with retained messages when subscribing (MQTT 5.0 section 3.8.3.1)."""

    SEND = 0
    SEND_IF_NEW = 1
    DO_NOT_SEND = 2


class ClientRules(msgspec.Struct, frozen=True):
    """How a protocol treats its clients' subscriptions.

    Attributes:
        replaces: a subscription under a key in use replaces the old one; False: it is refused.
        acknowledges_unstored: the client also acknowledges messages that are not stored for its
            subscription (QoS 0); False: it need not.
        delivers_once: a message covered by several of the client's subscriptions is delivered once.
    """

    replaces: bool = False
    acknowledges_unstored: bool = True
    delivers_once: bool = False


class ConnectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client that finished its protocol's handshake.

    Attributes:
        protocol: e.g. ``stomp`` or ``mqtt``; version: e.g. ``1.2``, ``3.1.1``.
        client_id: "" for none; scoped to the client's principal. A second connection of the same
            principal with the same client id *and protocol* takes over from the first, which is
            closed.
        peer: ``host:port`` of the client; listener: ``stomp://host:port``.
        username: "" for none; password: None for none.
        clean_start: forget the stored session (MQTT Clean Session).
        session_expiry: seconds the session outlives the connection; 0: it ends with the connection;
            SESSION_NEVER_EXPIRES: never.
        will: published when the connection ends without :meth:`BrokerConnection.disconnect`.
        will_delay: seconds the will waits for the client to come back. The will is published when
            the session ends, even if the delay is not over.
        anonymous_allowed: the listener's rule for clients without credentials.
        prefetch_count: for subscriptions restored with the session; 0 takes the destination
            policy's default.
        tls_subject: subject of the client's verified certificate, "" when it showed none.
        tls_principal: the principal that the client's verified certificate names by the listener's
            rule. None: there is no rule or no certificate, or the authenticators decide. A principal
            without a name: the certificate names nobody, and the client is to be refused.
        exchange: a finished exchange of :meth:`Broker.begin_authentication`, which stands for the
            credentials; None when the client authenticates by user name and password or not at all.
        rules: the protocol's :class:`ClientRules`.
        heeds_drain: set by a resident that pauses by itself while the gateway drains (HeedsDrain); it is
            then let in and left alone.
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
    tls_principal: Principal | None = None
    exchange: AuthenticationExchange | None = None
    rules: ClientRules = ClientRules()
    heeds_drain: bool = False


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription of one connection.

    Attributes:
        key: the front-end's name for it, unique within the connection. A second request with the
            same key is refused or replaces the first (:class:`ClientRules`); a stored list stays.
        destination: canonical destination; may be a filter (wildcard levels).
        acknowledge: the client acknowledges each message; False: a message is acknowledged when
            it is handed to the front-end.
        durable_name: with a client id, names a topic subscription that survives the connection.
            With a stored session it equals *key*; a named queue or shared subscription is then
            resumed whenever the session connects.
        qos: highest quality of service wanted; a message's effective QoS is the smaller of its own
            and this. Effective QoS 0 is never stored for the subscription.
        retain_handling: topics only.
        share_group: all connections of one principal that name the same group and filter share one
            list.
        prefetch_count, prefetch_bytes: how many unacknowledged messages, and bytes of their bodies,
            may be out at a time; 0 takes the destination policy's default.
        options: stored with a durable subscription for the front-end; opaque.
        browse: look at a queue instead of consuming from it. Copies of everything pending when the
            subscription begins, including messages in flight to consumers, are delivered in order;
            nothing is to be acknowledged. Then ``deliver`` is called once without messages and
            the subscription ends. Prefetch limits do not apply; ``writable`` does.
        selector: only messages that it selects (JMS 2.0 section 3.8.1: SQL-92 over headers); ""
            selects all. On a queue the other messages stay for other consumers; on a topic they are
            never stored for this subscription. A durable subscription requested with another
            selector ends, and a new one begins. Not for protocols whose clients may have
            overlapping subscriptions (MQTT).
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
