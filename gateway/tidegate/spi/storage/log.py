"""The acknowledged log: what a store keeps for sinks, as rows and in encoded form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any, Final, Protocol

import msgspec

from tidegate.spi.messages import Message
from tidegate.spi.storage.operations import Outcome, PendingListId

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Message).decode


class AcknowledgedMessage(msgspec.Struct, frozen=True, gc=False):
    """One row of the acknowledged log.

    Attributes:
        ack_sequence: dense, from 1, within one ``store_id``.
        sequence, message: what was acknowledged.
        pending_list: the list it was acknowledged in.
        delivered_at, acked_at: microseconds since the epoch; 0: never, or unknown.
        client_id, subscription, protocol, principal: of the consumer.
        delivery_count: how often it was handed to a consumer, including the last time.
        outcome, reason: how it ended, see :class:`~tidegate.spi.Acknowledge`.
    """

    ack_sequence: int
    sequence: int
    message: Message
    pending_list: PendingListId
    delivered_at: int
    acked_at: int
    client_id: str
    subscription: str
    protocol: str
    principal: str = ""
    delivery_count: int = 1
    outcome: Outcome = Outcome.ACKNOWLEDGED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AcknowledgedPage:
    """Rows of the acknowledged log, in order and without a gap.

    Attributes:
        rows: may be empty.
        last: highest ack sequence that is durable now; more rows follow while it is above the
            last row's.
    """

    rows: Sequence[AcknowledgedMessage]
    last: int


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Numbers of the acknowledged log.

    Attributes:
        first, last: it holds ack sequences first..last (first = last + 1 when it is empty).
        held_bytes: what is held only for the log: bodies that no list needs any more, and the size of
            its rows and headers if known. A store that keeps messages in two places may count a body only
            once its row was read or has reached the message's place, and may estimate the part that was
            released a moment ago.
        oldest_at: ``acked_at`` of its oldest row, 0 when it is empty.
    """

    first: int
    last: int
    held_bytes: int
    oldest_at: int


class AcknowledgedLog(Protocol):
    """Every acknowledged message in order, until all sinks have it.

    Rows are written by ``Acknowledge`` while :attr:`StoreContext.keep_acknowledged` is true.
    """

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """Read the rows after ack sequence *after*; only those that are SYNCED.

        At least one row is returned when there is one, whatever *bytes_max* is.

        Raises: RequestError when rows after *after* were already released; CorruptRecordError,
            StoreIOError, StoreClosedError.
        """
        ...

    async def release_acknowledged(self, through: int) -> None:
        """Every sink has the rows up to *through* (inclusive): they may be forgotten. Idempotent."""
        ...

    def log_statistics(self) -> LogStatistics:
        """Cheap enough to call every second."""
        ...


class EncodedRows(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Rows *first*, *first* + 1, … of the acknowledged log that have most values in common.

    Attributes:
        first: ack sequence of the first one.
        sequences, delivered_at, delivery_counts: one for each row; all other values of
            :class:`~tidegate.spi.AcknowledgedMessage` are the same for all of them.
        messages: the :class:`~tidegate.spi.Message` of each row as MessagePack, to be decoded in
            another process; none has its body elsewhere.
    """

    first: int
    pending_list: PendingListId
    acked_at: int
    client_id: str
    subscription: str
    protocol: str
    principal: str
    outcome: Outcome
    reason: str
    sequences: Sequence[int]
    delivered_at: Sequence[int]
    delivery_counts: Sequence[int]
    messages: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def last(self) -> int:
        """Ack sequence of the last one."""
        return self.first + len(self.messages) - 1

    def decode_messages(self) -> list[Message]:
        """Decode :attr:`messages`. Raises: msgspec.DecodeError."""
        return list(map(_decode, self.messages))

    def decode(self) -> list[AcknowledgedMessage]:
        """The rows. Raises: msgspec.DecodeError."""
        return list(
            map(
                AcknowledgedMessage,
                range(self.first, self.first + len(self.messages)),
                self.sequences,
                self.decode_messages(),
                repeat(self.pending_list),
                self.delivered_at,
                repeat(self.acked_at),
                repeat(self.client_id),
                repeat(self.subscription),
                repeat(self.protocol),
                repeat(self.principal),
                self.delivery_counts,
                repeat(self.outcome),
                repeat(self.reason),
            )
        )

    def decode_each(self) -> Iterator[AcknowledgedMessage | msgspec.DecodeError]:
        """The same, one by one, with an error in place of a message that cannot be decoded."""
        for number, data in enumerate(self.messages):
            try:
                yield self._row(number, _decode(data))
            except msgspec.DecodeError as error:
                yield error

    def without_message(self, number: int) -> AcknowledgedMessage:
        """Row *number* (an index), as far as it is known without its message."""
        return self._row(number, Message(destination="", body=b""))

    def _row(self, number: int, message: Message) -> AcknowledgedMessage:
        return AcknowledgedMessage(
            self.first + number,
            self.sequences[number],
            message,
            self.pending_list,
            self.delivered_at[number],
            self.acked_at,
            self.client_id,
            self.subscription,
            self.protocol,
            self.principal,
            self.delivery_counts[number],
            self.outcome,
            self.reason,
        )


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """Rows of the acknowledged log, in order and without a gap.

    Attributes: runs: may be empty, but no run is. last: as in :class:`~tidegate.spi.AcknowledgedPage`.
    """

    runs: Sequence[EncodedRows]
    last: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(map(len, self.runs))


class EncodedLog(Protocol):
    """Offered beside :class:`~tidegate.spi.AcknowledgedLog` by a store that has messages in encoded form."""

    async def acknowledged_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        """As :meth:`~tidegate.spi.AcknowledgedLog.acknowledged`, but ends before the first row whose
        message has its body elsewhere, even when that is the first one after *after*.

        Whether a message can be decoded is not checked; that its bytes are what was written, is.
        """
        ...


def encode_rows(rows: Sequence[AcknowledgedMessage]) -> list[EncodedRows]:
    """*rows*, which are consecutive and have their bodies, as runs."""
    runs: list[EncodedRows] = []
    for common, group in groupby(rows, _common):
        same = list(group)
        runs.append(
            EncodedRows(
                same[0].ack_sequence,
                *common,
                [row.sequence for row in same],
                [row.delivered_at for row in same],
                [row.delivery_count for row in same],
                [_encoded(row.message) for row in same],
            )
        )
    return runs


def _common(
    row: AcknowledgedMessage,
) -> tuple[PendingListId, int, str, str, str, str, Outcome, str]:
    return (
        row.pending_list,
        row.acked_at,
        row.client_id,
        row.subscription,
        row.protocol,
        row.principal,
        row.outcome,
        row.reason,
    )


def _encoded(message: Message) -> bytes:
    try:
        return _encode(message)
    except UnicodeEncodeError:
        # An unpaired surrogate cannot be UTF-8; a store in memory may hold one.
        return _encode(Message(*[_clean(value) for value in msgspec.structs.astuple(message)]))


def _clean(value: Any) -> Any:
    """*value* with all its strings made encodable as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    pieces: Any = value
    return tuple(_clean(piece) for piece in pieces) if isinstance(value, tuple) else value
