"""The protocol between gateway and bridge process: MessagePack frames on a socket pair.

The gateway sends :class:`Start` first; rules may come and go. Each rule is a *lane* in the process,
which sends :class:`Ready` each time it has connected, with the number of the attempt (``epoch``),
and :class:`Flows` once the other broker has confirmed its subscription. Both sides ignore frames of
an earlier attempt.
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
    """See RuleOptions. Attributes: is_echoed: another rule brings back what it sends."""

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
    """How to connect, and for which rules: see BridgeOptions.

    Attributes: rules: by number; here: the bridge's name in headers; store: the gateway's.
    """

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
    """Add a rule. Attributes: rule: its number, never used before."""

    rule: int
    what: Rule


class End(msgspec.Struct, frozen=True, tag="end"):
    """Remove a rule: disconnect, and forget it."""

    rule: int


class Take(msgspec.Struct, frozen=True, tag="take"):
    """Send this message. Attributes: number: its sequence; target: "" for the rule's."""

    rule: int
    epoch: int
    number: int
    message: Message
    target: str = ""


class Bring(msgspec.Struct, frozen=True, tag="bring"):
    """Publish this message. Attributes: duplicate_id: "" if the other broker has no lasting id."""

    rule: int
    epoch: int
    number: int
    duplicate_id: str
    message: Message


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Confirmed at their target: acknowledge them. Attributes: looped: how many were our copies."""

    rule: int
    epoch: int
    numbers: list[int]
    looped: int = 0


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Connected: the attempt starts. Attributes: server: what the other broker calls itself."""

    rule: int
    epoch: int
    server: str


class Flows(msgspec.Struct, frozen=True, tag="flows"):
    """The subscription of a rule ``in`` is confirmed: new messages there reach the gateway."""

    rule: int
    epoch: int


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Not connected, or no longer. The next try is in *again_s*.

    Attributes: refused: the message that caused it, by the other broker or a limit; 0: unknown.
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
    """*told* as sent over the link."""
    data = _encode(told)
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """How many bytes follow :data:`LENGTH_BYTES` bytes."""
    return int(_LENGTH.unpack(head)[0])
