"""Numbers of the MQTT wire: packet types, protocol levels, reason codes, and the errors that carry them.

One table of codes serves all versions. Reasons are named as in MQTT 5.0 section 2.4;
:data:`CONNACK_RETURN_CODES` is what MQTT 3.1 and 3.1.1 can express of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from tidegate.spi import PeerProtocolError


class PacketType(enum.IntEnum):
    """The upper four bits of the first byte (MQTT 3.1.1 section 2.2.1; 15 is MQTT 5.0's)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


#: Protocol level byte of CONNECT.
LEVEL_3_1: Final = 3
LEVEL_3_1_1: Final = 4
LEVEL_5_0: Final = 5

#: (protocol name, level) of what the codec decodes, with the version's name.
VERSIONS: Final[Mapping[tuple[bytes, int], str]] = {
    (b"MQIsdp", LEVEL_3_1): "3.1",
    (b"MQTT", LEVEL_3_1_1): "3.1.1",
    (b"MQTT", LEVEL_5_0): "5.0",
}

VERSION_NAMES: Final[Mapping[int, str]] = {level: name for (_, level), name in VERSIONS.items()}


class ReasonCode(enum.IntEnum):
    """What became of a request, or why something was refused or ended (MQTT 5.0 section 2.4).

    Below 0x80: done; from 0x80 on: failed. 0x00 has three names, by the packet that carries it.
    """

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


def _reasons(*codes: int) -> Mapping[int, ReasonCode]:
    return {code: ReasonCode(code) for code in codes}


_ACKNOWLEDGED = _reasons(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASED = _reasons(0x00, 0x92)

#: The reasons that each packet may carry, by their byte (MQTT 5.0 table 2-6); any other is malformed
#: there.
PACKET_REASONS: Final[Mapping[PacketType, Mapping[int, ReasonCode]]] = {
    PacketType.CONNACK: _reasons(  # MQTT 5.0 table 3-1
        0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F
    ),
    PacketType.PUBACK: _ACKNOWLEDGED,  # table 3-4
    PacketType.PUBREC: _ACKNOWLEDGED,  # table 3-5
    PacketType.PUBREL: _RELEASED,  # table 3-6
    PacketType.PUBCOMP: _RELEASED,  # table 3-7
    PacketType.SUBACK: _reasons(  # table 3-8
        0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2
    ),
    PacketType.UNSUBACK: _reasons(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91),  # table 3-9
    PacketType.DISCONNECT: _reasons(  # table 3-10
        *(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90),
        *range(0x93, 0xA3),
    ),
    PacketType.AUTH: _reasons(0x00, 0x18, 0x19),  # table 3-11
}

#: The reasons for DISCONNECT that a client may give (MQTT 5.0 table 3-10, column "Sent by").
CLIENT_DISCONNECT_REASONS: Final = frozenset(
    {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)}
)

#: The return code of a refusing CONNACK before MQTT 5.0 (MQTT 3.1.1 table 3.1). For a reason that is
#: missing here, the connection is closed without CONNACK [MQTT-3.2.2-6].
CONNACK_RETURN_CODES: Final[Mapping[ReasonCode, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}

#: The one failure code that a SUBACK has before MQTT 5.0 (MQTT 3.1.1 section 3.9.3).
SUBACK_FAILURE: Final = 0x80


class MalformedPacketError(PeerProtocolError):
    """Bytes that no packet may have. Attributes: clause, the id of the rule they break."""

    def __init__(self, problem: str, clause: str) -> None:
        super().__init__(f"{problem} [{clause}]", wire_code=ReasonCode.MALFORMED_PACKET)
        self.clause = clause


class PacketViolationError(PeerProtocolError):
    """A packet that can be read but has forbidden content, or comes at a forbidden moment.

    Attributes: clause, the id of the rule it breaks.
    """

    def __init__(
        self, problem: str, clause: str, reason: ReasonCode = ReasonCode.PROTOCOL_ERROR
    ) -> None:
        super().__init__(f"{problem} [{clause}]", wire_code=reason)
        self.clause = clause


class UnsupportedVersionError(PeerProtocolError):
    """A CONNECT of an unsupported version. Attributes: level, its protocol level."""

    def __init__(self, level: int) -> None:
        super().__init__(
            f"protocol level {level} is not supported [MQTT-3.1.2-2]",
            wire_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
        self.level = level
