"""The store without its metadata: everything from the data files and live lists.

docs/journal-format.md sections 5 and 6. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from tidegate.spi import (
    Acknowledge,
    Discard,
    Move,
    Operation,
    RecordDelivery,
    RemoveBranch,
    RemoveDestination,
    RemoveSubscription,
)
from tidegate_store_journal.checkpoint.bindings import Mark
from tidegate_store_journal.checkpoint.live import LiveList, read_live_list
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import DATA_OFFSET, FormatError
from tidegate_store_journal.log.walk import walk
from tidegate_store_journal.start.replay import Replay

_MESSAGE_OPERATIONS: Final = (Acknowledge, Discard, Move, RecordDelivery)


def rebuild(replay: Replay, mark: Mark) -> int:
    """Without metadata: everything from the data files and live lists.

    The small state is in the index as the bindings journal has it, as of *mark*.
    """
    index = replay.index
    known_batch = index.batch = mark.batch
    index.last_sequence = mark.last_sequence
    index.last_list = mark.last_list
    ack_last, released = mark.ack_last, mark.ack_released
    has_copied_rows = False
    blocks: list[AckBlock] = []
    index.loose_blocks = blocks
    replayed = 0
    total = sum(file.length for file in replay.files)
    done = 0
    elsewhere = _Elsewhere(replay, known_batch)
    blocks.extend(elsewhere.restore())
    for file in replay.files:
        # Dead files between two that are left were put away, behind a carry with all in them.
        if file.first_batch > replay.expected:
            replay.unsaid_batch = file.first_batch - 1
            replay.expected = file.first_batch
        live = _read_live_list(replay, file.file_id)
        living: dict[int, set[int]] = {}
        if live is not None:
            blocks.extend(live.blocks())
            living = {list_id: set(sequences) for list_id, sequences in live.pending}
        for batch in replay.batches(file, DATA_OFFSET):
            header = batch.header
            effects = replay.decode(file, batch)
            has_copied_rows |= bool(effects.copied_rows)
            if live is not None and header.batch <= live.batch:
                _keep_living(effects, living)
            elsewhere.leave_out(effects)
            if header.batch <= known_batch:
                _leave_out_small_state(effects)
            index.apply(effects)
            replay.unsynced += effects.unsynced
            replayed += header.record_count
            replay.progress("rebuilding from the journal", done + batch.begin, total)
        done += file.length
        if file is not replay.files[-1]:
            _require_end(replay, file)
    index.loose_blocks = None
    replay.known_batch = known_batch
    if replay.expected <= known_batch and not replay.may_skip:
        _refuse_early_end(replay, known_batch)
    index.settle()
    if has_copied_rows:
        blocks = latest_rows(blocks)
    last = max(ack_last, index.log.last)
    if not index.keep_acknowledged:
        released, blocks = last, []
    replay.count(blocks, last, released)
    index.mark_everything_changed()
    return replayed


def latest_rows(blocks: Sequence[AckBlock]) -> list[AckBlock]:
    """*blocks* with each row once: where it was copied to last. In the journal's order."""
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


def _read_live_list(replay: Replay, file_id: int) -> LiveList | None:
    name = _format.live_name(file_id)
    try:
        live = read_live_list(replay.storage, file_id)
        if live is not None:
            live.blocks()
        return live
    except FormatError as error:
        replay.notes.append(
            f"{name} is damaged and was not used: messages of that file that were "
            f"acknowledged may be delivered again: {error}."
        )
        return None


def _require_end(replay: Replay, file: DataFile) -> None:
    """A file that is not the last one was synced whole, so nothing may follow its batches."""
    if file is not replay.tail:
        offset = DATA_OFFSET
    else:
        offset = replay.tail_offset
    if any(walk(file, offset, number=replay.expected)):
        raise replay.damaged(file, offset)


def _refuse_early_end(replay: Replay, known_batch: int) -> None:
    """The last carry was written after batch *known_batch* was synced."""
    if replay.tail is not None:
        raise replay.damaged(replay.tail, replay.tail_offset)
    raise replay.corrupt(
        "journal-*.data",
        0,
        f"the data files are missing that hold everything up to batch {known_batch}. Restore "
        "them; or set ignore_missing_journalfiles = true in [store] to start without them",
    )


def _keep_living(effects: Effects, living: Mapping[int, Container[int]]) -> None:
    """Leave out what the live list of its file does not name any more; *living* is per list.

    It says nothing of messages that lie in directories of destinations.
    """
    own = effects.file_id
    for list_id, entries in list(effects.adds.items()):
        named = living.get(list_id, ())
        kept = {
            sequence: place
            for sequence, place in entries.items()
            if sequence in named or place >> _format.FILE_SHIFT != own
        }
        if kept:
            effects.adds[list_id] = kept
        else:
            del effects.adds[list_id]
    if any(place >> _format.FILE_SHIFT != own for _, place, _ in effects.copies):
        return  # those of one batch are in one file
    effects.copies = [
        (sequence, place, tuple(item for item in lists if sequence in living.get(item, ())))
        for sequence, place, lists in effects.copies
    ]
    # Their rows that are not released are in the live list itself.
    effects.copied_rows = []


def _leave_out_small_state(effects: Effects) -> None:
    """The bindings journal is newer than this batch: only lists that were dropped are dropped."""
    others: list[Operation] = []
    for item in effects.others:
        if isinstance(item, _MESSAGE_OPERATIONS):
            others.append(item)
        elif isinstance(item, RemoveDestination | RemoveSubscription | RemoveBranch):
            others.append(RemoveDestination("", item.pending_list))
    effects.others = others
    effects.small_sizes = []


class _Elsewhere:
    """Messages in the directories of destinations: live lists, and references behind them.

    The files there say nothing by themselves. One that is gone was put away when everything in it
    was gone, which the bindings know: *known_batch* is theirs.
    """

    def __init__(self, replay: Replay, known_batch: int) -> None:
        self._index = replay.index
        self._known_batch = known_batch
        self._there = replay.elsewhere.files
        lives = {file_id: _read_live_list(replay, file_id) for file_id in self._there}
        self._lives = {file_id: live for file_id, live in lives.items() if live is not None}

    def restore(self) -> list[AckBlock]:
        """Begin with what the live lists say. Returns: rows of the acknowledged log."""
        blocks: list[AckBlock] = []
        for live in self._lives.values():
            blocks += live.blocks()
            places = {key: int.from_bytes(value, "little") for key, value in live.places.items()}
            for list_id, sequences in live.pending:
                self._index.restore_loose(list_id, {key: places[key] for key in sequences})
        return blocks

    def leave_out(self, effects: Effects) -> None:
        """What a live list says better, and what is in files that were put away."""
        for file_id in [key for key in effects.placed if self._is_old(key, effects.batch)]:
            del effects.placed[file_id]
            for list_id, entries in list(effects.adds.items()):
                kept = {
                    sequence: place
                    for sequence, place in entries.items()
                    if place >> _format.FILE_SHIFT != file_id
                }
                if kept:
                    effects.adds[list_id] = kept
                else:
                    del effects.adds[list_id]
        copies = [
            copy
            for copy in effects.copies
            if copy[1] >> _format.FILE_SHIFT == effects.file_id
            or not self._is_old(copy[1] >> _format.FILE_SHIFT, effects.batch)
        ]
        if len(copies) != len(effects.copies):
            effects.copies = copies  # those of one batch are in one file
            effects.copied_rows = []

    def _is_old(self, file_id: int, batch: int) -> bool:
        live = self._lives.get(file_id)
        if live is not None:
            return batch <= live.batch
        return file_id not in self._there and batch <= self._known_batch
