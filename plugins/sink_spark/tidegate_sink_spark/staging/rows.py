"""Rows of the acknowledged log as columns, which is what they become.

Most fields are the same for a whole run, and no row is looked at individually unless it is
damaged or does not fit: so there is no object for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec

from tidegate.spi import AcknowledgedMessage, EncodedRows, Message, Outcome


@dataclass(slots=True, eq=False)
class LogRows:
    """The fields of :class:`~tidegate.spi.AcknowledgedMessage` in order, each a list of the rows' values."""

    ack_sequences: list[int] = field(default_factory=list[int])
    sequences: list[int] = field(default_factory=list[int])
    messages: list[Message] = field(default_factory=list[Message])
    pending_lists: list[int] = field(default_factory=list[int])
    delivered_at: list[int] = field(default_factory=list[int])
    acked_at: list[int] = field(default_factory=list[int])
    client_ids: list[str] = field(default_factory=list[str])
    subscriptions: list[str] = field(default_factory=list[str])
    protocols: list[str] = field(default_factory=list[str])
    principals: list[str] = field(default_factory=list[str])
    delivery_counts: list[int] = field(default_factory=list[int])
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    reasons: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, rows: Iterable[AcknowledgedMessage]) -> LogRows:
        """The same rows."""
        return cls(*map(list, zip(*map(msgspec.structs.astuple, rows), strict=True)))

    def add(self, row: AcknowledgedMessage) -> None:
        """Add one row."""
        for value, column in zip(msgspec.structs.astuple(row), self._columns, strict=True):
            column.append(value)

    def add_run(self, run: EncodedRows, messages: Sequence[Message]) -> None:
        """Add all rows of *run*. Args: messages: its messages, decoded."""
        count = len(messages)
        self.ack_sequences += range(run.first, run.first + count)
        self.sequences += run.sequences
        self.messages += messages
        self.pending_lists += [run.pending_list] * count
        self.delivered_at += run.delivered_at
        self.acked_at += [run.acked_at] * count
        self.client_ids += [run.client_id] * count
        self.subscriptions += [run.subscription] * count
        self.protocols += [run.protocol] * count
        self.principals += [run.principal] * count
        self.delivery_counts += run.delivery_counts
        self.outcomes += [run.outcome] * count
        self.reasons += [run.reason] * count

    def part(self, begin: int, end: int) -> LogRows:
        """Rows begin … end - 1 (indexes)."""
        return LogRows(*[column[begin:end] for column in self._columns])

    def only(self, numbers: Sequence[int]) -> LogRows:
        """The rows with these indexes."""
        return LogRows(*[[column[number] for number in numbers] for column in self._columns])

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[AcknowledgedMessage]:
        return map(AcknowledgedMessage, *self._columns)

    def __getitem__(self, number: int) -> AcknowledgedMessage:
        return AcknowledgedMessage(*[column[number] for column in self._columns])

    @property
    def _columns(self) -> list[list[Any]]:
        return [getattr(self, name) for name in _NAMES]


_NAMES: Final = tuple(each.name for each in fields(LogRows))
