"""The keys of a ``[[listeners]]`` table with ``protocol = "mqtt"``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.spi import ConfigError, Kind, option
from tidegate_protocols.transport import TransportOptions

#: The default when no Receive Maximum is given (MQTT 5.0 section 3.1.2.11.3); there are no more
#: packet ids anyway.
RECEIVE_MAXIMUM_DEFAULT: Final = 65_535


@dataclass(frozen=True, slots=True)
class MqttOptions(TransportOptions):
    """Limits and times of one MQTT listener; each help text names the failure it prevents."""

    packet_bytes_max: int = option(
        16 * 1024 * 1024,
        kind=Kind.SIZE,
        minimum=1024,
        maximum=268_435_455,
        help="Largest packet accepted from a client; a larger one closes its connection, so that"
        " one client cannot fill the memory.",
        act="the connection is closed: Packet too large",
    )
    large_message_max_size: int = option(
        0,
        kind=Kind.SIZE,
        minimum=1024,
        maximum=268_435_455,
        zero="packet_bytes_max",
        help="Largest PUBLISH whose payload is streamed to a file of its own, which happens "
        "when the store can do that and the payload has at least the store's "
        "large_message_min_size. packet_bytes_max is for all other packets, which pass "
        "through memory, and may be smaller than this.",
        act="the connection is closed: Packet too large",
    )
    inflight_max: int = option(
        1000,
        minimum=1,
        maximum=65_535,
        help="QoS 1 and 2 messages that may be in flight to one client unanswered; more "
        "wait in the gateway, so that a slow client is not flooded. An MQTT 5.0 client's "
        "own Receive Maximum applies if it is smaller.",
        act="the connection is closed: Receive Maximum exceeded",
    )
    connect_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.1,
        help="Time from the connection to an accepted CONNECT. Guards against connections "
        "that never say anything.",
        act="the connection is closed",
    )
    keep_alive_default: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=65_535,
        zero="for ever",
        help="Keep-alive of clients that ask for none. Silence of one and a half times this "
        "closes the connection. Guards against clients that vanished without a word.",
    )
    keep_alive_max: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=65_535,
        zero="no limit",
        help="Longest keep-alive a client may ask for. A client of MQTT 5.0 that asks for more, or"
        " for none, is told to use this one (Server Keep Alive); one of MQTT before 5.0 cannot be"
        " told and is refused (CONNACK 2). Guards against clients that vanish without a word and"
        " are kept for hours.",
        act="the client is told this time instead",
    )
    session_expiry: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=4_294_967_294,
        zero="never",
        help="How long a persistent session is kept after its connection ended: always this "
        "long for clients before MQTT 5.0 with clean session off, at most this long for "
        "MQTT 5.0 clients. Guards against sessions that nobody will ever resume.",
    )
    connections_max: int = option(
        10_000,
        minimum=1,
        help="Connections of this listener at a time; the next one is closed at once, so "
        "that the process keeps file descriptors for its store.",
        act="the connection is closed",
    )
    subscriptions_max: int = option(
        1000,
        minimum=1,
        help="Subscriptions of one client; one more is answered with SUBACK 0x97 (MQTT before 5.0:"
        " 0x80), so that one client cannot make every publish expensive.",
        act="the subscription is refused: Quota exceeded",
    )
    client_id_bytes_max: int = option(
        1024,
        minimum=23,
        maximum=65_535,
        help="Longest client identifier in bytes; a longer one is refused (CONNACK 0x85, before"
        " MQTT 5.0: 2). It is kept with every message its owner publishes.",
        act="CONNECT is refused: Client Identifier not valid",
    )
    client_id_from_certificate: bool = option(
        False,
        help="Transports `tls` and `wss`: the client identifier is the common name (CN) of "
        "the client's certificate, whatever the client asks for. A client without one is "
        "refused (CONNACK 0x85, before MQTT 5.0: 2). Guards against a device that takes "
        "over another's session by using its name.",
    )
    receive_maximum: int = option(
        65_535,
        minimum=1,
        maximum=65_535,
        help="MQTT 5.0: QoS 1 and 2 messages that a client may send before the first is "
        "answered (Receive Maximum); one more ends its connection with 0x93. Guards against "
        "clients that keep more unanswered messages in the gateway than their share.",
    )
    topic_alias_max: int = option(
        16,
        minimum=0,
        maximum=65_535,
        help="MQTT 5.0: topic aliases that a client may define (Topic Alias Maximum); 0 allows"
        " none, and a higher alias ends the connection with 0x94. Bounds the topic names that one"
        " connection can make the gateway remember.",
        act="the connection is closed: Topic Alias invalid",
    )
    topic_alias_max_out: int = option(
        16,
        minimum=0,
        maximum=65_535,
        help="MQTT 5.0: topic aliases that the gateway uses towards one client, if the "
        "client allows as many; 0 uses none. They save bytes on the wire and cost memory "
        "for each connection.",
    )
    payload_format_check: bool = option(
        True,
        help="MQTT 5.0: check that a payload marked as UTF-8 (Payload Format Indicator 1) "
        "is UTF-8, and refuse it with 0x99 if not. Guards consumers against text that they "
        "cannot read; costs a pass over such payloads.",
    )
    response_topic_prefix: str = option(
        "",
        help="MQTT 5.0: a client that asks for Response Information is told "
        "RESPONSE_TOPIC_PREFIX/PRINCIPAL/CLIENT_ID, a topic on which it can receive "
        "answers. Empty: it is told nothing. Together with an authorizer that opens this "
        "topic only to its client, it guards against requesters that listen to each other's "
        "answers.",
    )
    server_redirect: str = option(
        "none",
        choices=("none", "use_another", "moved"),
        help="Refuse every client and name the server to use instead, for a while (`use_another`,"
        " CONNACK 0x9C) or for good (`moved`, 0x9D); before MQTT 5.0: CONNACK 3. For moving clients"
        " away before this gateway goes, so that they do not find a closed port.",
    )
    server_reference: str = option(
        "",
        help="The server to use instead, `host:port`, or several separated by a space (MQTT "
        "5.0 section 4.11). Goes with `server_redirect`, so that nobody is sent to nowhere.",
    )
    stop_timeout: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.0,
        help="How long stopping waits for clients to take what was written to them.",
    )

    def __post_init__(self) -> None:
        TransportOptions.__post_init__(self)  # slots: super() without arguments finds no class
        if (self.server_redirect != "none") != bool(self.server_reference):
            raise ConfigError(
                "server_redirect and server_reference go together; set both or none",
                key="server_reference",
            )
        if 0 < self.large_message_max_size < self.packet_bytes_max:
            raise ConfigError(
                "it is smaller than packet_bytes_max, which is for packets in memory; make it as"
                " large at least, or leave it out",
                key="large_message_max_size",
            )
        if self.keep_alive_default and self.keep_alive_max:
            raise ConfigError(
                "has no effect with keep_alive_max: a client that asks for no keep-alive is told to"
                " use that one, or refused before MQTT 5.0",
                key="keep_alive_default",
            )
        _check_topic_prefix(self.response_topic_prefix)

    @property
    def large_packet_bytes_max(self) -> int:
        """The limit of a PUBLISH that is streamed."""
        return self.large_message_max_size or self.packet_bytes_max


def _check_topic_prefix(prefix: str) -> None:
    """Raises: ConfigError for a prefix that no topic name of a client can have."""
    if prefix.startswith("$") or prefix.endswith("/") or "+" in prefix or "#" in prefix:
        raise ConfigError(
            f"{prefix!r} cannot begin a response topic: no '$' in front, no '/' at the end,"
            " no wildcards",
            key="response_topic_prefix",
        )
