"""The reference message store: the whole contract in plain dictionaries, nothing else.

It defines each operation by doing it in the simplest way. The conformance kit compares every other
store with it. It is also handy in tests of the broker, which need a store and no disk:
:attr:`MemoryStore.write_error` makes writes fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, assert_never, final

import msgspec

from tidegate.spi import (
    Acknowledge,
    AcknowledgedMessage,
    AcknowledgedPage,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    ClearRetained,
    Discard,
    DuplicateId,
    Durability,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    LogStatistics,
    Message,
    MessageStore,
    Move,
    Operation,
    PendingCount,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RecoveredDestination,
    RecoveredState,
    RemoveBranch,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    RequestError,
    Session,
    SetRetained,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    StoreStatistics,
    Subscription,
    WriteBatch,
    body_bytes,
)

_RowT = TypeVar("_RowT", StoredMessage, AcknowledgedMessage)

_store_numbers = itertools.count(1)


@dataclass(slots=True)
class MemoryContents:
    """The counterpart of other stores' disk: give it to a new :class:`MemoryStore` to restart.

    Attributes:
        lists: sequence → message, in sequence order, for each pending list.
        log: rows of the acknowledged log that are not released.
        log_last, log_synced, log_released: highest ack sequences written, readable, released.
        owner: the open store.
        bytes_max: bodies of pending messages; a batch that adds more is refused.
    """

    store_id: str = field(default_factory=lambda: f"memory-{next(_store_numbers)}")
    last_sequence: int = 0
    last_pending_list: int = 0
    lists: dict[int, dict[int, StoredMessage]] = field(
        default_factory=dict[int, dict[int, StoredMessage]]
    )
    destinations: dict[str, RecoveredDestination] = field(
        default_factory=dict[str, RecoveredDestination]
    )
    subscriptions: dict[int, Subscription] = field(default_factory=dict[int, Subscription])
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    inflight: dict[tuple[str, InflightDirection, int], InflightRecord] = field(
        default_factory=dict[tuple[str, InflightDirection, int], InflightRecord]
    )
    retained: dict[str, Message] = field(default_factory=dict[str, Message])
    branches: dict[BranchId, Branch] = field(default_factory=dict[BranchId, Branch])
    duplicate_ids: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    log: list[AcknowledgedMessage] = field(default_factory=list[AcknowledgedMessage])
    log_last: int = 0
    log_synced: int = 0
    log_released: int = 0
    owner: object | None = None
    bytes_max: int | None = None

    def pending_bytes(self) -> int:
        """Bodies of pending messages, in each list that holds them."""
        return sum(
            len(stored.message.body)
            for messages in self.lists.values()
            for stored in messages.values()
        )


@final
class MemoryStore:
    """A :class:`tidegate.spi.MessageStore` in dictionaries.

    Attributes:
        contents: what it works on.
        write_error: when set, :meth:`write` raises it and changes nothing; a StoreIOError makes
            the store read-only, as the contract says.
    """

    def __init__(self, context: StoreContext, contents: MemoryContents | None = None) -> None:
        if contents is None or not context.persistent:
            contents = MemoryContents()
        self.contents = contents
        self.write_error: StoreError | None = None
        self._context = context
        self._is_open = False
        self._read_only: StoreIOError | None = None

    @property
    def capabilities(self) -> StoreCapabilities:
        """Durable in the sense that the contents outlive the store."""
        return StoreCapabilities(
            durable=self._context.persistent,
            acknowledged_log=self,
            branches=self,
            duplicate_ids=self,
        )

    async def open(self) -> RecoveredState:
        """Take the contents, and return what is there.

        Raises: StoreLockedError.
        """
        contents = self.contents
        if contents.owner is not None:
            raise StoreLockedError(
                f"{self._context.data_directory}: another store is open on these contents",
                owner=self._context.gateway_name,
            )
        contents.owner = self
        self._is_open = True
        return RecoveredState(
            store_id=contents.store_id,
            last_sequence=contents.last_sequence,
            last_pending_list=contents.last_pending_list,
            destinations=list(contents.destinations.values()),
            subscriptions=list(contents.subscriptions.values()),
            sessions=list(contents.sessions.values()),
            inflight=list(contents.inflight.values()),
            retained=list(contents.retained.values()),
            pending={
                number: PendingCount(
                    len(messages), sum(body_bytes(stored.message) for stored in messages.values())
                )
                for number, messages in contents.lists.items()
            },
        )

    async def recovered_branches(self) -> Sequence[Branch]:
        """All of them."""
        return list(self.contents.branches.values())

    async def recovered_duplicate_ids(self) -> Sequence[DuplicateId]:
        """All of them."""
        return [
            DuplicateId(destination, duplicate_id, sequence)
            for destination, ids in self.contents.duplicate_ids.items()
            for sequence, duplicate_id in sorted(ids.items())
        ]

    async def write(self, batch: WriteBatch) -> None:
        """Apply the operations in order.

        Raises: StoreClosedError; StoreFullError; ``write_error``; StoreIOError once read-only.
        """
        self._check_open()
        if self._read_only is not None:
            raise self._read_only
        if self.write_error is not None:
            if isinstance(self.write_error, StoreIOError):
                self._read_only = self.write_error
            raise self.write_error
        self._check_room(batch)
        for operation in batch.operations:
            self._apply(operation)
        if batch.durability is Durability.SYNCED:
            self.contents.log_synced = self.contents.log_last

    def _check_room(self, batch: WriteBatch) -> None:
        added = [
            len(known.message.body) for known in batch.operations if isinstance(known, AddMessage)
        ]
        limit = self.contents.bytes_max
        if added and limit is not None and self.contents.pending_bytes() + sum(added) > limit:
            raise StoreFullError(f"{limit} bytes of pending messages are the limit")

    def _apply(self, operation: Operation) -> None:
        contents = self.contents
        match operation:
            case AddMessage(sequence, message, pending_lists):
                for number in pending_lists:
                    self._append(number, StoredMessage.of(sequence, message))
            case Acknowledge():
                self._acknowledge(operation)
            case Discard(pending_list, sequences):
                for sequence in sequences:
                    contents.lists[pending_list].pop(sequence)
            case Move(pending_list, sequence, target_list, target_sequence, message, row):
                if row is None:
                    contents.lists[pending_list].pop(sequence)
                else:
                    self._acknowledge(row)
                self._append(target_list, StoredMessage.of(target_sequence, message))
            case RecordDelivery(pending_list, sequences, counts):
                messages = contents.lists[pending_list]
                for sequence, count in zip(sequences, counts, strict=True):
                    message = messages[sequence].message
                    messages[sequence] = StoredMessage.of(sequence, message, count)
            case AddDestination(destination, pending_list):
                known = RecoveredDestination(*msgspec.structs.astuple(operation))
                contents.destinations[destination] = known
                self._add_list(pending_list)
            case RemoveDestination(destination, pending_list):
                contents.destinations.pop(destination, None)
                contents.lists.pop(pending_list, None)
            case PutSubscription(subscription):
                contents.subscriptions[subscription.pending_list] = subscription
                self._add_list(subscription.pending_list)
            case RemoveSubscription(pending_list):
                contents.subscriptions.pop(pending_list, None)
                contents.lists.pop(pending_list, None)
            case PutBranch(branch):
                contents.branches[branch.branch_id] = branch
                self._add_list(branch.pending_list)
            case RemoveBranch(branch_id, pending_list):
                contents.branches.pop(branch_id, None)
                contents.lists.pop(pending_list, None)
            case _:
                self._apply_rest(operation)

    def _apply_rest(
        self,
        operation: SetRetained
        | ClearRetained
        | PutSession
        | RemoveSession
        | PutInflight
        | RemoveInflight
        | AddDuplicateId
        | ForgetDuplicateIds,
    ) -> None:
        contents = self.contents
        match operation:
            case SetRetained(message):
                contents.retained[message.destination] = message
            case ClearRetained(destination):
                contents.retained.pop(destination, None)
            case PutSession(session):
                contents.sessions[session.key] = session
            case RemoveSession(session_key):
                contents.sessions.pop(session_key, None)
                for key in [key for key in contents.inflight if key[0] == session_key]:
                    del contents.inflight[key]
            case PutInflight(record):
                key = (record.session, record.direction, record.packet_id)
                contents.inflight[key] = record
            case RemoveInflight(session_key, direction, packet_id):
                contents.inflight.pop((session_key, direction, packet_id), None)
            case AddDuplicateId(destination, duplicate_id, sequence):
                contents.duplicate_ids.setdefault(destination, {})[sequence] = duplicate_id
                contents.last_sequence = max(contents.last_sequence, sequence)
            case ForgetDuplicateIds(destination, through):
                ids = contents.duplicate_ids.get(destination, {})
                kept = {number: text for number, text in ids.items() if number > through}
                contents.duplicate_ids[destination] = kept
            case _:
                assert_never(operation)

    def _append(self, number: int, stored: StoredMessage) -> None:
        self.contents.lists.setdefault(number, {})[stored.sequence] = stored
        self.contents.last_sequence = max(self.contents.last_sequence, stored.sequence)

    def _add_list(self, number: int) -> None:
        if number:  # a topic has none
            self.contents.lists.setdefault(number, {})
            self.contents.last_pending_list = max(self.contents.last_pending_list, number)

    def _acknowledge(self, operation: Acknowledge) -> None:
        contents = self.contents
        count = len(operation.sequences)
        times = operation.delivered_at or (0,) * count
        counts = operation.delivery_counts or (1,) * count
        for sequence, delivered_at, delivery_count in zip(
            operation.sequences, times, counts, strict=True
        ):
            stored = contents.lists[operation.pending_list].pop(sequence)
            if not self._context.keep_acknowledged:
                continue
            contents.log_last += 1
            contents.log.append(
                AcknowledgedMessage(
                    ack_sequence=contents.log_last,
                    sequence=sequence,
                    message=stored.message,
                    pending_list=operation.pending_list,
                    delivered_at=delivered_at,
                    acked_at=operation.acked_at,
                    client_id=operation.client_id,
                    subscription=operation.subscription,
                    protocol=operation.protocol,
                    principal=operation.principal,
                    delivery_count=delivery_count,
                    outcome=operation.outcome,
                    reason=operation.reason,
                )
            )

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """Read pending messages of one list. Raises: StoreClosedError."""
        self._check_open()
        messages = self.contents.lists.get(pending_list, {}).values()
        behind = [stored for stored in messages if stored.sequence > after]
        return _page(behind, limit, bytes_max)

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """Read the acknowledged log. Raises: RequestError, StoreClosedError."""
        self._check_open()
        contents = self.contents
        if after < contents.log_released:
            raise RequestError(
                f"acknowledged rows behind {after} were released up to {contents.log_released}"
            )
        rows = [row for row in contents.log if after < row.ack_sequence <= contents.log_synced]
        return AcknowledgedPage(_page(rows, limit, bytes_max), contents.log_synced)

    async def release_acknowledged(self, through: int) -> None:
        """Forget rows up to *through*. Raises: StoreClosedError."""
        self._check_open()
        contents = self.contents
        contents.log_released = max(contents.log_released, min(through, contents.log_synced))
        contents.log = [row for row in contents.log if row.ack_sequence > contents.log_released]

    def log_statistics(self) -> LogStatistics:
        """Recounts everything."""
        contents = self.contents
        bodies = {row.sequence: len(row.message.body) for row in contents.log}
        return LogStatistics(
            first=contents.log_released + 1,
            last=contents.log_last,
            held_bytes=sum(bodies[sequence] for sequence in bodies.keys() - self._pending()),
            oldest_at=contents.log[0].acked_at if contents.log else 0,
        )

    def _pending(self) -> set[int]:
        return {sequence for messages in self.contents.lists.values() for sequence in messages}

    def statistics(self) -> StoreStatistics:
        """Recounts everything."""
        return StoreStatistics(
            pending_messages=len(self._pending()),
            disk_bytes=0,
            writable=self._is_open and self._read_only is None,
        )

    async def close(self) -> None:
        """Release the contents. Idempotent."""
        if self._is_open:
            self._is_open = False
            self.contents.log_synced = self.contents.log_last
            self.contents.owner = None

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the store is not open")


def _page(rows: Iterable[_RowT], limit: int, bytes_max: int) -> list[_RowT]:
    page: list[_RowT] = []
    size = 0
    for row in rows:
        size += len(row.message.body)
        if len(page) == limit or (page and size > bytes_max):
            break
        page.append(row)
    return page


@dataclass(frozen=True, slots=True)
class MemoryStoreOptions:
    """The reference has no options."""


class MemoryStoreFactory:
    """Makes reference stores. Stores made with the same data directory share their contents."""

    def __init__(self) -> None:
        self._contents: dict[Path, MemoryContents] = {}

    @property
    def options_type(self) -> type:
        """An empty table."""
        return MemoryStoreOptions

    def create(self, context: StoreContext, options: object) -> MessageStore:
        """Build a store on the contents of ``context.data_directory``."""
        contents = self._contents.setdefault(context.data_directory, MemoryContents())
        return MemoryStore(context, contents)
