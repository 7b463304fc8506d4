"""What a start reads: everything but the messages themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.spi import (
    Branch,
    InflightRecord,
    PendingCount,
    RecoveredDestination,
    RecoveredState,
    RecoveryReport,
    Session,
    Subscription,
)
from tidegate_store_jdbc.database.adapter import Adapter, Row
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.transactions.lock import LockRow


@dataclass(slots=True)
class Counters:
    """The numbers that a store keeps in memory.

    Attributes:
        batch: number of the last transaction.
        last_sequence, last_list: highest numbers ever used.
        ack_last, ack_synced, ack_released: of the acknowledged log.
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


@dataclass(slots=True)
class Found:
    """What was read. ``removed``: lists that are gone and not cleaned up yet."""

    store_id: str
    counters: Counters
    destinations: list[RecoveredDestination] = field(default_factory=list[RecoveredDestination])
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    branches: list[Branch] = field(default_factory=list[Branch])
    removed: list[int] = field(default_factory=list[int])
    pending: dict[int, PendingCount] = field(default_factory=dict[int, PendingCount])

    async def state(self, adapter: Adapter, report: RecoveryReport) -> RecoveredState:
        """The rest of what the broker wants to know. Raises: DatabaseError, CorruptRecordError."""
        decoded = codec.decoded
        sessions = await adapter.fetch("find_all_sessions_statement", ())
        inflight = await adapter.fetch("find_all_inflight_statement", ())
        retained = await adapter.fetch("find_all_retained_statement", ())
        return RecoveredState(
            store_id=self.store_id,
            last_sequence=self.counters.last_sequence,
            last_pending_list=self.counters.last_list,
            destinations=self.destinations,
            subscriptions=self.subscriptions,
            sessions=[decoded(Session, row[0], "session table") for row in sessions],
            inflight=[decoded(InflightRecord, row[0], "in-flight table") for row in inflight],
            retained=[codec.message(body, rest) for body, rest in retained],
            pending=self.pending,
            report=report,
        )


async def numbers(adapter: Adapter, lock: LockRow) -> Counters:
    """What a transaction must know. Raises: DatabaseError."""
    # The tables are looked at, too: a number that was given out twice would lose a message.
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


async def recover(adapter: Adapter, lock: LockRow, store_id: str) -> Found:
    """Read the bindings and count what is pending. Raises: DatabaseError, CorruptRecordError."""
    found = Found(store_id, await numbers(adapter, lock))
    for number, name in await adapter.fetch("find_all_destinations_statement", ()):
        known = codec.name(name, "destination table")
        found.destinations.append(RecoveredDestination(known, int(number)))
    for row in await adapter.fetch("find_all_durable_subs_statement", ()):
        found.subscriptions.append(codec.decoded(Subscription, row[0], "subscription table"))
    for row in await adapter.fetch("find_all_branches_statement", ()):
        found.branches.append(codec.decoded(Branch, row[0], "branch table"))
    removed = await adapter.fetch("find_all_removed_statement", ())
    found.removed = [int(row[0]) for row in removed]
    counters = found.counters
    known_lists = (*found.destinations, *found.subscriptions, *found.branches)
    lists = [known.pending_list for known in known_lists]
    counters.last_list = max(lock.last_list, *lists, 0)
    await count(adapter, found)
    return found


async def count(adapter: Adapter, found: Found) -> None:
    """Count what is pending and what only the log holds."""
    counters = found.counters
    single = 0
    found.pending.clear()
    gone = set(found.removed)
    for row in await adapter.fetch("destination_message_count_statement", ()):
        pending_list, messages, body_bytes, shared = (int(value) for value in row)
        single += messages - shared
        if pending_list not in gone:
            found.pending[pending_list] = PendingCount(messages, body_bytes)
    shared = await adapter.fetch("shared_message_count_statement", ())
    counters.pending_messages = single + _number(shared)
    held = await adapter.fetch("acknowledged_bytes_statement", ())
    counters.acknowledged_bytes = _number(held)
    rows = await adapter.fetch("find_oldest_acknowledged_statement", (counters.ack_released,))
    counters.acknowledged_oldest_at = _number(rows)


def _number(rows: object) -> int:
    assert isinstance(rows, list | tuple)
    found: list[Row] = list(rows)  # pyright: ignore[reportUnknownArgumentType] - rows of a driver
    return int(found[0][0] or 0) if found else 0
