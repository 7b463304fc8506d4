"""What the Flight server and the gateway say to each other, over a socket pair.

A frame is four bytes of length (little-endian) and a MessagePack value. The server sends
:class:`Call`, the gateway answers each with one :class:`Answer`, in any order. Large bodies follow the answer
as they are: to encode one takes the gateway's loop as long as to copy it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from tidegate.spi import AcknowledgedMessage

LENGTH_BYTES: Final = 4
#: Bodies of more follow the frame. A copy of so many bytes takes some hundredths of a millisecond.
TAIL_BYTES: Final = 256 * 1024


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame, from the gateway: how the server is to be."""

    host: str
    port: int
    certificate: str
    key: str
    gateway_name: str
    streams_max: int
    streams_per_client_max: int
    version: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The server's first call, which is not answered: it listens, or says why it cannot."""

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
    """The session has ended. Answered with :class:`View`, which says nothing."""

    session: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """What there is to read; *reader* "": of nobody's. Answered with :class:`View`."""

    session: str
    reader: str = ""


class Open(msgspec.Struct, frozen=True, tag=True):
    """A streaming query begins: from now on nobody else reads as *reader*. Answered with :class:`View`."""

    session: str
    reader: str


class Plan(msgspec.Struct, frozen=True, tag=True):
    """How far the next batch may go: *rows_max* further than the one before (0: no limit)."""

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
    """Which row is the first that was acknowledged at *at* (microseconds) or later: ``View.first``."""

    session: str
    at: int


class Page(msgspec.Struct, frozen=True, tag=True):
    """Rows behind *after*, up to *through*. skip: those that are gone are left out."""

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
        epoch: the log's identity; first, last: what it has (first = last + 1: nothing).
        committed: the reader has these; planned: it was told that it may go up to here.
        generation: of the query that reads as this reader.
    """

    epoch: str = ""
    first: int = 1
    last: int = 0
    committed: int = 0
    planned: int = 0
    generation: int = 0


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Those rows up to *through* that the client may have.

    Attributes:
        damaged: rows that cannot be read.
        tails: which of the rows have their bodies behind the frame, in order, and how long those are.
    """

    rows: list[AcknowledgedMessage]
    through: int
    damaged: list[int] = []
    tails: list[tuple[int, int]] = []


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Attributes: kind: see ``flight.py``, which makes the protocol's own errors of them; text: for the client."""

    kind: str
    text: str


class Answer(msgspec.Struct, frozen=True):
    """Attributes: id: of the call."""

    id: int
    body: Session | View | Rows | Refusal


def frame(value: msgspec.Struct) -> bytearray:
    """*value* as it goes over the socket."""
    data = bytearray(LENGTH_BYTES)
    _encoder.encode_into(value, data, LENGTH_BYTES)
    data[:LENGTH_BYTES] = (len(data) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return data


def pieces(answer: Answer) -> list[bytearray | bytes]:
    """*answer* as it goes over the socket: its frame, and what follows that."""
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
    """*answer* with the bodies that follow it. Args: read: gives the next so many bytes."""
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
