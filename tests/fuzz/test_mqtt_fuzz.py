"""Any bytes parse or raise PeerProtocolError, and where they are cut changes nothing. `make fuzz`.

FUZZ_SEED and FUZZ_SECONDS choose the run; a failure prints the bytes and the seed.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from tidegate.spi import PeerProtocolError
from tidegate_protocols.mqtt import (
    Codec,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from tidegate_protocols.mqtt.codec.packets import Auth
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties

pytestmark = pytest.mark.fuzz
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", "30"))
CASES_AT_LEAST = 1_000

#: Beginnings, lengths and strings that packets are made of, right and wrong.
PIECES = [
    b"\x10", b"\x30", b"\x32", b"\x34", b"\x36", b"\x3d", b"\x40\x02", b"\x50\x02", b"\x62\x02",
    b"\x60\x02", b"\x82", b"\x80", b"\xa2", b"\xc0\x00", b"\xc1\x00", b"\xe0\x00", b"\xf0\x00",
    b"\x00\x04MQTT", b"\x00\x06MQIsdp", b"\x04", b"\x05", b"\x02\x00\x3c", b"\x00\x00",
    b"\x00\x01", b"\x00\x01a", b"\x00\x03a/b", b"\x00\x02\xff\xfe", b"\x00\x01\x00", b"\x80\x01",
    b"\x00\x04MQTT\x05\x02\x00\x3c", b"\xf0", b"\xe0", b"\x20", b"\x90", b"\xb0", b"\x03\x23\x00\x01",
    b"\x05\x26\x00\x00\x00\x00", b"\x0b\x81\x00", b"\x11\x00\x00\x00\x01", b"\x15\x00\x01m",
    b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\x07", b"\x0c", b"\x10\x0c\x00\x04MQTT",
]  # fmt: skip


def some_properties(chance: random.Random) -> Properties:
    return chance.choice(
        [
            NO_PROPERTIES,
            Properties(content_type="text/plain", user_properties=(("k", "v"), ("k", "ž"))),
            Properties(topic_alias=3, message_expiry_interval=60, payload_format_indicator=1),
            Properties(response_topic="r/s", correlation_data=b"\x00\xff" * 70),
        ]
    )


def a_packet_v5(chance: random.Random) -> Packet:
    number = chance.randrange(1, 65536)
    why = Properties(reason_string="because", user_properties=(("k", "v"),))
    properties = some_properties(chance)
    makers = [
        lambda: Publish("a/b", b"body", 0, 0, properties=properties),
        lambda: Publish("a/b", b"body", 1, number, properties=properties),
        lambda: Connect(
            client_id="c",
            level=5,
            will=Will("w", b"", properties=Properties(will_delay_interval=1, content_type="c")),
            properties=Properties(receive_maximum=3, authentication_method="m"),
        ),
        lambda: Connack(False, ReasonCode.BANNED, why),
        lambda: Subscribe(
            number,
            (TopicRequest("a/#", 1, True, True, 2), TopicRequest("+/b", 0)),
            Properties(subscription_identifiers=(200,)),
        ),
        lambda: Suback(number, (0, 0x80), why),
        lambda: Unsubscribe(number, ("a/#",)),
        lambda: Unsuback(number, (0, 0x11)),
        lambda: chance.choice([Puback, Pubrec])(number, ReasonCode.QUOTA_EXCEEDED, why),
        lambda: chance.choice([Pubrel, Pubcomp])(number, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
        lambda: Disconnect(ReasonCode.SERVER_MOVED, Properties(server_reference="s")),
        lambda: Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="m")),
        lambda: Pingreq(),
    ]
    return chance.choice(makers)()


def a_packet(chance: random.Random, level: int) -> Packet:
    if level == 5:
        return a_packet_v5(chance)
    topic = chance.choice(["a", "a/b", "ž/€", "x" * 200])
    number = chance.randrange(1, 65536)
    body = chance.randbytes(chance.choice([0, 3, 200]))
    qos = chance.randrange(3)
    makers = [
        lambda: Publish(topic, body, 0, 0, chance.random() < 0.5, False),
        lambda: Publish(topic, body, 1 + qos % 2, number, False, chance.random() < 0.5),
        lambda: Connect(client_id=topic, will=Will(topic, body, qos, False)),
        lambda: Subscribe(number, (TopicRequest("a/#", qos), TopicRequest("+/b", 0))),
        lambda: Unsubscribe(number, ("a/#",)),
        lambda: chance.choice([Puback, Pubrec, Pubrel])(number),
        lambda: chance.choice([Pingreq(), Disconnect()]),
    ]
    return chance.choice(makers)()


def from_pieces(chance: random.Random, _level: int) -> bytes:
    return b"".join(chance.choices(PIECES, k=chance.randrange(1, 14)))


def noise(chance: random.Random, _level: int) -> bytes:
    return chance.randbytes(chance.randrange(60))


def damaged(chance: random.Random, level: int) -> bytes:
    """Good packets with a few bytes changed, lost or doubled."""
    data = bytearray()
    for _ in range(chance.randrange(1, 5)):
        data += encode(a_packet(chance, level), level)
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place]
            case _:
                data[place:place] = data[place : place + chance.randrange(5)]
        if not data:
            break
    return bytes(data)


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    places = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def decode(pieces: list[bytes], level: int, limit: int) -> list[Any]:
    """Every packet, and "error" where it stops; anything but PeerProtocolError gets out."""
    codec = Codec(limit, level)
    events: list[Any] = []
    for piece in pieces:
        codec.receive_data(piece)
        try:
            while found := codec.events():
                events += found
        except PeerProtocolError:
            with pytest.raises(PeerProtocolError):  # broken for good
                codec.next_event()
            return [*events, "error"]
    return events


@pytest.mark.parametrize("source", [from_pieces, damaged, noise])
def test_any_bytes_parse_or_raise_the_protocol_error_wherever_they_are_cut(source) -> None:
    end = time.monotonic() + SECONDS / 3
    number = packets = errors = 0
    while number < CASES_AT_LEAST or time.monotonic() < end:
        chance = random.Random(f"{SEED}/{source.__name__}/{number}")
        level = chance.choice([3, 4, 5])
        data = source(chance, level)
        limit = chance.choice([20, 1 << 20])
        whole = decode([data], level, limit)
        parts = cut(data, chance)
        assert decode(parts, level, limit) == whole, (SEED, number, level, limit, parts)
        number += 1
        errors += "error" in whole
        packets += len(whole) - ("error" in whole)
    assert errors, "the input never was malformed: this tests nothing"
    if source is not noise:
        assert packets, "the input never held a packet: this tests nothing"
