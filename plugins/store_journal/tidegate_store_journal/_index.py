"""The live index: what is pending where, what the acknowledged log holds, and the small state.

It is changed only by :meth:`Index.apply`, with the effects of one whole batch: after the batch was
written (on the event loop) or when it is replayed (in open). Not thread-safe. What changed since
the last checkpoint is known at any time and handed out by :meth:`Index.take_changes`; a message
that was added and acknowledged between two checkpoints is in none of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    ClearRetained,
    Discard,
    InflightDirection,
    InflightRecord,
    Message,
    Move,
    Operation,
    PendingCount,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_journal._acklog import AckBlock, AckLog
from tidegate_store_journal._format import FILE_SHIFT, MASK_32, SHARED_BIT
from tidegate_store_journal._pending import SEAL_ENTRIES, PendingList

InflightKey = tuple[InflightDirection, int]
#: A message with several references: how many lists hold it, and how many references (lists and
#: rows of the acknowledged log) keep its bytes, in the upper half.
_HELD_SHIFT: Final = 32


class Effects:
    """What one batch does to the index; made by the encoder and by replay.

    Attributes:
        file_id: the data file the batch is in.
        adds: per list, sequence → location, in sequence order.
        shared: (sequence, number of lists) of messages with more than one list.
        others: everything but added messages, in order.
        ack_firsts: first ack sequence of each Acknowledge in *others*; 0 without a log.
        messages: messages added (moves included); references: their references.
        message_bytes: bytes of their records.
        batch, last_sequence, last_ack, last_list: counters after this batch.
    """

    __slots__ = (
        "ack_firsts",
        "adds",
        "batch",
        "file_id",
        "last_ack",
        "last_list",
        "last_sequence",
        "message_bytes",
        "messages",
        "others",
        "references",
        "shared",
    )

    def __init__(self, file_id: int) -> None:
        self.file_id = file_id
        self.adds: dict[int, dict[int, int]] = {}
        self.shared: list[tuple[int, int]] = []
        self.others: list[Operation] = []
        self.ack_firsts: list[int] = []
        self.messages = 0
        self.references = 0
        self.message_bytes = 0
        self.batch = 0
        self.last_sequence = 0
        self.last_ack = 0
        self.last_list = 0


class FileUse:
    """What the index knows of one data file.

    Attributes:
        references: how many references (list entries, acknowledged rows) to messages in it exist.
        live_bytes: bytes of the records of those messages, each counted once.
        sequence_first, sequence_last: every live message in it is between them.
        speaks_of: files with messages that acknowledgements (discards, moves) in this file are
            about: before this file goes, what lives in those is written down.
    """

    __slots__ = (
        "live_bytes",
        "references",
        "sequence_first",
        "sequence_last",
        "speaks_of",
        "speaks_of_stored",
    )

    def __init__(self) -> None:
        self.sequence_first = 0
        self.sequence_last = 0
        self.references = 0
        self.live_bytes = 0
        self.speaks_of: set[int] = set()
        self.speaks_of_stored = 0  # size of speaks_of at the last checkpoint


@dataclass(slots=True)
class Changes:
    """Everything a checkpoint writes: the difference to the checkpoint before.

    Attributes:
        added: list and arrays of :meth:`PendingList.since`; a list may come several times.
        removed: per list, sequences that the metadata store has and must forget.
        dropped_lists: lists to forget as a whole.
        deliveries: delivery count by (list, sequence); 0 forgets it.
        destinations … retained: new value by key, None when it is gone.
        acknowledged: blocks to put; acknowledged_gone: first rows of blocks to delete.
        speaks_of: FileUse.speaks_of of files where it changed.
        last_sequence … ack_released: counters.
    """

    added: list[tuple[int, array[int], array[int]]]
    removed: dict[int, list[int]]
    dropped_lists: list[int]
    deliveries: dict[tuple[int, int], int]
    destinations: dict[str, int | None]
    subscriptions: dict[int, Subscription | None]
    sessions: dict[str, Session | None]
    inflight: dict[tuple[str, InflightKey], InflightRecord | None]
    retained: dict[str, Message | None]
    acknowledged: list[AckBlock]
    acknowledged_gone: list[int]
    speaks_of: dict[int, list[int]]
    batch: int
    last_sequence: int
    last_list: int
    ack_last: int
    ack_released: int

    @property
    def small_state_changed(self) -> bool:
        """The bindings snapshot is out of date."""
        return bool(
            self.destinations
            or self.subscriptions
            or self.sessions
            or self.inflight
            or self.retained
        )


@dataclass(slots=True)
class _Dirty:
    """Keys changed since the last checkpoint."""

    removed: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    dropped_lists: list[int] = field(default_factory=list[int])
    deliveries: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    destinations: set[str] = field(default_factory=set[str])
    subscriptions: set[int] = field(default_factory=set[int])
    sessions: set[str] = field(default_factory=set[str])
    inflight: set[tuple[str, InflightKey]] = field(default_factory=set[tuple[str, InflightKey]])
    retained: set[str] = field(default_factory=set[str])


class Index:
    """See the module."""

    def __init__(self, *, keep_acknowledged: bool) -> None:
        self.keep_acknowledged = keep_acknowledged
        self.lists: dict[int, PendingList] = {}
        self.files: dict[int, FileUse] = {}
        self.log = AckLog()
        self.destinations: dict[str, int] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.sessions: dict[str, Session] = {}
        self.inflight: dict[str, dict[InflightKey, InflightRecord]] = {}
        self.retained: dict[str, Message] = {}
        self.batch = 0
        self.last_sequence = 0
        self.last_list = 0
        self.pending_messages = 0
        self.acknowledged_bytes = 0
        self.watermark = 0  # entries up to this sequence were in the last checkpoint
        self._shared: dict[int, int] = {}
        self._dirty = _Dirty()
        self._file_id = 0  # of the batch that is being applied
        #: While replaying without metadata: blocks by first row, because rows come with gaps.
        self.loose_blocks: list[AckBlock] | None = None
        self._apply_one: dict[type, Callable[[Any], None]] = {
            Discard: self._discard,
            Move: self._move,
            RecordDelivery: self._record_delivery,
            AddDestination: self._add_destination,
            RemoveDestination: self._remove_destination,
            PutSubscription: self._put_subscription,
            RemoveSubscription: self._remove_subscription,
            SetRetained: self._set_retained,
            ClearRetained: self._clear_retained,
            PutSession: self._put_session,
            RemoveSession: self._remove_session,
            PutInflight: self._put_inflight,
            RemoveInflight: self._remove_inflight,
        }

    # ------------------------------------------------------------------------------- batches

    def apply(self, effects: Effects) -> None:
        """Apply a whole batch."""
        self._file_id = effects.file_id
        if effects.adds:
            lists = self.lists
            for list_id, entries in effects.adds.items():
                pending = lists.get(list_id)
                if pending is None:
                    pending = lists[list_id] = PendingList()
                if pending.fresh:
                    pending.fresh.update(entries)
                    if len(pending.fresh) > SEAL_ENTRIES:
                        pending.seal()
                else:
                    pending.fresh = entries
            for sequence, count in effects.shared:
                self._shared[sequence] = count << _HELD_SHIFT | count
            use = self.file_use(effects.file_id)
            use.references += effects.references
            use.live_bytes += effects.message_bytes
            if not use.sequence_first:
                use.sequence_first = min([next(iter(new)) for new in effects.adds.values()])
            use.sequence_last = effects.last_sequence
            self.pending_messages += effects.messages
        if effects.others:
            number = 0
            for operation in effects.others:
                if type(operation) is Acknowledge:
                    self._acknowledge(operation, effects.ack_firsts[number])
                    number += 1
                else:
                    self._apply_one[type(operation)](operation)
        self.batch = effects.batch
        self.last_sequence = effects.last_sequence
        self.last_list = effects.last_list
        # The log's own counter moves with its blocks; this covers rows that were never kept.
        self.log.last = max(self.log.last, effects.last_ack)

    def file_use(self, file_id: int) -> FileUse:
        """The entry of a data file, made when missing."""
        use = self.files.get(file_id)
        if use is None:
            use = self.files[file_id] = FileUse()
        return use

    def list_of(self, list_id: int) -> PendingList:
        """The list, made when missing."""
        pending = self.lists.get(list_id)
        if pending is None:
            pending = self.lists[list_id] = PendingList()
        return pending

    def restore_small_state(
        self,
        destinations: Mapping[str, int],
        subscriptions: Iterable[Subscription],
        sessions: Iterable[Session],
        inflight: Iterable[InflightRecord],
        retained: Iterable[Message],
    ) -> None:
        """Put back what a checkpoint or the bindings snapshot holds (at start)."""
        self.destinations.update(destinations)
        for subscription in subscriptions:
            self.subscriptions[subscription.pending_list] = subscription
        for session in sessions:
            self.sessions[session.client_id] = session
        for record in inflight:
            key = (record.direction, record.packet_id)
            self.inflight.setdefault(record.client_id, {})[key] = record
        for message in retained:
            self.retained[message.destination] = message

    def recount(self, blocks: Sequence[AckBlock], last: int, released: int) -> int:
        """Count references anew from what is in the lists and in *blocks* (at start).

        Returns: rows of the log that are missing, see :meth:`AckLog.restore`.
        """
        for use in self.files.values():
            use.references = use.live_bytes = use.sequence_first = use.sequence_last = 0
        shared: dict[int, int] = {}
        places: dict[int, int] = {}
        self.pending_messages = self.acknowledged_bytes = 0
        for pending in self.lists.values():
            for sequence, location in pending.entries():
                use = self.file_use(location >> FILE_SHIFT)
                use.references += 1
                use.sequence_first = min(use.sequence_first or sequence, sequence)
                use.sequence_last = max(use.sequence_last, sequence)
                if location & SHARED_BIT:
                    shared[sequence] = shared.get(sequence, 0) + (1 << _HELD_SHIFT | 1)
                    places[sequence] = location
                else:
                    use.live_bytes += location >> 32 & MASK_32
                    self.pending_messages += 1
        missing = self.log.restore(blocks, last, released)
        for block in self.log.blocks():
            begin = max(0, self.log.released + 1 - block.first)
            rows = zip(block.sequences[begin:], block.locations[begin:], strict=True)
            for sequence, location in rows:
                use = self.file_use(location >> FILE_SHIFT)
                use.references += 1
                if location & SHARED_BIT:
                    shared[sequence] = shared.get(sequence, 0) + (1 << _HELD_SHIFT)
                    places[sequence] = location
                else:
                    use.live_bytes += location >> 32 & MASK_32
                    self.acknowledged_bytes += location & MASK_32
        for sequence, counts in shared.items():
            location = places[sequence]
            self.files[location >> FILE_SHIFT].live_bytes += location >> 32 & MASK_32
            if counts & MASK_32:
                self.pending_messages += 1
            else:
                self.acknowledged_bytes += location & MASK_32
        self._shared = shared
        return missing

    # --------------------------------------------------------------------- leaving a list

    def _take(self, list_id: int, sequences: Sequence[int]) -> tuple[Sequence[int], list[int]]:
        """Remove entries; those that are not there are left out of the answer."""
        pending = self.lists.get(list_id)
        if pending is None:
            return (), []
        pop = pending.fresh.pop
        found: list[int | None] = [pop(sequence, None) for sequence in sequences]
        if None in found:
            for index, sequence in enumerate(sequences):
                if found[index] is None:
                    value = found[index] = pending.pop_sealed(sequence)
                    if value is not None and sequence <= self.watermark:
                        removed = self._dirty.removed
                        removed.setdefault(list_id, []).append(sequence)
            if None in found:
                pairs = zip(sequences, found, strict=True)
                sequences = [sequence for sequence, value in pairs if value is not None]
        if pending.deliveries:
            self._forget_deliveries(list_id, pending, sequences)
        return sequences, [value for value in found if value is not None]

    def _forget_deliveries(
        self, list_id: int, pending: PendingList, sequences: Iterable[int]
    ) -> None:
        dirty = self._dirty.deliveries
        for sequence in sequences:
            if pending.deliveries.pop(sequence, 0):
                if sequence <= self.watermark:
                    dirty[list_id, sequence] = 0
                else:
                    dirty.pop((list_id, sequence), None)

    def _leave_lists(self, sequences: Sequence[int], locations: list[int]) -> None:
        """References ended without reaching the log."""
        self._note_speaks_of(locations)
        if self._shared:
            sequences, locations = self._leave_shared(sequences, locations, held=1, pending=1)
        self.pending_messages -= len(sequences)
        self._free(locations)

    def _leave_shared(
        self, sequences: Sequence[int], locations: Sequence[int], *, held: int, pending: int
    ) -> tuple[list[int], list[int]]:
        """Count down messages with several references; returns the others, for the caller."""
        shared = self._shared
        single: tuple[list[int], list[int]] = ([], [])
        for sequence, location in zip(sequences, locations, strict=True):
            before = shared.get(sequence)
            if before is None:
                single[0].append(sequence)
                single[1].append(location)
                continue
            after = before - (held << _HELD_SHIFT | pending)
            use = self.files[location >> FILE_SHIFT]
            use.references -= held
            lists_left = after & MASK_32
            if pending and lists_left == 0:
                self.pending_messages -= 1
            # Bytes that only the log holds: no list does, but a row still does.
            was_log_only = before & MASK_32 == 0
            is_log_only = lists_left == 0 and after > 0
            self.acknowledged_bytes += (is_log_only - was_log_only) * (location & MASK_32)
            if after == 0:
                use.live_bytes -= location >> 32 & MASK_32
                del shared[sequence]
            else:
                shared[sequence] = after
        return single

    def _free(self, locations: Sequence[int]) -> None:
        """References to messages in these places are gone; each message had only this one."""
        if not locations:
            return
        files = self.files
        first = min(locations) >> FILE_SHIFT
        if first == max(locations) >> FILE_SHIFT:
            # All in one file, so the sums of bodies and of records are below the file's length
            # and cannot carry into each other: one sum in C gives both.
            use = files[first]
            use.references -= len(locations)
            use.live_bytes -= sum(locations) >> 32 & MASK_32
            return
        for location in locations:
            use = files[location >> FILE_SHIFT]
            use.references -= 1
            use.live_bytes -= location >> 32 & MASK_32

    def _note_speaks_of(self, locations: Sequence[int]) -> None:
        if not locations:
            return
        first = min(locations) >> FILE_SHIFT
        last = max(locations) >> FILE_SHIFT
        own = self._file_id
        if first == last:
            if first != own:
                self.file_use(own).speaks_of.add(first)
            return
        spoken = {location >> FILE_SHIFT for location in locations}
        spoken.discard(own)
        self.file_use(own).speaks_of |= spoken

    # ------------------------------------------------------------------------- operations

    def _acknowledge(self, operation: Acknowledge, ack_first: int) -> None:
        sequences, locations = self._take(operation.pending_list, operation.sequences)
        if not (ack_first and self.keep_acknowledged):
            self._leave_lists(sequences, locations)
            if ack_first:
                self.log.last = ack_first + len(operation.sequences) - 1
                self.log.released = self.log.last
            return
        self._note_speaks_of(locations)
        block = AckBlock(
            ack_first,
            operation.pending_list,
            operation.acked_at,
            operation.client_id,
            operation.subscription,
            operation.protocol,
            operation.sequences,
            locations,
            operation.delivered_at,
        )
        if self.loose_blocks is not None:
            self._keep_loose(block, sequences, locations, operation)
            return
        self.log.append(block)
        if self._shared:
            sequences, locations = self._leave_shared(sequences, locations, held=0, pending=1)
        self.pending_messages -= len(sequences)
        self.acknowledged_bytes += sum([location & MASK_32 for location in locations])

    def _keep_loose(
        self,
        block: AckBlock,
        sequences: Sequence[int],
        locations: Sequence[int],
        operation: Acknowledge,
    ) -> None:
        """Replay without metadata: keep the rows whose message is still known, accounted later."""
        assert self.loose_blocks is not None
        if len(sequences) == block.count:
            self.loose_blocks.append(block)
            return
        known = dict(zip(sequences, locations, strict=True))
        delivered_at = block.delivered_at
        for index, sequence in enumerate(operation.sequences):
            location = known.get(sequence)
            if location is not None:
                self.loose_blocks.append(
                    AckBlock(
                        block.first + index,
                        block.pending_list,
                        block.acked_at,
                        block.client_id,
                        block.subscription,
                        block.protocol,
                        (sequence,),
                        (location,),
                        (delivered_at[index],),
                    )
                )

    def release(self, through: int) -> None:
        """Forget rows of the acknowledged log."""
        for sequences, locations in self.log.release(through):
            if self._shared:
                sequences, locations = self._leave_shared(sequences, locations, held=1, pending=0)
            self.acknowledged_bytes -= sum([location & MASK_32 for location in locations])
            self._free(locations)

    def _discard(self, operation: Discard) -> None:
        self._leave_lists(*self._take(operation.pending_list, operation.sequences))

    def _move(self, operation: Move) -> None:
        self._leave_lists(*self._take(operation.pending_list, (operation.sequence,)))

    def _record_delivery(self, operation: RecordDelivery) -> None:
        pending = self.lists.get(operation.pending_list)
        if pending is None:
            return
        for sequence, count in zip(operation.sequences, operation.delivery_count, strict=True):
            if sequence in pending:
                pending.deliveries[sequence] = count
                self._dirty.deliveries[operation.pending_list, sequence] = count

    def _add_destination(self, operation: AddDestination) -> None:
        self.destinations[operation.destination] = operation.pending_list
        self._dirty.destinations.add(operation.destination)

    def _remove_destination(self, operation: RemoveDestination) -> None:
        if self.destinations.pop(operation.destination, None) is not None:
            self._dirty.destinations.add(operation.destination)
        self.drop_list(operation.pending_list)

    def _put_subscription(self, operation: PutSubscription) -> None:
        subscription = operation.subscription
        self.subscriptions[subscription.pending_list] = subscription
        self._dirty.subscriptions.add(subscription.pending_list)

    def _remove_subscription(self, operation: RemoveSubscription) -> None:
        if self.subscriptions.pop(operation.pending_list, None) is not None:
            self._dirty.subscriptions.add(operation.pending_list)
        self.drop_list(operation.pending_list)

    def drop_list(self, list_id: int) -> None:
        """Forget a list and everything pending in it. No error when there is none."""
        pending = self.lists.pop(list_id, None)
        if pending is None:
            return
        sequences: list[int] = []
        locations: list[int] = []
        for sequence, location in pending.entries():
            sequences.append(sequence)
            locations.append(location)
        self._leave_lists(sequences, locations)
        for sequence in pending.deliveries:
            self._dirty.deliveries.pop((list_id, sequence), None)
        self._dirty.removed.pop(list_id, None)
        self._dirty.dropped_lists.append(list_id)

    def _set_retained(self, operation: SetRetained) -> None:
        self.retained[operation.message.destination] = operation.message
        self._dirty.retained.add(operation.message.destination)

    def _clear_retained(self, operation: ClearRetained) -> None:
        if self.retained.pop(operation.destination, None) is not None:
            self._dirty.retained.add(operation.destination)

    def _put_session(self, operation: PutSession) -> None:
        self.sessions[operation.session.client_id] = operation.session
        self._dirty.sessions.add(operation.session.client_id)

    def _remove_session(self, operation: RemoveSession) -> None:
        client_id = operation.client_id
        if self.sessions.pop(client_id, None) is not None:
            self._dirty.sessions.add(client_id)
        for key in self.inflight.pop(client_id, ()):
            self._dirty.inflight.add((client_id, key))

    def _put_inflight(self, operation: PutInflight) -> None:
        record = operation.record
        key = (record.direction, record.packet_id)
        records = self.inflight.get(record.client_id)
        if records is None:
            records = self.inflight[record.client_id] = {}
        records[key] = record
        self._dirty.inflight.add((record.client_id, key))

    def _remove_inflight(self, operation: RemoveInflight) -> None:
        records = self.inflight.get(operation.client_id)
        key = (operation.direction, operation.packet_id)
        if records is not None and records.pop(key, None) is not None:
            self._dirty.inflight.add((operation.client_id, key))
            if not records:
                del self.inflight[operation.client_id]

    # ------------------------------------------------------------------------- checkpoints

    def take_changes(self) -> Changes:
        """What changed since the last call; the caller must get it into the metadata store."""
        added: list[tuple[int, array[int], array[int]]] = []
        for list_id, pending in self.lists.items():
            if pending.fresh:
                pending.seal()
            if pending.last_sealed > self.watermark:
                added += [(list_id, *arrays) for arrays in pending.since(self.watermark)]
        self.watermark = self.last_sequence
        dirty, self._dirty = self._dirty, _Dirty()
        put, gone = self.log.take_unstored()
        speaks_of: dict[int, list[int]] = {}
        for file_id, use in self.files.items():
            if len(use.speaks_of) != use.speaks_of_stored:
                use.speaks_of_stored = len(use.speaks_of)
                speaks_of[file_id] = sorted(use.speaks_of)
        return Changes(
            added=added,
            removed=dirty.removed,
            dropped_lists=dirty.dropped_lists,
            deliveries=dirty.deliveries,
            destinations={key: self.destinations.get(key) for key in dirty.destinations},
            subscriptions={key: self.subscriptions.get(key) for key in dirty.subscriptions},
            sessions={key: self.sessions.get(key) for key in dirty.sessions},
            inflight={
                key: self.inflight.get(key[0], _NO_INFLIGHT).get(key[1]) for key in dirty.inflight
            },
            retained={key: self.retained.get(key) for key in dirty.retained},
            acknowledged=put,
            acknowledged_gone=gone,
            speaks_of=speaks_of,
            batch=self.batch,
            last_sequence=self.last_sequence,
            last_list=self.last_list,
            ack_last=self.log.last,
            ack_released=self.log.released,
        )

    def counts(self) -> dict[int, PendingCount]:
        """Messages and bytes of bodies of every list that has any."""
        return {
            list_id: PendingCount(len(pending), pending.body_bytes())
            for list_id, pending in self.lists.items()
            if len(pending)
        }

    def living_in(self, file_id: int) -> list[tuple[int, list[int]]]:
        """Per list, the pending messages whose bytes are in the file."""
        use = self.file_use(file_id)
        result: list[tuple[int, list[int]]] = []
        for list_id, pending in self.lists.items():
            found = [
                sequence
                for sequence, location in pending.entries(use.sequence_first, use.sequence_last)
                if location >> FILE_SHIFT == file_id
            ]
            if found:
                result.append((list_id, found))
        return result

    def mark_everything_changed(self) -> None:
        """The metadata store is empty: the next changes are all there is."""
        self.watermark = 0
        dirty = self._dirty = _Dirty()
        dirty.destinations.update(self.destinations)
        dirty.subscriptions.update(self.subscriptions)
        dirty.sessions.update(self.sessions)
        dirty.retained.update(self.retained)
        for client_id, records in self.inflight.items():
            dirty.inflight.update((client_id, key) for key in records)
        for list_id, pending in self.lists.items():
            for sequence, count in pending.deliveries.items():
                dirty.deliveries[list_id, sequence] = count
        for use in self.files.values():
            use.speaks_of_stored = 0

    def inflight_records(self) -> Iterator[InflightRecord]:
        """All of them."""
        for records in self.inflight.values():
            yield from records.values()


_NO_INFLIGHT: Final[Mapping[InflightKey, InflightRecord]] = {}
