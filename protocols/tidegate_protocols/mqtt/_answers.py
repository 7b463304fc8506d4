"""Answers of the gateway to one client, in its version and within its limits.

Only answers off the hot path are built here; the plain PUBACK, PUBREC, PUBREL and PUBCOMP are
``encode.acknowledgement`` in every version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import msgspec

from tidegate.spi import FrameTooLargeError
from tidegate_protocols.mqtt.codec.codes import (
    LEVEL_5_0,
    PACKET_REASONS,
    SUBACK_FAILURE,
    PacketType,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.encode import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    UNSUBACK,
    acknowledgement,
    connack,
    encode,
)
from tidegate_protocols.mqtt.codec.encode_v5 import encode_within
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Suback,
    Unsuback,
)
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties

#: The longest possible packet: header of five bytes and the largest remaining length.
PACKET_BYTES_MAX: Final = 268_435_460

#: The nearest substitute for reasons that a CONNACK of MQTT 3.1.1 has no code for.
_OLD_REASONS: Final = {
    ReasonCode.USE_ANOTHER_SERVER: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_MOVED: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.TOPIC_NAME_INVALID: ReasonCode.NOT_AUTHORIZED,  # the will's
}

#: Most characters of a reason string, which may quote a topic of any length.
REASON_STRING_LENGTH_MAX: Final = 512


@final
class Answers:
    """Encodes answers for one client.

    Args:
        level: of its protocol.
        packet_bytes_max: largest whole packet it accepts; reason strings and user properties are
            left out of larger ones [MQTT-3.1.2-24].
        with_problems: it wants reason strings even where they are optional [MQTT-3.1.2-29].
    """

    __slots__ = ("is_v5", "level", "packet_bytes_max", "with_problems")

    def __init__(
        self, level: int, packet_bytes_max: int = PACKET_BYTES_MAX, *, with_problems: bool = True
    ) -> None:
        self.level = level
        self.is_v5: bool = level == LEVEL_5_0
        self.packet_bytes_max = packet_bytes_max
        self.with_problems = with_problems

    # ------------------------------------------------------------------- connecting and ending

    def connack(
        self, session_present: bool, properties: Properties = NO_PROPERTIES, problem: str = ""
    ) -> bytes:
        """A CONNACK that accepts; *problem* tells the client what it may not expect.

        Raises: FrameTooLargeError.
        """
        if not self.is_v5:
            return connack(session_present, ReasonCode.SUCCESS, self.level)
        if problem:
            properties = msgspec.structs.replace(properties, reason_string=_shortened(problem))
        return self._encode(Connack(session_present, ReasonCode.SUCCESS, properties))

    def refusal(self, reason: ReasonCode, problem: str, server_reference: str = "") -> bytes:
        """A CONNACK that refuses; b"" when the version has no word for it or it is too large."""
        if not self.is_v5:
            return connack(False, _OLD_REASONS.get(reason, reason), self.level)
        properties = Properties(
            reason_string=_shortened(problem), server_reference=server_reference or None
        )
        return encode_within(Connack(False, reason, properties), self.packet_bytes_max)

    def disconnect(self, reason: ReasonCode, problem: str, server_reference: str = "") -> bytes:
        """A DISCONNECT; b"" before MQTT 5.0, where only clients send it, and when too large."""
        if not self.is_v5:
            return b""
        properties = Properties(
            reason_string=_shortened(problem), server_reference=server_reference or None
        )
        packet = Disconnect(reason, properties)
        return encode_within(packet, self.packet_bytes_max)

    def ending(
        self, reason: ReasonCode, problem: str, server_reference: str = "", *, is_accepted: bool
    ) -> bytes:
        """Tells a client of MQTT 5.0 why its connection ends [MQTT-4.13.0-1]; b"" when too large.

        Args: is_accepted: CONNACK was sent; before that there is no DISCONNECT [MQTT-3.14.0-1].
        """
        if is_accepted:
            return self.disconnect(reason, problem, server_reference)
        if reason == ReasonCode.SERVER_SHUTTING_DOWN:
            reason = ReasonCode.SERVER_UNAVAILABLE
        elif reason not in PACKET_REASONS[PacketType.CONNACK]:  # taken over, by an operator
            reason = ReasonCode.UNSPECIFIED_ERROR
        return self.refusal(reason, problem, server_reference)

    def auth(self, reason: ReasonCode, method: str, data: bytes) -> bytes:
        """A step of enhanced authentication. Raises: FrameTooLargeError."""
        properties = Properties(authentication_method=method, authentication_data=data or None)
        return self._encode(Auth(reason, properties))

    # ------------------------------------------------------------------------------ publishing

    def puback(self, packet_id: int, reason: ReasonCode, problem: str = "") -> bytes:
        """A PUBACK with a reason (MQTT 5.0)."""
        return self._encode(Puback(packet_id, reason, _reason_string(problem)))

    def pubrec(self, packet_id: int, reason: ReasonCode, problem: str = "") -> bytes:
        """A PUBREC with a reason (MQTT 5.0)."""
        return self._encode(Pubrec(packet_id, reason, _reason_string(problem)))

    def pubrel(self, packet_id: int, *, is_known: bool) -> bytes:
        """A PUBREL, also for a packet id that is unknown, or no longer known."""
        if is_known or not self.is_v5:
            return acknowledgement(PUBREL, packet_id)
        return bytes((0x62, 3)) + packet_id.to_bytes(2, "big") + b"\x92"

    def pubcomp(self, packet_id: int, *, is_known: bool) -> bytes:
        """A PUBCOMP, also for a packet id that is unknown, or no longer known."""
        if is_known or not self.is_v5:
            return acknowledgement(PUBCOMP, packet_id)
        return self._encode(Pubcomp(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))

    # -------------------------------------------------------------------------- subscriptions

    def suback(self, packet_id: int, codes: Sequence[int], problem: str = "") -> bytes:
        """A SUBACK; before MQTT 5.0 all reasons from 0x80 on are the same. Raises: FrameTooLargeError."""
        if self.is_v5:
            return self._encode(Suback(packet_id, tuple(codes), _reason_string(problem)))
        return encode(Suback(packet_id, tuple(min(code, SUBACK_FAILURE) for code in codes)))

    def unsuback(self, packet_id: int, codes: Sequence[int]) -> bytes:
        """An UNSUBACK. Raises: FrameTooLargeError."""
        if self.is_v5:
            return self._encode(Unsuback(packet_id, tuple(codes)))
        return acknowledgement(UNSUBACK, packet_id)

    def _encode(self, packet: Packet) -> bytes:
        data = encode_within(packet, self.packet_bytes_max, with_problems=self.with_problems)
        if not data:
            raise FrameTooLargeError(
                f"{type(packet).__name__.upper()} is larger than the {self.packet_bytes_max} bytes"
                " that the client takes",
                wire_code=ReasonCode.PACKET_TOO_LARGE,
            )
        return data


#: First two bytes of the plain answers to a PUBLISH, by its QoS.
PUBLISH_ANSWERS: Final = (0, PUBACK, PUBREC)


def _reason_string(problem: str) -> Properties:
    return Properties(reason_string=_shortened(problem)) if problem else NO_PROPERTIES


def _shortened(problem: str) -> str:
    """A text that every reason string can hold: no U+0000, no surrogates, not too long."""
    text = problem[:REASON_STRING_LENGTH_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text.encode("utf-8", "replace").decode()
