"""All states of an MQTT session and every transition between them.

What is not in the table is a protocol violation by the client (packets) or a bug of ours (the
other inputs); :func:`next_state` raises accordingly.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from tidegate.spi import LocalProtocolError
from tidegate_protocols.mqtt.codec.codes import PacketViolationError
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Event,
    LargePublish,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)


class SessionState(enum.Enum):
    """The state of a session."""

    CONNECTING = "connecting"  # the link is up, no CONNECT yet
    AUTHENTICATING = "authenticating"  # the broker is checking the CONNECT; nothing is decoded
    CHALLENGED = "challenged"  # AUTH was sent; only AUTH or DISCONNECT may come
    CONNECTED = "connected"  # CONNACK 0 was sent
    REFUSED = "refused"  # it has to go; what it sent before is confirmed first
    CLOSED = "closed"


class Input(enum.Enum):
    """What can happen to a session."""

    CONNECT = "CONNECT"
    CONNACK = "CONNACK"
    PUBLISH = "PUBLISH"
    PUBACK = "PUBACK"
    PUBREC = "PUBREC"
    PUBREL = "PUBREL"
    PUBCOMP = "PUBCOMP"
    SUBSCRIBE = "SUBSCRIBE"
    SUBACK = "SUBACK"
    UNSUBSCRIBE = "UNSUBSCRIBE"
    UNSUBACK = "UNSUBACK"
    PINGREQ = "PINGREQ"
    PINGRESP = "PINGRESP"
    DISCONNECT = "DISCONNECT"
    AUTH = "AUTH"
    CHALLENGE = "the client is to say more to authenticate"
    ACCEPTED = "the broker accepted the client"
    REFUSED = "the client was refused"
    BAD_INPUT = "the client broke the protocol"
    FAILED = "a request could not be carried out"
    WAITS = "what came before either of these is not confirmed yet"
    TIMED_OUT = "the client was silent too long"
    ENDED = "the broker ended the connection"
    LOST = "the link is gone"


PACKET_INPUTS: Final[Mapping[type[Event], Input]] = {
    Connect: Input.CONNECT,
    Connack: Input.CONNACK,
    Publish: Input.PUBLISH,
    LargePublish: Input.PUBLISH,
    Puback: Input.PUBACK,
    Pubrec: Input.PUBREC,
    Pubrel: Input.PUBREL,
    Pubcomp: Input.PUBCOMP,
    Subscribe: Input.SUBSCRIBE,
    Suback: Input.SUBACK,
    Unsubscribe: Input.UNSUBSCRIBE,
    Unsuback: Input.UNSUBACK,
    Pingreq: Input.PINGREQ,
    Pingresp: Input.PINGRESP,
    Disconnect: Input.DISCONNECT,
    Auth: Input.AUTH,
}

_PACKETS: Final = frozenset(PACKET_INPUTS.values())

_CONNECTING: Final = SessionState.CONNECTING
_AUTHENTICATING: Final = SessionState.AUTHENTICATING
_CHALLENGED: Final = SessionState.CHALLENGED
_CONNECTED: Final = SessionState.CONNECTED
_REFUSED: Final = SessionState.REFUSED
_CLOSED: Final = SessionState.CLOSED

TRANSITIONS: Final[Mapping[tuple[SessionState, Input], SessionState]] = {
    # The first packet is a CONNECT [MQTT-3.1.0-1].
    (_CONNECTING, Input.CONNECT): _AUTHENTICATING,
    (_CONNECTING, Input.BAD_INPUT): _CLOSED,  # no CONNACK [MQTT-3.1.4-1], except [MQTT-3.1.2-2]
    (_CONNECTING, Input.TIMED_OUT): _CLOSED,  # MQTT 3.1.1 section 3.1.4
    (_CONNECTING, Input.ENDED): _CLOSED,
    (_CONNECTING, Input.LOST): _CLOSED,
    # What a client sends after its CONNECT waits undecoded for the answer [MQTT-3.1.4-5].
    (_AUTHENTICATING, Input.ACCEPTED): _CONNECTED,  # [MQTT-3.1.4-4]
    (_AUTHENTICATING, Input.CHALLENGE): _CHALLENGED,  # MQTT 5.0 [MQTT-4.12.0-2]
    (_AUTHENTICATING, Input.REFUSED): _CLOSED,  # [MQTT-3.2.2-5]
    (_AUTHENTICATING, Input.TIMED_OUT): _CLOSED,
    (_AUTHENTICATING, Input.ENDED): _CLOSED,
    (_AUTHENTICATING, Input.LOST): _CLOSED,
    # Nothing but these two until CONNACK (MQTT 5.0 [MQTT-3.1.2-30]).
    (_CHALLENGED, Input.AUTH): _AUTHENTICATING,
    (_CHALLENGED, Input.DISCONNECT): _CLOSED,
    (_CHALLENGED, Input.BAD_INPUT): _CLOSED,
    (_CHALLENGED, Input.TIMED_OUT): _CLOSED,
    (_CHALLENGED, Input.ENDED): _CLOSED,
    (_CHALLENGED, Input.LOST): _CLOSED,
    # A second CONNECT is missing here [MQTT-3.1.0-2], as is what only servers send.
    (_CONNECTED, Input.PUBLISH): _CONNECTED,
    (_CONNECTED, Input.PUBACK): _CONNECTED,
    (_CONNECTED, Input.PUBREC): _CONNECTED,
    (_CONNECTED, Input.PUBREL): _CONNECTED,
    (_CONNECTED, Input.PUBCOMP): _CONNECTED,
    (_CONNECTED, Input.SUBSCRIBE): _CONNECTED,
    (_CONNECTED, Input.UNSUBSCRIBE): _CONNECTED,
    (_CONNECTED, Input.PINGREQ): _CONNECTED,
    (
        _CONNECTED,
        Input.AUTH,
    ): _CONNECTED,  # the client authenticates again (MQTT 5.0 section 4.12.1)
    (_CONNECTED, Input.DISCONNECT): _CLOSED,  # without the will [MQTT-3.14.4-3]
    (_CONNECTED, Input.BAD_INPUT): _CLOSED,  # [MQTT-4.8.0-1]
    (_CONNECTED, Input.FAILED): _CLOSED,
    # Messages that are ours now are still answered: [MQTT-4.3.2-2] [MQTT-4.3.3-8].
    (_CONNECTED, Input.WAITS): _REFUSED,
    (_CONNECTED, Input.TIMED_OUT): _CLOSED,  # [MQTT-3.1.2-24]
    (_CONNECTED, Input.ENDED): _CLOSED,  # take-over [MQTT-3.1.4-2], shutdown
    (_CONNECTED, Input.LOST): _CLOSED,
    # Everything before is confirmed, or cannot be. What comes after is not even decoded.
    (_REFUSED, Input.BAD_INPUT): _CLOSED,
    (_REFUSED, Input.FAILED): _CLOSED,
    (_REFUSED, Input.TIMED_OUT): _CLOSED,
    (_REFUSED, Input.ENDED): _CLOSED,
    (_REFUSED, Input.LOST): _CLOSED,
    # Nothing happens to a closed session.
}


def next_state(state: SessionState, event: Input) -> SessionState:
    """Return the state after *event*.

    Raises: PacketViolationError when the client sent a packet at the wrong moment;
        LocalProtocolError when we did something at the wrong moment.
    """
    target = TRANSITIONS.get((state, event))
    if target is not None:
        return target
    if event not in _PACKETS:
        raise LocalProtocolError(f"{event.value!r} in state {state.value}")
    if state is _CONNECTING:
        raise PacketViolationError(f"{event.value} before CONNECT", "MQTT-3.1.0-1")
    if event is Input.CONNECT:
        raise PacketViolationError("a second CONNECT", "MQTT-3.1.0-2")
    if state is _CHALLENGED:
        raise PacketViolationError(f"{event.value} before CONNACK", "5.0:MQTT-3.1.2-30")
    raise PacketViolationError(f"{event.value} from a client", "MQTT-4.8.0-1")
