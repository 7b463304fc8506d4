"""The protocol between the Flight server and the gateway, over a socket pair.

A frame is four bytes of length (little-endian) and a MessagePack value. The server sends
:class:`Call`, the gateway answers each with one :class:`Answer`, in any order. Large bodies follow
the answer unencoded: encoding one costs the gateway's loop as much as copying it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from tidegate.spi import AcknowledgedMessage

LENGTH_BYTES: Final = 4
#: Larger bodies follow the frame. Copying this much takes some hundredths of a millisecond.
TAIL_BYTES: Final = 256 * 1024


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame, from the gateway: how to serve."""

    host: str
    port: int
    certificate: str
    key: str
    gateway_name: str
    streams_max: int
    streams_per_client_max: int
    version: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The server's first call, never answered: it listens, or why it cannot."""

    port: int = 0
    problem: str = ""


class Login(msgspec.Struct, frozen=True, tag=True):
    """Answered with :class:`Session`. peer: ``host:port``; password: None: without credentials."""

    peer: str
    username: str = ""
    password: bytes | None = None

    def __repr__(self) -> str:  # the password must never reach a log
        return f"Login({self.username!r}, {self.peer!r})"


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The session has ended. Answered with an empty :class:`View`."""

    session: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """What is there to read? *reader* "": no named reader. Answered with :class:`View`."""

    session: str
    reader: str = ""


class Open(msgspec.Struct, frozen=True, tag=True):
    """A streaming query begins: it alone now reads as *reader*. Answered with :class:`View`."""

    session: str
    reader: str


class Plan(msgspec.Struct, frozen=True, tag=True):
    """How far may the next batch go? *rows_max* beyond the last one (0: no limit)."""

    session: str
    reader: str
    generation: int
    rows_max: int = 0


class Commit(msgspec.Struct, frozen=True, tag=True):
    """*reader* will never ask again for rows up to *ack_seq*. Answered with :class:`View`."""

    session: str
    reader: str
    generation: int
    epoch: str
    ack_seq: int


class Find(msgspec.Struct, frozen=True, tag=True):
    """The first row acknowledged at *at* (microseconds) or later. Answered in ``View.first``."""

    session: str
    at: int


class Page(msgspec.Struct, frozen=True, tag=True):
    """Rows after *after*, up to *through*. skip: leave out missing ones."""

    session: str
    epoch: str
    after: int
    through: int
    skip: bool = False


Question: TypeAlias = Ready | Login | Leave | Look | Open | Plan | Commit | Find | Page


class Call(msgspec.Struct, frozen=True):
    """Attributes: id: chosen by the server."""

    id: int
    question: Question


class Session(msgspec.Struct, frozen=True, tag=True):
    """Attributes: id: the token; principal: whose it is."""

    id: str
    principal: str


class View(msgspec.Struct, frozen=True, tag=True):
    """The log, and a reader's place in it.

    Attributes:
        epoch: the log's identity; first, last: the rows it has (first = last + 1: none).
        committed: the reader has these; planned: it may go up to here.
        generation: of the query that reads as this reader.
    """

    epoch: str = ""
    first: int = 1
    last: int = 0
    committed: int = 0
    planned: int = 0
    generation: int = 0


class Rows(msgspec.Struct, frozen=True, tag=True):
    """The rows up to *through* that the client may see.

    Attributes:
        damaged: rows that cannot be read.
        tails: the rows whose bodies follow the frame, in order, and the bodies' lengths.
    """

    rows: list[AcknowledgedMessage]
    through: int
    damaged: list[int] = []
    tails: list[tuple[int, int]] = []


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Attributes: kind: see ``flight.py``, which maps it to Flight errors; text: for the client."""

    kind: str
    text: str


class Answer(msgspec.Struct, frozen=True):
    """Attributes: id: of the call."""

    id: int
    body: Session | View | Rows | Refusal


def frame(value: msgspec.Struct) -> bytearray:
    """*value* as sent over the socket."""
    data = bytearray(LENGTH_BYTES)
    _encoder.encode_into(value, data, LENGTH_BYTES)
    data[:LENGTH_BYTES] = (len(data) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return data


def pieces(answer: Answer) -> list[bytearray | bytes]:
    """*answer* as sent over the socket: its frame, and the bodies after it."""
    rows = answer.body
    if not isinstance(rows, Rows):
        return [frame(answer)]
    tails = [
        (number, len(row.message.body))
        for number, row in enumerate(rows.rows)
        if len(row.message.body) > TAIL_BYTES
    ]
    if not tails:
        return [frame(answer)]
    bodies = [rows.rows[number].message.body for number, _ in tails]
    bare = list(rows.rows)
    for number, _ in tails:
        bare[number] = _with_body(bare[number], b"")
    return [
        frame(Answer(answer.id, msgspec.structs.replace(rows, rows=bare, tails=tails))),
        *bodies,
    ]


def with_tails(answer: Answer, read: Callable[[int], bytes | bytearray]) -> Answer:
    """*answer* with the bodies that follow it. Args: read: returns that many more bytes."""
    rows = answer.body
    if isinstance(rows, Rows):
        for number, size in rows.tails:
            rows.rows[number] = _with_body(rows.rows[number], bytes(read(size)))
    return answer


def _with_body(row: AcknowledgedMessage, body: bytes) -> AcknowledgedMessage:
    return msgspec.structs.replace(row, message=msgspec.structs.replace(row.message, body=body))


_encoder: Final = msgspec.msgpack.Encoder()
decode_start: Final = msgspec.msgpack.Decoder(Start).decode
decode_call: Final = msgspec.msgpack.Decoder(Call).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
