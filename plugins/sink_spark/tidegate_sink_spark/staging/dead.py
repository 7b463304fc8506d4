"""Dead letters: rows of the log that cannot be read or written, with whatever is known of them.

The dead-letter table has the columns of the table itself. Its ``body`` holds whatever bytes could be read (the body,
or the stored record as it is on disk). The header :data:`REASON` says what was wrong. Unknown values are NULL,
except ``acked_at``, which is then the time at which the row became a dead letter.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.spi import AcknowledgedMessage, Message
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.further import Further

pc: Final[Any] = importlib.import_module("pyarrow.compute")

#: The header that gives the reason for a dead letter.
REASON: Final = "dead-letter-reason"
#: The header that says what the body holds: ``body``, ``record`` (as it is stored), or ``nothing``.
BODY: Final = "dead-letter-body"
REASON_MAX: Final = 1_000

#: Columns that have a value even when nothing is known about the message, or the row.
_OF_MESSAGE: Final = frozenset({"destination_kind", "priority", "persistent", "qos", "retain"})
_OF_ROW: Final = frozenset({"message_id", "sequence", "delivery_count", "outcome"})
_NEVER_NULL: Final = frozenset(
    {"ack_seq", "gateway_id", "epoch", "acked_at", "ack_date", "headers", "body"}
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that goes to the dead-letter table.

    Attributes:
        ack_sequence: its number.
        reason: for operators.
        known: the row as far as it is known; None when nothing is.
        raw: the stored bytes of its record, as far as they could be read.
        at: when that was found, microseconds since the epoch.
    """

    ack_sequence: int
    reason: str
    known: AcknowledgedMessage | None
    raw: bytes
    at: int


def build_dead(
    letters: Sequence[DeadLetter], gateway_id: str, epoch: str, further: Further | None = None
) -> list[Any]:
    """Arrow batches with the columns of staged files, one row per letter of *letters*, in order.

    *further* columns hold what is there and fits; the body is only in ``body``.
    """
    further = further or Further()
    return [_build(letter, gateway_id, epoch, further) for letter in letters]


def _build(letter: DeadLetter, gateway_id: str, epoch: str, further: Further) -> Any:
    """With everything that is known; or with less, if some of that cannot be written."""
    for row, known in (
        (_whole(letter), letter.known),
        (_bare(letter, letter.raw), None),
        (_bare(letter, b""), None),
    ):
        try:
            batch = _nulls(arrow.build_batch([row], gateway_id, epoch), row)
            return further.of_dead(known).behind(batch)
        except MemoryError:
            raise
        except arrow.UNWRITABLE:
            continue
    raise AssertionError("a row of which nothing is known can be written")


def _whole(letter: DeadLetter) -> AcknowledgedMessage:
    known = letter.known
    if known is None:
        return _bare(letter, letter.raw)
    message = known.message
    is_body = message.body or (message.large is not None and letter.raw)
    kind = "body" if is_body else "record" if letter.raw else "nothing"
    message = msgspec.structs.replace(
        message,
        body=message.body or letter.raw,
        headers=(*message.headers, (REASON, letter.reason[:REASON_MAX]), (BODY, kind)),
        large=None,
    )
    return msgspec.structs.replace(
        known,
        ack_sequence=letter.ack_sequence,
        message=message,
        acked_at=known.acked_at or letter.at,
    )


def _bare(letter: DeadLetter, raw: bytes) -> AcknowledgedMessage:
    kind = "record" if raw else "nothing"
    headers = ((REASON, letter.reason[:REASON_MAX]), (BODY, kind))
    message = Message(destination="", body=raw, headers=headers, received_at=0)
    return AcknowledgedMessage(letter.ack_sequence, 0, message, 0, 0, letter.at, "", "", "")


def _nulls(batch: Any, row: AcknowledgedMessage) -> Any:
    """*batch* of one row with NULL for what is unknown."""
    unknown: set[str] = set()
    if not row.message.destination:
        unknown |= _OF_MESSAGE
    if not row.sequence:
        unknown |= _OF_ROW
    columns: list[Any] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        is_empty = str(field.type) == "string" and column[0].as_py() == ""
        is_never = str(field.type).startswith("timestamp") and column[0].value == 0
        if field.name in unknown or ((is_empty or is_never) and field.name not in _NEVER_NULL):
            column = arrow.pa.nulls(1, field.type)
        columns.append(column)
    return arrow.pa.RecordBatch.from_arrays(columns, schema=batch.schema)
