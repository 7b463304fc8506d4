"""Values to columns and back.

Each table has columns for people to query, and one with the complete value in MessagePack, which
is the only one that the store reads. So new fields of the contract need no schema change, and what
a column cannot hold (a NUL in PostgreSQL, more than its VARCHAR) is lost to queries only.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from tidegate.spi import (
    AcknowledgedMessage,
    AddDestination,
    AddDuplicateId,
    Branch,
    CorruptRecordError,
    DuplicateId,
    InflightDirection,
    InflightRecord,
    Message,
    Outcome,
    RecoveredDestination,
    Session,
    StoredMessage,
    Subscription,
)
from tidegate_store_jdbc.database.adapter import Row

T = TypeVar("T")

#: The largest value of a 64-bit column; a producer may ask for a later expiry.
_LONG_MAX: Final = 2**63 - 1

#: Replaces a body that the database does not hold; the 8 bytes after it say where it is.
_ELSEWHERE: Final = b"\0elsewhere"

_BYTES: Final = (bytes, bytearray, memoryview)
#: Raised when decoding a value that something else wrote, or that has the wrong column type.
_BROKEN: Final = (msgspec.MsgspecError, TypeError, ValueError)

_encode: Final = msgspec.msgpack.Encoder().encode
_encode_json: Final = msgspec.json.Encoder().encode
_decode_message: Final = msgspec.msgpack.Decoder(Message).decode
_replace: Final = msgspec.structs.replace
_set: Final = msgspec.structs.force_setattr


class BodyElsewhere(bytes):
    """The body that :func:`message` returns when the database does not hold it.

    Attributes: place: its number in :attr:`Plan.references`.
    """

    place: int


def key(name: str) -> bytes:
    """A 16-byte key for a name of any length (indexes have limits, MQTT names do not)."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Columns:
    """How text is put into columns.

    Args: types: the dialect's types; ``VARCHAR(n)`` limits what is put into the columns.
    """

    def __init__(self, types: dict[str, str]) -> None:
        self.name = _cutter(types["container_name"])
        self.text = _cutter(types["string_id"])
        self.message_id = _cutter(types["msg_id"])
        self.whole = _cutter("")

    def message(
        self, sequence: int, message: Message, lists: int, reference: int | None = None
    ) -> Row:
        """Parameters of ``add_message_statement``; with a *reference* the body is not stored."""
        text = self.text
        body = message.body
        kept = body if reference is None else b""
        rest = b"" if reference is None else _ELSEWHERE + reference.to_bytes(8, "big")
        return (
            sequence,
            self.name(message.destination),
            message.priority,
            min(message.received_at, _LONG_MAX),
            min(message.expires_at, _LONG_MAX),
            text(message.client_id) if message.client_id else "",
            message.protocol,
            text(message.content_type) if message.content_type else "",
            self.name(message.reply_to) if message.reply_to else "",
            message.correlation_data or None,
            headers_text(message),
            lists,
            len(body),
            kept,
            _encode(_replace(message, body=rest)),
        )

    def retained(self, message: Message) -> Row:
        """Parameters of ``add_retained_statement``."""
        name = message.destination
        rest = _encode(_replace(message, body=b""))
        return (key(name), self.name(name), headers_text(message), message.body, rest)

    def destination(self, value: AddDestination) -> Row:
        """Parameters of ``add_destination_statement``."""
        name, number, owner = value.destination, value.pending_list, value.owner
        whole = _encode(RecoveredDestination(*msgspec.structs.astuple(value)))
        return (key(name), self.name(name), number, self.text(owner), whole)

    def subscription(self, value: Subscription) -> Row:
        """Parameters of ``create_durable_sub_statement``."""
        return (
            value.pending_list,
            self.text(value.owner),
            self.text(value.client_id),
            self.text(value.name),
            self.name(value.filter),
            int(value.durable),
            value.qos,
            value.selector.replace("\0", "\ufffd"),
            _encode(value),
        )

    def session(self, value: Session) -> Row:
        """Parameters of ``add_session_statement``."""
        return (
            key(value.key),
            self.text(value.key),
            self.text(value.owner),
            self.text(value.client_id),
            value.expiry_interval,
            value.disconnected_at,
            _encode(value),
        )

    def inflight(self, value: InflightRecord) -> Row:
        """Parameters of ``add_inflight_statement``."""
        return (
            key(value.session),
            int(value.direction),
            value.packet_id,
            self.text(value.session),
            int(value.state),
            value.sequence,
            _encode(value),
        )

    def duplicate_id(self, value: AddDuplicateId) -> Row:
        """Parameters of ``add_duplicate_id_statement``."""
        name = value.destination
        complete = DuplicateId(name, value.duplicate_id, value.sequence)
        text = self.message_id(value.duplicate_id)
        return (key(name), value.sequence, self.name(name), text, _encode(complete))

    def branch(self, value: Branch) -> Row:
        """Parameters of ``add_branch_statement``."""
        name = str(value.branch_id)
        return (
            key(name),
            self.text(name),
            int(value.state),
            value.prepared_at,
            self.text(value.principal),
            value.pending_list,
            _encode(value),
        )


def inflight_key(session: str, direction: InflightDirection, packet_id: int) -> Row:
    """Parameters of ``remove_inflight_statement``."""
    return (key(session), int(direction), packet_id)


def headers_text(message: Message) -> str | None:
    """Headers as a JSON object; of a repeated name the first wins, as in STOMP."""
    headers = message.headers
    if not headers:
        return None
    return _encode_json(dict(reversed(headers))).decode()


def stored_message(row: Row) -> StoredMessage:
    """One row of ``find_next_message_statement``. Raises: CorruptRecordError."""
    sequence, count, body, rest = row
    try:  # a column may have a decimal type
        return StoredMessage.of(int(sequence), message(body, rest, sequence), int(count))
    except _BROKEN as error:
        raise CorruptRecordError(str(error), location=f"message {sequence}") from error


def acknowledged_message(row: Row) -> AcknowledgedMessage:
    """One row of ``find_acknowledged_statement``. Raises: CorruptRecordError."""
    ack, sequence = row[:2]
    try:
        return logged_message(row, message(row[-2], row[-1], sequence))
    except _BROKEN as error:
        raise CorruptRecordError(str(error), location=f"acknowledged row {ack}") from error


def logged_message(row: Row, found: Message) -> AcknowledgedMessage:
    """A row of the acknowledged log, in the order of the columns, with its message."""
    ack, sequence, pending_list, delivered_at, acked_at = map(int, row[:5])
    client_id, subscription, protocol, principal, count, outcome, reason = row[5:12]
    return AcknowledgedMessage(
        ack,
        sequence,
        found,
        pending_list,
        delivered_at,
        acked_at,
        client_id,
        subscription,
        protocol,
        principal,
        int(count),
        Outcome(int(outcome)),
        reason,
    )


def _as_bytes(column: Any) -> bytes:
    try:
        return memoryview(column).tobytes()
    except TypeError:
        return b""


def damaged_row(row: Row, error: CorruptRecordError) -> None:
    """Add to *error* the undamaged values of its row."""
    found = Message(destination="", body=_as_bytes(row[-2]), received_at=0)
    error.raw = _as_bytes(row[-1])
    with contextlib.suppress(*_BROKEN):
        error.known = logged_message(row, found)


def message(body: Any, rest: bytes, sequence: int = 0) -> Message:
    """Rebuild a message. Raises: CorruptRecordError."""
    try:
        value = _decode_message(rest)
        if not isinstance(body, _BYTES):
            raise TypeError(f"its body is {type(body).__name__}")
    except _BROKEN as error:
        raise CorruptRecordError(str(error), location=f"message {sequence}") from error
    if value.body:
        body = BodyElsewhere(b"")
        body.place = int.from_bytes(value.body[len(_ELSEWHERE) :], "big")
    _set(value, "body", body)  # nothing else has seen this value yet
    return value


def place_of_body(rest: bytes) -> int | None:
    """Where the body of a message is kept, when the database does not have it.

    Raises: CorruptRecordError.
    """
    body = message(b"", rest).body
    return body.place if isinstance(body, BodyElsewhere) else None


def decoded(kind: type[T], value: bytes, table: str) -> T:
    """Decode a complete value from a table. Raises: CorruptRecordError."""
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except _BROKEN as error:
        raise CorruptRecordError(str(error), location=table) from error


def _cutter(column_type: str) -> Callable[[str], str]:
    limit = re.search(r"CHAR[A-Z0-9]*\s*\(\s*(\d+)", column_type, re.IGNORECASE)
    length: Any = int(limit[1]) if limit else None

    def cut(value: str) -> str:
        if "\0" in value:
            value = value.replace("\0", "\ufffd")
        return value if length is None else value[:length]

    return cut
