"""JSON from clients: ranges, tickets, actions. See docs/flight.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_spark.staging.arrow import SCHEMA

#: Rows per endpoint, that is, per task of a reader's program.
ENDPOINT_ROWS: Final = 100_000
ENDPOINTS_MAX: Final = 10_000
#: Most bytes of a command, ticket or action: far below a frame of the link to the gateway.
REQUEST_BYTES_MAX: Final = 64 * 1024


class BadRequestError(Exception):
    """The text is for the client."""


class Range(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}
):
    """A descriptor's command: which rows. Omitted fields set no bound.

    Attributes:
        first, last: ack sequences, inclusive (``from``, ``to``).
        since, until: time of acknowledgement, ISO 8601 with a zone; *until* is exclusive.
        reader: begin after what this named reader has committed.
        columns: only these. rows: per endpoint. skip: leave out rows no longer in the log.
    """

    first: int | None = None
    last: int | None = None
    since: str = ""
    until: str = ""
    reader: str = ""
    columns: list[str] | None = None
    rows: int = ENDPOINT_ROWS
    skip: bool = False

    def bounds(self, view: protocol.View, find: Callable[[int], int]) -> tuple[int, int]:
        """The row before the range, and its last one. Raises: BadRequestError."""
        if sum((self.first is not None, bool(self.since), bool(self.reader))) > 1:
            raise BadRequestError("`from`, `since` and `reader` each say where to begin: name one")
        if self.last is not None and self.until:
            raise BadRequestError("`to` and `until` both say where to end: name one")
        after = view.first - 1
        if self.first is not None:
            after = self.first - 1
        elif self.since:
            after = find(_microseconds(self.since)) - 1
        elif self.reader:
            after = view.committed
        through = view.last
        if self.last is not None:
            through = self.last
        elif self.until:
            through = find(_microseconds(self.until)) - 1
        if after < 0:
            raise BadRequestError("rows are numbered from 1")
        return after, max(after, min(through, view.last))

    def tickets(self, epoch: str, after: int, through: int) -> Iterator[bytes]:
        """One for each endpoint, in order."""
        rows = max(self.rows, -(-(through - after) // ENDPOINTS_MAX))
        for begin in range(after, through, rows):
            end = min(begin + rows, through)
            yield msgspec.json.encode(Ticket(epoch, begin, end, self.columns, self.skip))


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows after *after*, up to *through*."""

    epoch: str
    after: int
    through: int
    columns: list[str] | None = None
    skip: bool = False


class _Look(msgspec.Struct, forbid_unknown_fields=True):
    reader: str = ""


class _Open(msgspec.Struct, forbid_unknown_fields=True):
    reader: str


class _Plan(msgspec.Struct, forbid_unknown_fields=True):
    reader: str
    generation: int
    rows_max: int = 0


class _Commit(msgspec.Struct, forbid_unknown_fields=True):
    reader: str
    generation: int
    epoch: str
    ack_seq: int


def _look(session: str, body: bytes) -> protocol.Question:
    """The log's range, and a reader's position: {"reader": NAME}, or {}."""
    return protocol.Look(session, _decoded(body, _Look).reader)


def _open(session: str, body: bytes) -> protocol.Question:
    """Start a query as {"reader": NAME}; older ones of that name are refused from now on."""
    return protocol.Open(session, _decoded(body, _Open).reader)


def _plan(session: str, body: bytes) -> protocol.Question:
    """How far the next batch may go: {"reader", "generation", "rows_max"}."""
    asked = _decoded(body, _Plan)
    if asked.rows_max < 0:
        raise BadRequestError("rows_max is 0 (no limit) or more")
    return protocol.Plan(session, asked.reader, asked.generation, asked.rows_max)


def _commit(session: str, body: bytes) -> protocol.Question:
    """The reader will never ask again for rows up to {"reader", "generation", "epoch", "ack_seq"}."""
    asked = _decoded(body, _Commit)
    return protocol.Commit(session, asked.reader, asked.generation, asked.epoch, asked.ack_seq)


#: By the action's name.
ACTIONS: Final[dict[str, Callable[[str, bytes], protocol.Question]]] = {
    "look": _look,
    "open": _open,
    "plan": _plan,
    "commit": _commit,
}


def range_of(command: bytes) -> Range:
    """Raises: BadRequestError."""
    asked: Range = _decoded(command, Range)
    if asked.rows < 1:
        raise BadRequestError("`rows` is 1 or more")
    schema_of(asked.columns)
    return asked


def ticket_of(data: bytes) -> Ticket:
    """Raises: BadRequestError."""
    ticket: Ticket = _decoded(data, Ticket)
    if not 0 <= ticket.after <= ticket.through < 1 << 63:
        raise BadRequestError("the ticket's range is none")
    return ticket


def schema_of(columns: list[str] | None) -> Any:
    """Raises: BadRequestError for a column that is not there."""
    if columns is None:
        return SCHEMA
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or not columns:
        raise BadRequestError(
            f"no column {unknown[0]!r}; there are: {', '.join(SCHEMA.names)}"
            if unknown
            else "`columns` names none"
        )
    return SCHEMA.empty_table().select(columns).schema


def _decoded(data: bytes, kind: type[Any]) -> Any:
    if len(data) > REQUEST_BYTES_MAX:
        raise BadRequestError(f"larger than {REQUEST_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not understood: {error}") from None


def _microseconds(text: str) -> int:
    """Raises: BadRequestError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError(f"{text!r} is no time; write 2026-11-23T04:05:06Z") from None
    if at.tzinfo is None:
        raise BadRequestError(f"{text!r} has no zone; write {text}Z for UTC")
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
