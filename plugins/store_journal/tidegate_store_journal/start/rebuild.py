"""The store without its metadata: everything from the data files and live lists.

docs/journal-format.md sections 5 and 6. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.spi import (
    Acknowledge,
    Discard,
    Operation,
    RecordDelivery,
    RemoveBranch,
    RemoveDestination,
    RemoveSubscription,
)
from tidegate_store_journal.checkpoint.live import LiveList, decode_live_list
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import DATA_OFFSET, FormatError
from tidegate_store_journal.start.replay import Replay

_MESSAGE_OPERATIONS: Final = (Acknowledge, Discard, RecordDelivery)


def rebuild(replay: Replay) -> None:
    """Restore everything from the data files and live lists, without metadata.

    The small state in the index is the bindings journal's, as of its last mark.
    """
    index, mark = replay.index, replay.bindings.mark
    known_batch = index.batch = mark.batch
    index.last_sequence = mark.last_sequence
    index.last_list = mark.last_list
    released = mark.ack_released
    has_copied_rows = False
    blocks: list[AckBlock] = []
    index.loose_blocks = blocks
    living = _Living(replay)
    blocks.extend(living.restore())
    file_id = 0
    for effects in replay.effects(
        replay.files, DATA_OFFSET, "rebuilding from the journal", all_there=True
    ):
        if effects.file_id != file_id:
            file_id = effects.file_id
            blocks.extend(living.begin(file_id))
        has_copied_rows |= bool(effects.copied_rows)
        living.leave_out(effects)
        if effects.batch <= known_batch:
            _leave_out_small_state(effects)
        index.apply(effects)
    index.loose_blocks = None
    replay.require(known_batch)
    index.settle()
    if has_copied_rows:
        blocks = latest_rows(blocks)
    last = max(mark.ack_last, index.log.last)
    if not index.keep_acknowledged:
        released, blocks = last, []
    replay.count(blocks, last, released)
    index.mark_everything_changed()


def latest_rows(blocks: Sequence[AckBlock]) -> list[AckBlock]:
    """*blocks* with each row once: at its latest copy. In the journal's order."""
    seen: set[int] = set()
    result: list[AckBlock] = []
    for block in reversed(blocks):
        rows = range(block.first, block.last + 1)
        if seen.isdisjoint(rows):
            result.append(block)
        else:
            result += [
                block.part(row - block.first, row - block.first + 1)
                for row in rows
                if row not in seen
            ]
        seen.update(rows)
    return result


def _leave_out_small_state(effects: Effects) -> None:
    """The bindings journal is newer than this batch: only drop lists that were dropped."""
    others: list[tuple[Operation, int]] = []
    for item, number in effects.others:
        if isinstance(item, _MESSAGE_OPERATIONS):
            others.append((item, number))
        elif isinstance(item, RemoveDestination | RemoveSubscription | RemoveBranch):
            others.append((RemoveDestination("", item.pending_list), 0))
    effects.others = others


class _Living:
    """What old batches say about a data file counts only where its live list agrees.

    Files in directories of destinations say nothing by themselves, and the references to them may be
    in files that are gone: if there is a live list, they begin with it. A missing file was put away when
    everything in it was gone, which the bindings know.
    """

    def __init__(self, replay: Replay) -> None:
        self._index = replay.index
        self._known_batch = replay.bindings.mark.batch
        self._elsewhere = replay.elsewhere.files
        self._there = replay.there()
        self._lives = replay.bindings.lives
        self._corrupt = replay.corrupt
        #: What the live list of the journal file being read names, per list.
        self._named: dict[int, set[int]] = {}

    def _read(self, file_id: int) -> LiveList:
        batch, payload = self._lives[file_id]
        try:
            return decode_live_list(batch, payload)
        except FormatError as error:
            problem = f"{error}; a newer version wrote it"
            raise self._corrupt(_format.file_name(file_id), 0, problem) from error

    def restore(self) -> list[AckBlock]:
        """Begin with the directories of destinations. Returns: rows of the acknowledged log."""
        blocks: list[AckBlock] = []
        for file_id in [key for key in self._elsewhere if key in self._lives]:
            live = self._read(file_id)
            blocks += live.rows
            for list_id, found in live.pending.items():
                self._index.restore_loose(list_id, {key: live.places[key] for key in found})
        return blocks

    def begin(self, file_id: int) -> list[AckBlock]:
        """Start to read a file of the journal. Returns: rows whose messages are in it."""
        self._named = {}
        if file_id not in self._lives:
            return []
        live = self._read(file_id)
        self._named = {list_id: set(found) for list_id, found in live.pending.items()}
        return live.rows

    def leave_out(self, effects: Effects) -> None:
        """Remove what a live list says better, and what is in files that were put away."""
        own = effects.file_id
        targets = {place >> _format.FILE_SHIFT for _, place, _ in effects.copies}
        old = {
            file_id: self._named if file_id == own else {}
            for file_id in {own, *effects.placed, *targets}
            if self._is_old(file_id, effects.batch)
        }
        if not old:
            return
        for file_id in old:
            effects.placed.pop(file_id, None)
        everything = effects.adds
        effects.adds = {}
        for list_id, entries in everything.items():
            kept = {
                sequence: place
                for sequence, place in entries.items()
                if (named := old.get(place >> _format.FILE_SHIFT)) is None
                or sequence in named.get(list_id, ())
            }
            if kept:
                effects.adds[list_id] = kept
        if not old.keys().isdisjoint(targets):  # the copies of one batch are in one file
            named = old[next(iter(targets))]
            copies = [
                (sequence, place, tuple(key for key in lists if sequence in named.get(key, ())))
                for sequence, place, lists in effects.copies
            ]
            effects.copies = [copy for copy in copies if copy[2]]
            # Their unreleased rows are in the live list itself.
            effects.copied_rows = []

    def _is_old(self, file_id: int, batch: int) -> bool:
        if file_id in self._lives:
            return batch <= self._lives[file_id][0]
        return file_id not in self._there and batch <= self._known_batch
