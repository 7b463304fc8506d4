"""Messages that leave a list without a consumer's acknowledgement, with or without a row of the log.

If there is a sink, ``acknowledged_outcomes`` of ``[broker]`` says which outcomes have a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.spi import Acknowledge, Discard, DiscardReason, Operation, Outcome, StoredMessage

_REASONS: Final = {
    Outcome.EXPIRED: DiscardReason.EXPIRED,
    Outcome.DROPPED: DiscardReason.DROPPED,
    Outcome.PURGED: DiscardReason.PURGED,
    Outcome.REJECTED: DiscardReason.REJECTED,
}


class Rows(Protocol):
    """Attributes: logged: outcomes that have rows (:class:`tidegate.broker.turn.writer.TurnWriter`)."""

    logged: frozenset[Outcome]

    def now(self) -> int: ...
    def add_operation(self, operation: Operation, /) -> None: ...


class Who(NamedTuple):
    """Who has a message, as a row says it: the consumer of ``Acknowledge``. The default is nobody."""

    client_id: str = ""
    subscription: str = ""
    protocol: str = ""
    principal: str = ""


NOBODY: Final = Who()


def who_of(consumer: Consumer) -> Who:
    """*consumer*, in rows."""
    client = consumer.client
    return Who(client.client_id, consumer.subscription_name, client.protocol, client.principal)


def take_off(
    rows: Rows,
    pending_list: PendingList,
    messages: Sequence[StoredMessage],
    outcome: Outcome,
    reason: str = "",
) -> None:
    """*messages*, which were not handed out, leave the list with the filling turn."""
    pending_list.leaving(messages)
    rows.add_operation(leaving(rows, pending_list.id, messages, outcome, reason))


def leaving(
    rows: Rows,
    pending_list: int,
    messages: Sequence[StoredMessage],
    outcome: Outcome,
    reason: str = "",
    who: Who = NOBODY,
) -> Acknowledge | Discard:
    """The operation that takes *messages*, which nobody has now, off the list.

    Args: who: whom they were for.
    """
    sequences = tuple([message.sequence for message in messages])
    if outcome not in rows.logged:
        return Discard(pending_list, sequences, _REASONS[outcome])
    counts = tuple([message.delivery_count for message in messages])
    times = (0,) * len(sequences)
    return Acknowledge(pending_list, sequences, times, rows.now(), *who, counts, outcome, reason)


def ended_as(
    rows: Rows, acknowledged: Acknowledge, outcome: Outcome, reason: str
) -> Acknowledge | Discard:
    """The same messages leave, but with another outcome."""
    if outcome not in rows.logged:
        return Discard(acknowledged.pending_list, acknowledged.sequences, _REASONS[outcome])
    return msgspec.structs.replace(acknowledged, outcome=outcome, reason=reason)


def dead_letter_row(
    rows: Rows,
    pending_list: int,
    message: StoredMessage,
    delivered_at: int,
    reason: str,
    who: Who = NOBODY,
) -> Acknowledge | None:
    """The log's row for a message that goes to a dead-letter queue; None: it has none.

    Args: delivered_at: when it was delivered, 0: nobody has it now; who: has it, or had it last.
    """
    if Outcome.DEAD_LETTERED not in rows.logged:
        return None
    return Acknowledge(
        pending_list,
        (message.sequence,),
        (delivered_at,),
        rows.now(),
        *who,
        (message.delivery_count + (1 if delivered_at else 0),),
        Outcome.DEAD_LETTERED,
        reason,
    )
