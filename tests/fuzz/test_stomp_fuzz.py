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
from tidegate_protocols.stomp import AckRun, Decoder, Frame, Limits, Version, encode

pytestmark = pytest.mark.fuzz
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", "30"))
SMALL = Limits(header_count=4, header_line_bytes=30, header_bytes=80, body_bytes=40)
CASES_AT_LEAST = 1_000

#: What frames are made of, right and wrong.
PIECES = [
    b"SEND\n", b"SEND\r\n", b"CONNECT\n", b"STOMP\n", b"ACK\nid:1-2\n\n\0", b"ACK\nid:1-2\n\n\0\n",
    b"ACK\nid:", b"NACK\n", b"SUBSCRIBE\n", b"DISCONNECT\n\n\0", b"MESSAGE\n\n\0", b"\n", b"\r\n",
    b"\n\n", b"\n\r\n", b"\0", b"\r", b":", b"a:b\n", b"a:b\r\n", b"a\\c:\\n\\\\\n", b"a:\\r\n",
    b"a:\\t\n", b":x\n", b"x\n", b"content-length:0\n", b"content-length:3\n",
    b"content-length:-1\n", b"content-length:99999999999999999999\n", b"content-length: 3\n",
    b"accept-version:1.2\n", b"\xff", "žluť".encode(), b"GET / HTTP/1.1\r\n", b"\x16\x03\x01",
]  # fmt: skip


def from_pieces(chance: random.Random) -> bytes:
    return b"".join(chance.choices(PIECES, k=chance.randrange(1, 14)))


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(60))


def damaged(chance: random.Random) -> bytes:
    """Good frames with a few bytes changed, lost or doubled."""
    frames = bytearray()
    for _ in range(chance.randrange(1, 4)):
        headers = {f"h{n}": chance.choice(["", "x", "a:b", "ž", "\\"]) for n in range(3)}
        body = chance.randbytes(chance.randrange(8))
        version = chance.choice(list(Version))
        frames += encode(Frame(chance.choice(["SEND", "ACK", "BEGIN"]), headers, body), version)
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(frames))
        match chance.randrange(3):
            case 0:
                frames[place] = chance.randrange(256)
            case 1:
                del frames[place]
            case _:
                frames[place:place] = frames[place : place + chance.randrange(5)]
        if not frames:
            break
    return bytes(frames)


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    places = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def decode(pieces: list[bytes], version: Version | None, limits: Limits) -> list[Any]:
    """Every event, and "error" where it stops; anything but PeerProtocolError gets out."""
    made = Decoder(limits)
    made.version = version
    events: list[Any] = []
    try:
        for piece in pieces:
            made.receive_data(piece)
            for event in made.events():
                events += event.ids if isinstance(event, AckRun) else [event]
    except PeerProtocolError:
        events.append("error")
        with pytest.raises(PeerProtocolError):  # broken for good
            made.next_event()
    return events


@pytest.mark.parametrize("source", [from_pieces, damaged, noise])
def test_any_bytes_parse_or_raise_the_protocol_error_wherever_they_are_cut(source) -> None:
    end = time.monotonic() + SECONDS / 3
    number = frames = errors = 0
    while number < CASES_AT_LEAST or time.monotonic() < end:
        chance = random.Random(f"{SEED}/{source.__name__}/{number}")
        data = source(chance)
        version = chance.choice([None, *Version])
        limits = chance.choice([SMALL, Limits()])
        whole = decode([data], version, limits)
        parts = cut(data, chance)
        assert decode(parts, version, limits) == whole, (SEED, number, version, limits, parts)
        number += 1
        errors += "error" in whole
        frames += len(whole) - ("error" in whole)
    assert errors, "the input never was malformed: this tests nothing"
    if source is not noise:
        assert frames, "the input never held a frame: this tests nothing"
