"""The live index: what is pending where, what the acknowledged log holds, and the small state.

Only :meth:`Index.apply_in_steps` changes it, with the effects of one whole batch: after the batch was written (on
the event loop, a large one in slices) or when it is replayed (in open). Not thread-safe. What changed since the last
checkpoint is known at any time and handed out by :meth:`Index.take_changes`; that leaves out messages that were
added and acknowledged between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from tidegate.spi import Acknowledge, Discard, PendingCount, RecordDelivery
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.changes import (
    ACKNOWLEDGED,
    DELIVERIES,
    FILES,
    LARGE,
    PENDING,
    TABLES,
    Changes,
    Numbers,
    Rows,
)
from tidegate_store_journal.index.effects import LIST_ENTRIES, STEP_ENTRIES, Effects
from tidegate_store_journal.index.pending import PIECE_ENTRIES, SEAL_ENTRIES, PendingList
from tidegate_store_journal.index.references import HELD_SHIFT, References, held_bytes, record_bytes
from tidegate_store_journal.index.smallstate import SmallState
from tidegate_store_journal.log.format import FILE_SHIFT

_NEVER: Final = 1 << 62

#: Cost of an operation besides its sequences, in list entries.
OPERATION_ENTRIES: Final = 32


class Index(References, SmallState):
    """See the module."""

    def __init__(self, *, keep_acknowledged: bool) -> None:
        References.__init__(self)
        SmallState.__init__(self, self.drop_list)
        self.keep_acknowledged = keep_acknowledged
        self.batch = 0
        self.last_sequence = 0
        self.last_list = 0
        self.watermark = 0  # entries up to this sequence were in the last checkpoint
        #: While replaying without metadata: blocks by first row, because rows come with gaps.
        self.loose_blocks: list[AckBlock] | None = None
        #: While replaying without metadata: per list, copied messages whose original is gone. They
        #: come out of order, so they are put into the list at the end.
        self._loose: dict[int, dict[int, int]] = {}
        #: Dropped lists, and the data file that says so: what they held is given up in parts.
        self._dropped: list[tuple[PendingList, int]] = []
        #: Called when :meth:`give_up_dropped` must be called until it has nothing to do; None: all is
        #: given up at once.
        self.on_dropped: Callable[[], None] | None = None
        self._is_settled = False
        self._lists_in: tuple[int, dict[int, list[int]]] | None = None  # as of a batch
        self._growth_max: int = 0
        self._grown_at: int = _NEVER  # pending messages at which on_growth is called, once
        self._log_grown_at: int = _NEVER  # the same for rows
        self._on_growth: Callable[[], None] | None = None
        self._rows: Rows = {table: {} for table in TABLES}  # changed since the last checkpoint
        self._changed: set[int] = set()  # the same: lists with other entries
        self._dropped_lists: list[int] = []  # the same
        self._removed = 0  # references in those that the metadata store has
        #: Lists that :meth:`tell_lists` has yet to add to the last answer of :meth:`begin_changes`.
        self._untold: set[int] = set()
        self._telling: Changes | None = None
        self._known = 0  # the watermark before that answer
        self._apply_one: dict[type, Callable[[Any, int], None]] = {
            **self.apply_small,
            Acknowledge: self._acknowledge,
            Discard: self._discard,
            RecordDelivery: self._record_delivery,
        }

    def apply(self, effects: Effects) -> None:
        """Apply a whole batch."""
        for _ in self.apply_in_steps(effects):
            pass

    def apply_in_steps(self, effects: Effects) -> Iterator[None]:
        """The same, yielding after each step. No other batch may be applied before the end.

        In between, lists can be read, each as before or after the batch; only at the end does a checkpoint
        find the index as of one batch.
        """
        self._file_id = effects.file_id
        # From now on its rows can be read, by callers that sync it first.
        self.batch = effects.batch
        for sequence, body in effects.large:
            self.large.add(sequence, body)
        if effects.adds:
            for sequence, count in effects.shared:
                self._shared[sequence] = count << HELD_SHIFT | count
            use = self.file_use(effects.file_id)
            use.references += effects.references
            use.live_bytes += effects.message_bytes
            for file_id, (references, record_bytes) in effects.placed.items():
                use = self.file_use(file_id)
                use.references += references
                use.live_bytes += record_bytes
                self._speak_of(file_id)
            self.pending_messages += effects.messages
            lists, untold = self.lists, self._untold
            self._changed.update(effects.adds)
            count = 0
            for list_id, entries in effects.adds.items():
                if count >= STEP_ENTRIES:
                    count = 0
                    yield
                count += LIST_ENTRIES + len(entries)
                if untold and list_id in untold:
                    self._tell_first((list_id,))
                    count = STEP_ENTRIES
                pending = lists.get(list_id)
                if pending is None:
                    pending = lists[list_id] = PendingList()
                if len(entries) <= SEAL_ENTRIES:
                    pending.add(entries)
                    continue
                items = iter(entries.items())
                while part := dict(islice(items, SEAL_ENTRIES)):
                    pending.add(part)
                    yield
        apply_one = self._apply_one
        count = 0
        for operation, number in effects.others:
            if count >= STEP_ENTRIES:
                count = 0
                yield
            self._file_id = effects.file_id  # a dropped list may have given up a part meanwhile
            apply_one[type(operation)](operation, number)
            count += OPERATION_ENTRIES + len(getattr(operation, "sequences", ()))
        if effects.copies:
            self._copy(effects)
        self.last_sequence = effects.last_sequence
        self.last_list = effects.last_list
        # The log's own counter moves with its blocks; this covers rows that were never kept.
        self.log.last = max(self.log.last, effects.last_ack)
        if self._on_growth is not None and (
            self.pending_messages >= self._grown_at or self.log.rows >= self._log_grown_at
        ):
            self._grown_at = self._log_grown_at = _NEVER
            self._on_growth()

    def watch_growth(self, count: int, on_growth: Callable[[], None], *, already: int = 0) -> None:
        """Call *on_growth* when *count* more messages are pending than at the last checkpoint.

        Or rows of the acknowledged log in memory. Once per checkpoint; 0 for never. *already*: how many
        of them are newer than that checkpoint.
        """
        self._growth_max = count
        self._on_growth = on_growth
        self._watch_again(already)

    def _watch_again(self, already: int = 0) -> None:
        if self._growth_max:
            left = max(0, self._growth_max - already)
            self._grown_at = self.pending_messages + left
            self._log_grown_at = self.log.rows + left

    # --------------------------------------------------------------------- leaving a list

    def _take(self, list_id: int, sequences: Sequence[int]) -> tuple[Sequence[int], list[int]]:
        """Remove entries; missing ones are left out of the answer."""
        pending = self.lists.get(list_id)
        if pending is None:
            return (), []
        if self._untold:
            self._tell_first((list_id,))
        pop = pending.fresh.pop
        found: list[int | None] = [pop(sequence, None) for sequence in sequences]
        if None in found:
            self._changed.add(list_id)
            if any(found):
                for index, sequence in enumerate(sequences):
                    if found[index] is None:
                        found[index] = pending.pop_sealed((sequence,))[0]
            else:
                found = pending.pop_sealed(sequences)
            if None in found and list_id in self._loose:
                loose = self._loose[list_id]
                for index, sequence in enumerate(sequences):
                    if found[index] is None:
                        found[index] = loose.pop(sequence, None)
            if None in found:
                pairs = zip(sequences, found, strict=True)
                sequences = [sequence for sequence, value in pairs if value is not None]
        if pending.deliveries:
            self._forget_deliveries(list_id, pending, sequences)
        return sequences, [value for value in found if value is not None]

    def _forget_deliveries(
        self, list_id: int, pending: PendingList, sequences: Iterable[int]
    ) -> None:
        rows = self._rows[DELIVERIES]
        for sequence in sequences:
            if pending.deliveries.pop(sequence, 0):
                if sequence <= self.watermark:
                    rows[list_id, sequence] = None
                else:
                    rows.pop((list_id, sequence), None)

    def _leave_lists(self, sequences: Sequence[int], locations: list[int]) -> None:
        """References ended without reaching the log."""
        self._note_speaks_of(locations)
        if self._shared:
            sequences, locations = self._leave_shared(sequences, locations, held=1, pending=1)
        self.pending_messages -= len(sequences)
        self._free(locations)

    # ---------------------------------------------------------------------------- copies

    def _copy(self, effects: Effects) -> None:
        """Compaction copied messages: every remaining reference goes to the copy."""
        self.file_use(effects.file_id)
        places = {sequence: place for sequence, place, _ in effects.copies}
        for target_id in {place >> FILE_SHIFT for place in places.values()} - {effects.file_id}:
            self.file_use(target_id)
            self._speak_of(target_id)
        counts: dict[int, int] = {}
        olds: dict[int, int] = {}
        for rows in effects.copied_rows:
            block = rows.located([places[sequence] for sequence in rows.sequences])
            if self.loose_blocks is not None:
                self.loose_blocks.append(block)
                continue
            for sequence, old in self.log.relocate(block):
                counts[sequence] = counts.get(sequence, 0) + 1
                olds[sequence] = old
        for sequence, place, lists in effects.copies:
            count = rows_count = counts.get(sequence, 0)
            old = olds.get(sequence, 0)
            for list_id in lists:
                found = self._relocate(list_id, sequence, place)
                if found:
                    count += 1
                    old = found
            if count:
                self._move_references(sequence, count, old, place)
            if count and count == rows_count:  # the record of a copy can have another length
                self.acknowledged_bytes += held_bytes(place) - held_bytes(old)

    def _relocate(self, list_id: int, sequence: int, place: int) -> int:
        """Returns the old location; 0 when the original is gone (while replaying)."""
        pending = self.list_of(list_id)
        if self._untold:
            self._tell_first((list_id,))
        self._changed.add(list_id)
        old = pending.relocate(sequence, place)
        if old is None:
            assert not self._is_settled, "compaction copies only what is there"
            loose = self._loose.setdefault(list_id, {})
            old = loose.get(sequence, 0)
            loose[sequence] = place
        return old

    def restore_loose(self, list_id: int, places: dict[int, int]) -> None:
        """Before replaying: messages whose first mention is in a file that is gone."""
        self.list_of(list_id)
        self._loose.setdefault(list_id, {}).update(places)
        for place in places.values():
            self.file_use(place >> FILE_SHIFT)

    def settle(self) -> None:
        """After everything was replayed: put copies whose original is gone where they belong."""
        for list_id, loose in self._loose.items():
            self.list_of(list_id).merge(loose)
            self._changed.add(list_id)
        self._loose.clear()
        self._is_settled = True

    # ------------------------------------------------------------------------- operations

    def _acknowledge(self, operation: Acknowledge, ack_first: int) -> None:
        sequences, locations = self._take(operation.pending_list, operation.sequences)
        if not (ack_first and self.keep_acknowledged):
            self._leave_lists(sequences, locations)
            if ack_first:
                self.log.last = ack_first + len(operation.sequences) - 1
                self.log.released = self.log.last
            return
        is_one_file = self._note_speaks_of(locations)
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
            operation.principal,
            operation.outcome,
            operation.reason,
            operation.delivery_counts,
        )
        if self.loose_blocks is not None:
            self._keep_loose(block, sequences, locations, operation)
            return
        self.log.append(block)
        if self._shared:
            sequences, locations = self._leave_shared(sequences, locations, held=0, pending=1)
        self.pending_messages -= len(sequences)
        self.acknowledged_bytes += record_bytes(locations, is_one_file=is_one_file)

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
        for index, sequence in enumerate(operation.sequences):
            location = known.get(sequence)
            if location is not None:
                self.loose_blocks.append(block.part(index, index + 1).located((location,)))

    def release(self, through: int) -> None:
        """Forget rows of the acknowledged log."""
        for sequences, locations in self.log.release(through):
            if self._shared:
                sequences, locations = self._leave_shared(sequences, locations, held=1, pending=0)
            self.acknowledged_bytes -= self._free(locations)

    def _discard(self, operation: Discard, _: int) -> None:
        self._leave_lists(*self._take(operation.pending_list, operation.sequences))

    def _record_delivery(self, operation: RecordDelivery, _: int) -> None:
        pending = self.lists.get(operation.pending_list)
        if pending is None:
            return
        for sequence, count in zip(operation.sequences, operation.delivery_count, strict=True):
            if sequence in pending or sequence in self._loose.get(operation.pending_list, ()):
                pending.deliveries[sequence] = count
                self._rows[DELIVERIES][operation.pending_list, sequence] = count

    def drop_list(self, list_id: int) -> None:
        """Forget a list and everything pending in it. No error when there is none.

        The contents of a long list are given up later, see :meth:`give_up_dropped`.
        """
        if self._untold:
            self._tell_first((list_id,))
        pending = self.lists.pop(list_id, None)
        if pending is None:
            return
        self._note_speaks_of([*self._loose.pop(list_id, {}).values()])
        self._dropped_lists.append(list_id)
        self._removed += pending.stored()
        is_first = not self._dropped
        self._dropped.append((pending, self._file_id))
        if len(pending) <= PIECE_ENTRIES or self.on_dropped is None:
            while self._dropped[-1][0] is pending:
                self._give_up_part()
                if not self._dropped:
                    return
        if is_first and self._dropped and self.on_dropped is not None:
            self.on_dropped()

    @property
    def is_dropping(self) -> bool:
        """Whether messages of dropped lists still count as pending and keep their data files."""
        return bool(self._dropped)

    def give_up_dropped(self) -> bool:
        """Give up more contents of long dropped lists: about 1 ms. True: there is more."""
        if self._dropped:
            self._give_up_part()
        return bool(self._dropped)

    def _give_up_part(self) -> None:
        pending, file_id = self._dropped[-1]
        sequences, locations = pending.take_part()
        if not sequences:
            self._dropped.pop()
            return
        self._file_id = file_id  # of the batch that dropped it
        self._leave_lists(sequences, locations)

    # ------------------------------------------------------------------------- checkpoints

    def take_changes(self) -> Changes:
        """What changed since the last call; the caller must get it into the metadata store."""
        changes = self.begin_changes()
        for _ in self.tell_lists():
            pass
        return changes

    def begin_changes(self) -> Changes:
        """The same, as of now, but without the entries of lists, which :meth:`tell_lists` adds."""
        for _ in self.tell_lists():  # if the last caller was cancelled
            pass
        rows, self._rows = self._rows, {table: {} for table in TABLES}
        self._known, self.watermark = self.watermark, self.last_sequence
        self._untold, self._changed = self._changed, set()
        removed, self._removed = self._removed, 0
        rows[LARGE] = {(sequence,): body for sequence, body in self.large.take_changes().items()}
        blocks = self.log.take_unstored()
        rows[ACKNOWLEDGED] = {(first,): block for first, block in blocks.items()}
        for file_id, use in self.files.items():
            if len(use.speaks_of) != use.speaks_of_stored:
                use.speaks_of_stored = len(use.speaks_of)
                rows[FILES][file_id,] = sorted(use.speaks_of)
        self._watch_again()
        dropped, self._dropped_lists = self._dropped_lists, []
        small, small_bytes = self.take_small_changes()
        self._telling = Changes(rows, dropped, 0, removed, self.numbers(), small, small_bytes)
        return self._telling

    def tell_lists(self) -> Iterator[None]:
        """Complete the last answer of :meth:`begin_changes`, a list per step.

        A list that is about to change is added first, so that the change is in the next answer.
        """
        while self._untold:
            self._tell(self._untold.pop())
            yield
        self._telling = None

    def _tell_first(self, list_ids: Iterable[int]) -> None:
        """Add lists that are about to change."""
        for list_id in self._untold.intersection(list_ids):
            self._untold.remove(list_id)
            self._tell(list_id)

    def _tell(self, list_id: int) -> None:
        pending, telling = self.lists.get(list_id), self._telling
        if pending is None or telling is None:
            return
        told, added, removed = pending.take_changes(self._known)
        telling.rows[PENDING].update(((list_id, key), piece) for key, piece in told.items())
        telling.added += added
        telling.removed += removed

    def numbers(self) -> Numbers:
        """How far the journal is."""
        log = self.log
        return Numbers(self.batch, self.last_sequence, self.last_list, log.last, log.released)

    def forget_file(self, file_id: int) -> None:
        """The data file is gone."""
        self.files.pop(file_id, None)
        self._rows[FILES][file_id,] = None

    def pack(self) -> Iterator[None]:
        """Pack the lists, one per step, also those that were only read: the metadata store has all their changes."""
        for pending in list(self.lists.values()):
            pending.pack()
            yield

    def counts(self) -> dict[int, PendingCount]:
        """Messages and bytes of bodies of every list that has any."""
        return {
            list_id: PendingCount(len(pending), pending.body_bytes())
            for list_id, pending in self.lists.items()
            if len(pending)
        }

    def living_in(self, file_id: int) -> list[tuple[int, list[int]]]:
        """Per list, the pending messages whose bytes are in the file."""
        result: list[tuple[int, list[int]]] = []
        for list_id in self.lists_in(file_id):
            found = self.lists[list_id].sequences_in(file_id)
            if found:
                result.append((list_id, found))
        return result

    def lists_in(self, file_id: int) -> Sequence[int]:
        """The lists that have messages in the file, and perhaps others: a checkpoint asks for many
        files in a row, and with directories of destinations there are many lists, too."""
        if self._lists_in is None or self._lists_in[0] != self.batch:
            by_file: dict[int, list[int]] = {}
            for list_id, pending in self.lists.items():
                for held in pending.files():
                    by_file.setdefault(held, []).append(list_id)
            self._lists_in = self.batch, by_file
        return self._lists_in[1].get(file_id, ())

    def mark_everything_changed(self) -> None:
        """The metadata store is empty: the next changes are everything."""
        self.watermark = 0
        rows = self._rows = {table: {} for table in TABLES}
        self._dropped_lists.clear()
        self._removed = 0
        self.large.mark_everything_changed()
        self.log.mark_everything_changed()
        for list_id, pending in self.lists.items():
            pending.mark_everything_changed()
            self._changed.add(list_id)
            for sequence, count in pending.deliveries.items():
                rows[DELIVERIES][list_id, sequence] = count
        for use in self.files.values():
            use.speaks_of_stored = 0
