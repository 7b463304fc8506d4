"""The keys of a ``[[listeners]]`` table with ``protocol = "mqtt"``."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.spi import Kind, option
from tidegate_protocols.transport import TransportOptions


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
    )
    inflight_max: int = option(
        1000,
        minimum=1,
        maximum=65_535,
        help="QoS 1 and 2 messages that may be on their way to one client without its answer;"
        " more wait in the gateway, so that a slow client is not flooded.",
    )
    connect_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.1,
        help="Time from the connection to an accepted CONNECT; guards against connections that"
        " never say anything.",
    )
    keep_alive_default: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=65_535,
        zero="for ever",
        help="Keep-alive of clients that ask for none: silence of one and a half times this"
        " closes the connection; guards against clients that vanished without a word.",
    )
    keep_alive_max: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=65_535,
        zero="no limit",
        help="Longest keep-alive a client may ask for. MQTT before 5.0 cannot tell a client to use"
        " a shorter one, so a client that asks for more, or for none, is refused (CONNACK 2).",
    )
    session_expiry: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=4_294_967_294,
        zero="never",
        help="How long a persistent session (clean session off) is kept after its connection"
        " ended; guards against sessions that nobody will ever take up again.",
    )
    connections_max: int = option(
        10_000,
        minimum=1,
        help="Connections this listener holds at a time; one more is closed at once, so that the"
        " process keeps file descriptors for its store.",
    )
    subscriptions_max: int = option(
        1000,
        minimum=1,
        help="Subscriptions of one client; one more is answered with SUBACK 0x80, so that one"
        " client cannot make every publish expensive.",
    )
    client_id_bytes_max: int = option(
        1024,
        minimum=23,
        maximum=65_535,
        help="Longest client identifier in bytes; a longer one is refused (CONNACK 2). It is kept"
        " with every message its owner publishes.",
    )
    stop_timeout: float = option(
        5.0,
        kind=Kind.DURATION,
        minimum=0.0,
        help="How long stopping waits for clients to take what was written to them.",
    )
