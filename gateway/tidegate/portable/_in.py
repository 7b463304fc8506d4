"""Import: the batches that make an empty store hold what an export holds.

Sequences, list ids and delivery counts stay the same. The store's identity does not: it is another
store, so a sink begins a new epoch, and the rows of the acknowledged log are renumbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate.portable import _large, _tables
from tidegate.portable._columns import decode_row
from tidegate.portable._manifest import Manifest, TableFacts, check_table, read_manifest
from tidegate.portable._tables import SCHEMAS, read_table, table_path
from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    ConfigError,
    DuplicateId,
    Durability,
    InflightRecord,
    Message,
    MessageStore,
    Operation,
    Outcome,
    Progress,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RecoveredDestination,
    RecoveredState,
    RemoveDestination,
    Session,
    SetRetained,
    StoreIOError,
    Subscription,
    SyncedFor,
    WriteBatch,
)

#: A queue that exists during an import: finding it means that one was not finished.
UNFINISHED: Final = "queue://$tidegate.import.unfinished"
_GONE: Final = "queue://$tidegate.import.gone"
BATCH_OPERATIONS: Final = 1000
BATCH_BYTES: Final = 4 << 20
#: One in this many batches is made durable, so that no store gathers too much.
_SYNC_EVERY: Final = 16
#: A store may be configured to sync less for one of the two; here SYNCED always means synced.
_ANYBODY: Final = SyncedFor.SINGLE | SyncedFor.TRANSACTION


def read_source(source: Path) -> Manifest:
    """The manifest, after checking that every file is there and whole.

    Raises: ConfigError; StoreIOError for a damaged file.
    """
    manifest = read_manifest(source)
    unknown = sorted(set(manifest.tables) - set(SCHEMAS))
    if unknown:
        raise ConfigError(
            f"{source} has tables that this version does not know and would lose: "
            f"{', '.join(unknown)}; import it with a newer tidegate"
        )
    missing = [table for table in manifest.tables if not table_path(source, table).is_file()]
    if missing:
        raise ConfigError(
            f"{source} is incomplete: {', '.join(missing)} (.parquet) missing; copy all of it"
        )
    for table, facts in manifest.tables.items():
        check_table(table_path(source, table), facts)
    return manifest


async def carry_in(
    store: MessageStore, state: RecoveredState, source: Path, progress: Progress
) -> Mapping[str, int]:
    """See :func:`tidegate.portable.carry_in`."""
    manifest = read_source(source)
    await _require_empty(store, state)
    return await _Import(store, manifest, source, progress).run()


async def _require_empty(store: MessageStore, state: RecoveredState) -> None:
    known = {item.destination for item in state.destinations}
    if UNFINISHED in known:
        raise ConfigError(
            "the store holds part of an unfinished import; delete its contents (the "
            "directory, or the tables) and import again"
        )
    branches, log = store.capabilities.branches, store.capabilities.acknowledged_log
    held = {
        "destinations": len(known),
        "subscriptions": len(state.subscriptions),
        "sessions": len(state.sessions),
        "packet ids": len(state.inflight),
        "branches": 0 if branches is None else len(await branches.recovered_branches()),
        "retained messages": len(state.retained),
        "messages": sum(count.messages for count in state.pending.values()),
        "acknowledged rows": 0 if log is None else log.log_statistics().last,
    }
    found = ", ".join(f"{count} {what}" for what, count in held.items() if count)
    if found or state.last_sequence or state.last_pending_list:
        raise ConfigError(
            f"the store is not empty ({found or 'it has been used before'}); an import "
            "needs an empty one: name another directory or database, or delete the old "
            "contents"
        )


class _Import:
    def __init__(
        self, store: MessageStore, manifest: Manifest, source: Path, progress: Progress
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._source = source
        self._progress = progress
        self._operations: list[Operation] = []
        self._bytes = 0
        self._batches = 0
        self._counts: dict[str, int] = {}
        self._lists: set[int] = set()
        self._gone: set[int] = set()
        self._marker = manifest.last_pending_list + 1
        self._has_log = store.capabilities.acknowledged_log is not None

    async def run(self) -> Mapping[str, int]:
        manifest = self._manifest
        capabilities = self._store.capabilities
        if self._expected(_tables.BRANCHES) and capabilities.branches is None:
            raise ConfigError(
                f"the export has {self._expected(_tables.BRANCHES)} branches of "
                "distributed transactions, and this store cannot hold them: complete "
                "them before you export"
            )
        await self._put(AddDestination(UNFINISHED, self._marker))
        await self._flush(Durability.SYNCED)
        for item in self._values(_tables.DESTINATIONS, RecoveredDestination):
            self._lists.add(item.pending_list)
            await self._put(AddDestination(*msgspec.structs.astuple(item)))
        for item in self._values(_tables.SUBSCRIPTIONS, Subscription):
            self._lists.add(item.pending_list)
            await self._put(PutSubscription(item))
        for item in self._values(_tables.BRANCHES, Branch):
            self._lists.add(item.pending_list)
            await self._put(PutBranch(item))
        for item in self._values(_tables.SESSIONS, Session):
            await self._put(PutSession(item))
        for item in self._values(_tables.RETAINED, Message):
            await self._put(SetRetained(item), len(item.body))
        last, pending, references = await self._messages()
        await self._acknowledge()
        for item in self._values(_tables.INFLIGHT, InflightRecord):
            await self._put(PutInflight(item))
        for item in self._values(_tables.DUPLICATE_IDS, DuplicateId):
            if capabilities.duplicate_ids is not None:
                operation = AddDuplicateId(item.destination, item.duplicate_id, item.sequence)
                await self._put(operation)
        if capabilities.duplicate_ids is None:
            self._counts[_tables.DUPLICATE_IDS] = (
                0  # such a store forgets them when its gateway ends
            )
        if manifest.last_sequence > last:  # the highest used is never used again
            message = Message(UNFINISHED, b"")
            await self._put(AddMessage(manifest.last_sequence, message, (self._marker,)))
        for number in sorted(self._gone):
            await self._put(RemoveDestination(f"{_GONE}.{number}", number))
        await self._put(RemoveDestination(UNFINISHED, self._marker))
        await self._flush(Durability.SYNCED)
        held = self._store.statistics().pending_messages
        if held != pending:
            raise StoreIOError(f"the store holds {held} of {pending} messages after the import")
        counts = {table: self._counts[table] for table in SCHEMAS if table in self._counts}
        return counts | {"pending_references": references}

    async def _messages(self) -> tuple[int, int, int]:
        """Returns: the last sequence, messages with a pending list, references."""
        total = self._expected(_tables.MESSAGES)
        last = pending = references = number = 0
        for number, row in enumerate(self._rows(_tables.MESSAGES), 1):
            sequence: int = row["sequence"]
            if sequence <= last:
                raise self._wrong(_tables.MESSAGES, f"sequence {sequence} comes after {last}")
            last = sequence
            lists = [one["pending_list"] for one in row["pending"] or ()]
            logged = [one for one in row["acknowledged"] or () if self._has_log]
            pending += bool(lists)
            references += len(lists)
            for one in {*lists, *logged} - self._lists:
                await self._put(AddDestination(f"{_GONE}.{one}", one))
                self._lists.add(one)
                if one not in lists:
                    self._gone.add(one)
            if lists or logged:
                message = self._decode(_tables.MESSAGES, Message, row)
                if _large.handle_of(message) is not None:
                    path = _large.body_path(self._source, sequence)
                    message = await _large.load(_large.place_of(self._store), message, path)
                await self._put(AddMessage(sequence, message, (*lists, *logged)), len(message.body))
            for one in row["pending"] or ():
                if one["delivery_count"]:
                    await self._put(
                        RecordDelivery(one["pending_list"], (sequence,), (one["delivery_count"],))
                    )
            if number % BATCH_OPERATIONS == 0:
                self._progress("messages", number, total)
        self._progress("messages", number, total)
        return last, pending, references

    async def _acknowledge(self) -> None:
        """The log in its order; consecutive rows of one consumer at one time become one operation."""
        group: list[dict[str, Any]] = []
        for row in self._rows(_tables.ACKNOWLEDGED):
            if group and (len(group) == BATCH_OPERATIONS or _who(row) != _who(group[0])):
                await self._put(_acknowledged(group))
                group = []
            if self._has_log:
                group.append(row)
        if group:
            await self._put(_acknowledged(group))
        if not self._has_log:
            self._counts[_tables.ACKNOWLEDGED] = 0  # the store keeps none

    # --------------------------------------------------------------------------- reading

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        count = 0
        if table in self._manifest.tables:
            for row in read_table(table_path(self._source, table), SCHEMAS[table]):
                count += 1
                yield row
        expected = self._expected(table)
        if count != expected:
            raise self._wrong(table, f"it has {count} rows, but the manifest says {expected}")
        self._counts[table] = count

    def _expected(self, table: str) -> int:
        return self._manifest.tables.get(table, TableFacts(0)).rows

    def _values(self, table: str, kind: type) -> Iterator[Any]:
        for row in self._rows(table):
            yield self._decode(table, kind, row)

    def _decode(self, table: str, kind: type, row: Mapping[str, Any]) -> Any:
        try:
            return decode_row(kind, row)
        except ValueError as error:
            raise self._wrong(table, str(error)) from error

    def _wrong(self, table: str, problem: str) -> StoreIOError:
        return StoreIOError(f"{table_path(self._source, table)}: the export is damaged: {problem}")

    # --------------------------------------------------------------------------- writing

    async def _put(self, operation: Operation, size: int = 0) -> None:
        self._operations.append(operation)
        self._bytes += size
        if len(self._operations) >= BATCH_OPERATIONS or self._bytes >= BATCH_BYTES:
            self._batches += 1
            synced = self._batches % _SYNC_EVERY == 0
            await self._flush(Durability.SYNCED if synced else Durability.WRITTEN)

    async def _flush(self, durability: Durability) -> None:
        operations, self._operations, self._bytes = self._operations, [], 0
        await self._store.write(WriteBatch(operations, durability, _ANYBODY))


#: What the rows of one operation have in common.
_ALIKE: Final = (
    "pending_list",
    "acked_at",
    "client_id",
    "subscription",
    "protocol",
    "principal",
    "outcome",
    "reason",
)


def _who(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in _ALIKE)


def _acknowledged(rows: list[dict[str, Any]]) -> Acknowledge:
    first = rows[0]
    counts = tuple(row["delivery_count"] for row in rows)
    return Acknowledge(
        first["pending_list"],
        tuple(row["sequence"] for row in rows),
        tuple(row["delivered_at"] for row in rows),
        first["acked_at"],
        first["client_id"],
        first["subscription"],
        first["protocol"],
        first["principal"],
        counts if any(count != 1 for count in counts) else (),
        Outcome.of(first["outcome"]),
        first["reason"],
    )
