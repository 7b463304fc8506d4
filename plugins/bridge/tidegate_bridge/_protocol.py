"""What the gateway and a bridge's process say to each other: frames of MessagePack on a socket pair.

The gateway begins with :class:`Start`; rules may come and go. Each rule is a *lane* of its own in the process, which tries to connect and says
:class:`Ready` each time it has, with the number of the attempt (``epoch``), and :class:`Flows` when the other broker has
confirmed its subscription. What belongs to an attempt that is over is ignored by both.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import msgspec

from tidegate.spi import Message
from tidegate_bridge._options import Direction, JmsType

_LENGTH: Final = struct.Struct(">I")
LENGTH_BYTES: Final = _LENGTH.size


class Rule(msgspec.Struct, frozen=True):
    """See RuleOptions. Attributes: is_echoed: what it sends comes back by another rule."""

    name: str
    direction: Direction
    remote: str
    local: str
    selector: str
    durable: str
    jms_type: JmsType
    headers: dict[str, str]
    is_echoed: bool


class Start(msgspec.Struct, frozen=True, tag="start"):
    """How to connect, and what for: see BridgeOptions. Attributes: rules: by number; here: what the bridge calls itself in headers, store: the gateway's."""

    name: str
    here: str
    store: str
    scheme: str
    host: str
    port: int
    user: str
    password: str
    ca: str
    certificate: str
    key: str
    virtual_host: str
    client_id: str
    is_mqtt_5: bool
    window: int
    window_bytes: int
    message_limit: int
    connect_timeout: float
    reconnect_min: float
    reconnect_max: float
    hops_max: int
    rules: dict[int, Rule]

    def __repr__(self) -> str:  # the password must never reach a log
        return f"Start({self.name!r})"


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """One rule more. Attributes: rule: its number, which no other one has had."""

    rule: int
    what: Rule


class End(msgspec.Struct, frozen=True, tag="end"):
    """One rule less: disconnect, and forget it."""

    rule: int


class Take(msgspec.Struct, frozen=True, tag="take"):
    """Send this one. Attributes: number: its sequence; target: where to, "": where the rule says."""

    rule: int
    epoch: int
    number: int
    message: Message
    target: str = ""


class Bring(msgspec.Struct, frozen=True, tag="bring"):
    """Publish this one. Attributes: duplicate_id: "" when the other broker gives it no lasting id."""

    rule: int
    epoch: int
    number: int
    duplicate_id: str
    message: Message


class Done(msgspec.Struct, frozen=True, tag="done"):
    """These are confirmed at their target, and can be acknowledged. Attributes: looped: of them, were dropped as copies of ours."""

    rule: int
    epoch: int
    numbers: list[int]
    looped: int = 0


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Connected: the attempt counts from here on. Attributes: server: what the other broker says that it is."""

    rule: int
    epoch: int
    server: str


class Flows(msgspec.Struct, frozen=True, tag="flows"):
    """The other broker has confirmed the subscription of a rule ``in``: what it gets from now on comes."""

    rule: int
    epoch: int


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Not connected any more, or not at all. It is tried again in *again_s*.

    Attributes: refused: the message because of which it is, as the other broker or a limit says; 0: none is named.
    """

    rule: int
    epoch: int
    problem: str
    remedy: str
    again_s: float
    refused: int = 0


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The gateway cannot go on with this attempt: disconnect, and try again later."""

    rule: int
    epoch: int
    problem: str
    remedy: str


FromGateway: TypeAlias = Start | Begin | End | Take | Done | Stop
FromProcess: TypeAlias = Ready | Flows | Lost | Bring | Done

_encode: Final = msgspec.msgpack.Encoder().encode
decode_from_gateway: Final = msgspec.msgpack.Decoder(FromGateway).decode
decode_from_process: Final = msgspec.msgpack.Decoder(FromProcess).decode


def frame(told: FromGateway | FromProcess) -> bytes:
    """*told* as it travels."""
    data = _encode(told)
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """How many bytes follow :data:`LENGTH_BYTES` bytes."""
    return int(_LENGTH.unpack(head)[0])
