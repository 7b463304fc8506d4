"""What a start reads: everything but the messages themselves, and whose journal is in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.spi import (
    Branch,
    InflightRecord,
    PendingCount,
    RecoveredDestination,
    RecoveredState,
    Session,
    StoreIOError,
    Subscription,
)
from tidegate_store_jdbc.database.adapter import Adapter, Row
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.transactions.lock import LockRow

#: The remedy when the journal in front is missing.
_HINT: Final = (
    "start the gateway there with [store] plugin = 'journaled', or bring that directory here; "
    "journal_lost_policy = 'ignore' of that plugin gives those messages up"
)


@dataclass(slots=True)
class Counters:
    """The numbers that a store keeps in memory.

    Attributes:
        batch: number of the last transaction.
        last_sequence, last_list: highest numbers ever used.
        ack_last, ack_synced, ack_released: numbers of the acknowledged log.
        pending_messages: messages that at least one list holds.
        acknowledged_bytes: body bytes that only the log holds.
        acknowledged_oldest_at: when its oldest row was acknowledged, 0 when it is empty.
    """

    batch: int = 0
    last_sequence: int = 0
    last_list: int = 0
    ack_last: int = 0
    ack_synced: int = 0
    ack_released: int = 0
    pending_messages: int = 0
    acknowledged_bytes: int = 0
    acknowledged_oldest_at: int = 0


async def numbers(adapter: Adapter, lock: LockRow) -> Counters:
    """The numbers that transactions need. Raises: DatabaseError."""
    # The tables are checked too: a number given out twice would lose a message.
    messages = await adapter.fetch("find_last_sequence_id_in_msgs_statement", ())
    acks = await adapter.fetch("find_last_sequence_id_in_acks_statement", ())
    ack_last = max(lock.ack_last, _number(acks))
    return Counters(
        batch=lock.batch,
        last_sequence=max(lock.last_sequence, _number(messages)),
        last_list=lock.last_list,
        ack_last=ack_last,
        ack_synced=ack_last,
        ack_released=lock.ack_released,
    )


async def recover(adapter: Adapter, counters: Counters, store_id: str) -> RecoveredState:
    """Everything the broker needs except the report. Brings *counters* up to date.

    Raises: DatabaseError, CorruptRecordError.
    """
    decoded = codec.decoded

    async def values(table: str) -> list[Any]:
        return [row[0] for row in await adapter.fetch(f"find_all_{table}_statement", ())]

    destinations = [
        decoded(RecoveredDestination, value, "destination table")
        for value in await values("destinations")
    ]
    subscriptions = [
        decoded(Subscription, value, "subscription table") for value in await values("durable_subs")
    ]
    branches = [decoded(Branch, value, "branch table") for value in await values("branches")]
    sessions = await values("sessions")
    inflight = await values("inflight")
    retained = await adapter.fetch("find_all_retained_statement", ())
    lists = [known.pending_list for known in (*destinations, *subscriptions, *branches)]
    counters.last_list = max(counters.last_list, *lists, 0)
    return RecoveredState(
        store_id=store_id,
        last_sequence=counters.last_sequence,
        last_pending_list=counters.last_list,
        destinations=destinations,
        subscriptions=subscriptions,
        sessions=[decoded(Session, value, "session table") for value in sessions],
        inflight=[decoded(InflightRecord, value, "in-flight table") for value in inflight],
        retained=[codec.message(body, rest) for body, rest in retained],
        pending=await count(adapter, counters),
    )


async def count(adapter: Adapter, counters: Counters) -> dict[int, PendingCount]:
    """Count what is pending and what only the log holds. Returns: what is pending, by list."""
    single = 0
    pending: dict[int, PendingCount] = {}
    for row in await adapter.fetch("destination_message_count_statement", ()):
        pending_list, messages, body_bytes, shared = (int(value) for value in row)
        single += messages - shared
        pending[pending_list] = PendingCount(messages, body_bytes)
    shared = await adapter.fetch("shared_message_count_statement", ())
    counters.pending_messages = single + _number(shared)
    held = await adapter.fetch("acknowledged_bytes_statement", ())
    counters.acknowledged_bytes = _number(held)
    rows = await adapter.fetch("find_oldest_acknowledged_statement", (counters.ack_released,))
    counters.acknowledged_oldest_at = _number(rows)
    return pending


def _number(rows: object) -> int:
    assert isinstance(rows, list | tuple)
    found: list[Row] = list(rows)  # pyright: ignore[reportUnknownArgumentType] - rows of a driver
    return int(found[0][0] or 0) if found else 0


class Mark(msgspec.Struct, frozen=True):
    """The row of the journal table: the journal in front, and how much of it was copied here.

    The mark is written in the transaction that copies a part of the journal, so after any crash it
    says exactly which part that was. It is *open* while the journal may hold confirmed messages
    that the database does not: the store cannot be opened without that journal then.

    Attributes:
        journal: identity of the journal's contents.
        place: machine and directory, for people.
        position: the database has everything up to this record.
        is_open: the journal may hold more.
    """

    journal: str
    place: str
    position: int
    is_open: bool


async def read_mark(adapter: Adapter) -> Mark | None:
    """The mark; None when there never was a journal in front. Raises: DatabaseError."""
    rows = await adapter.control("find_journal_statement", (), fetch=True)
    if not rows:
        return None
    journal, place, position, is_open = rows[0]
    return Mark(str(journal), str(place), int(position), bool(is_open))


def lost_journal(mark: Mark) -> StoreIOError:
    """The error for a database whose journal is somewhere else."""
    return StoreIOError(
        f"the journal in {mark.place} may hold confirmed messages that are not in the database "
        f"yet; {_HINT}"
    )
