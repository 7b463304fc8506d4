"""Numbers of the MQTT wire: packet types, protocol levels, reason codes, and the errors that carry them.

One table of codes serves all versions. Reasons are named as in MQTT 5.0 section 2.4; what MQTT 3.1
and 3.1.1 can say of them is :data:`CONNACK_RETURN_CODES`.
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
}

VERSION_NAMES: Final[Mapping[int, str]] = {level: name for (_, level), name in VERSIONS.items()}


class ReasonCode(enum.IntEnum):
    """Why something was refused or ended (MQTT 5.0 section 2.4)."""

    SUCCESS = 0x00
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    KEEP_ALIVE_TIMEOUT = 0x8D
    PACKET_TOO_LARGE = 0x95


#: The return code of a refusing CONNACK before MQTT 5.0 (MQTT 3.1.1 table 3.1). A reason that is
#: not here has none: the connection is closed without CONNACK [MQTT-3.2.2-6].
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
    """Bytes that no packet has. Attributes: clause, the id of the rule they break."""

    def __init__(self, problem: str, clause: str) -> None:
        super().__init__(f"{problem} [{clause}]", wire_code=ReasonCode.MALFORMED_PACKET)
        self.clause = clause


class PacketViolationError(PeerProtocolError):
    """A packet that can be read but says what it must not, or comes when it must not.

    Attributes: clause, the id of the rule it breaks.
    """

    def __init__(self, problem: str, clause: str) -> None:
        super().__init__(f"{problem} [{clause}]", wire_code=ReasonCode.PROTOCOL_ERROR)
        self.clause = clause


class UnsupportedVersionError(PeerProtocolError):
    """A CONNECT of a version that is not spoken here. Attributes: level, its protocol level."""

    def __init__(self, level: int) -> None:
        super().__init__(
            f"protocol level {level} is not supported [MQTT-3.1.2-2]",
            wire_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
        self.level = level
