"""Reading batches back in the journal's order, and how the journal ends.

A torn tail is cut off after a copy is kept, damage is refused: docs/journal-format.md section 4.
Everything here blocks; nothing else touches the store meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.spi import Acknowledge, CorruptRecordError, Progress
from tidegate_store_journal.bodies.folders import Found
from tidegate_store_journal.checkpoint.bindings import BindingsFound
from tidegate_store_journal.checkpoint.checkpoint import RESERVE_NAME
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.index.effects import Effects
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.datafile import DataFile, using
from tidegate_store_journal.log.files import FULL_ERRNOS
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    END_MARK,
    FormatError,
    decode_batch_header,
)
from tidegate_store_journal.log.storage import Storage, copy_range, fresh_name
from tidegate_store_journal.log.walk import Batch, Remains, Unproven, remains, walk
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.start.losses import LossReport, Lost
from tidegate_store_journal.write.encode import decode_batch

_ZEROS_BYTES: Final = 4 << 20

#: Advice to operators, for every error that reports damage.
ADVICE: Final = (
    "Restore the file from a copy; or set damaged_journal_policy = 'quarantine' in [store] to keep "
    "a copy of the damaged part, take it out, and serve the rest"
)


@dataclass(slots=True)
class Replay:
    """A journal being read: how far, and in the end what a start found.

    Attributes:
        store_id: "" until known. index: gets the effects of every batch read.
        files: with batches, in the journal's order; spares: without; pool: names of dead files.
        elsewhere: what is in the directories of destinations; bindings: what is in the bindings
            journal, whose contents are in *index*.
        expected: number of the batch that must come next.
        tail, tail_offset: where that one must be; None for an empty journal.
        may_skip: data files may be missing: the journal goes on with the next existing one.
        known_batch: the journal must not go on with a smaller number.
        unsaid_batch: the last one that no remaining file has (after a rebuild; 0: all are there).
        unproven: what was read but may not be on stable storage.
        unsynced: (sequence, location) of replayed messages elsewhere that were not synced before the
            batch that refers to them.
        replayed: operations; repaired_bytes, notes, clean: see RecoveryReport.
        rebuilt: the metadata store was not used and holds nothing.
        is_settled: the checkpoint on disk is not *clean*, and what was replayed may be replayed again:
            nothing has to be written before the store is used.
        lost: pending messages whose bytes are gone: the next batch drops them.
        report: what was lost, already written as far as known.
    """

    storage: Storage
    options: JournalOptions
    elsewhere: Found
    progress: Progress
    index: Index
    report: LossReport
    store_id: str = ""
    bindings: BindingsFound = field(default_factory=BindingsFound)
    unproven: Unproven = field(default_factory=Unproven)
    files: list[DataFile] = field(default_factory=list["DataFile"])
    spares: list[DataFile] = field(default_factory=list["DataFile"])
    pool: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    lost: list[Lost] = field(default_factory=list["Lost"])
    unsynced: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    tail: DataFile | None = None
    tail_offset: int = 0
    expected: int = 1
    known_batch: int = 0
    unsaid_batch: int = 0
    next_file_id: int = 1
    replayed: int = 0
    repaired_bytes: int = 0
    may_skip: bool = False
    clean: bool = False
    rebuilt: bool = False
    is_settled: bool = False

    def there(self) -> set[int]:
        """Ids of all data files."""
        own = {file.file_id for file in (*self.files, *self.spares)}
        return own | self.elsewhere.files.keys()

    def replay(self) -> None:
        """Apply every batch after the tail, which then moves past the last one.

        Raises: CorruptRecordError, OSError.
        """
        first = self.tail
        offset = self._boundary(first, self.tail_offset) if first else DATA_OFFSET
        todo = self.files[self.files.index(first) :] if first else self.files
        for effects in self.effects(todo, offset, "replaying the journal"):
            self._close_gap_in_log(effects)
            self.index.apply(effects)

    def effects(
        self, files: Sequence[DataFile], offset: int, what: str, *, all_there: bool = False
    ) -> Iterator[Effects]:
        """Those of every batch that continues the journal, from *offset* of the first file on.

        *what*: for the progress. *all_there*: these are all files, and anything in between was dead.
        Raises: CorruptRecordError, OSError.
        """
        total = sum(file.length for file in files)
        done = 0
        for file in files:
            if file.first_batch > self.expected and (all_there or self.may_skip):
                if all_there:
                    self.unsaid_batch = file.first_batch - 1
                else:
                    self.notes.append(
                        f"Batches {self.expected} to {file.first_batch - 1} are missing; the "
                        f"journal goes on in {file.name}."
                    )
                self.expected = file.first_batch
            for batch in walk(file, offset, number=self.expected, searches=False):
                assert isinstance(batch, Batch)
                effects = self._decode(file, batch)
                yield effects
                self.unsynced += effects.unsynced
                self.replayed += batch.header.record_count
                self.unproven.add(file, batch)
                self.expected = batch.header.batch + 1
                self.tail, self.tail_offset = file, batch.next
                self.progress(what, done + batch.begin, total)
            done += file.length
            offset = DATA_OFFSET
            if all_there and file is not files[-1]:
                # It was synced whole, so nothing may follow its batches.
                end = self.tail_offset if file is self.tail else DATA_OFFSET
                if any(walk(file, end, number=self.expected)):
                    raise self.damaged(file, end)

    def _boundary(self, file: DataFile, offset: int) -> int:
        """Where batch *expected* is: a checkpoint may name a place that was made void later."""
        with using(file) as handle:
            head = handle.pread(BATCH_HEADER_BYTES, offset)
        if head.strip(b"\0") and decode_batch_header(file.seed, head) is None:
            for item in walk(file, searches=False):
                if isinstance(item, Batch) and item.header.batch >= self.expected:
                    return item.begin
        return offset

    def _decode(self, file: DataFile, batch: Batch) -> Effects:
        """The effects of a batch. Raises: CorruptRecordError when a newer version wrote it."""
        try:
            return decode_batch(batch.payload, batch.header, file.file_id, batch.at)
        except FormatError as error:
            raise self.corrupt(
                file.name, batch.at, f"{error}. Open the store with the version that wrote it"
            ) from error

    def require(self, batch: int) -> None:
        """Everything up to *batch* was on stable storage when the last mark was written.

        Raises: CorruptRecordError.
        """
        self.known_batch = batch
        if self.expected > batch or self.may_skip:
            return
        if self.tail is not None:
            raise self.damaged(self.tail, self.tail_offset)
        raise self.corrupt(
            "journal-*.data",
            0,
            f"the data files are missing that hold everything up to batch {batch}. Restore "
            "them; or set ignore_missing_journalfiles = true in [store] to start without them",
        )

    def go_on_behind_the_missing(self) -> None:
        """The newest files are missing: continue in a new one, with unused numbers."""
        if self.may_skip and self.known_batch >= self.expected:
            self.notes.append(
                f"Batches {self.expected} to {self.known_batch} are missing at the end of "
                "the journal."
            )
            self.index.batch = self.known_batch
            self.tail = None

    def _close_gap_in_log(self, effects: Effects) -> None:
        """Rows were in lost batches: no reader may see the gap, so the log begins after it."""
        log = self.index.log
        firsts = (number for item, number in effects.others if isinstance(item, Acknowledge))
        first = next(filter(None, firsts), 0)
        end = first - 1 if first else effects.last_ack
        if not self.index.keep_acknowledged or end <= log.last:
            return
        self.notes.append(
            f"Rows {log.released + 1} to {end} of the acknowledged log are lost to sinks that had "
            f"not taken them: {log.last + 1} to {end} were in a part of the journal that is lost."
        )
        self.index.release(log.last)
        log.last = log.released = end

    def count(self, blocks: list[AckBlock], last: int, released: int) -> None:
        """Recount references, and begin the acknowledged log with *blocks*."""
        missing = self.index.recount(blocks, last, released)
        if missing:
            self.notes.append(
                f"{missing} rows of the acknowledged log could not be found again; it goes on "
                f"behind row {self.index.log.released}."
            )

    def corrupt(self, name: str, offset: int, problem: str) -> CorruptRecordError:
        """The error for *problem*, naming the place."""
        location = f"{self.storage.describe(name)} at offset {offset}"
        return CorruptRecordError(problem, location=location)

    def damaged(self, file: DataFile, offset: int) -> CorruptRecordError:
        """The error for a batch that was once on stable storage."""
        gap = next(walk(file, offset, number=self.expected), None)
        length = f" of {gap.end - gap.begin} bytes" if gap is not None else ""
        return self.corrupt(
            file.name,
            offset,
            f"a batch{length} is damaged that was on disk whole once: later batches or a mark say so. "
            f"Nothing was changed. {ADVICE}",
        )

    # ------------------------------------------------------------------------------- the end

    def end(self, *, trusted: bool) -> None:
        """Cut off what was never confirmed; refuse damage.

        *trusted*: the store was closed properly, so only what could be mistaken is checked.
        Raises: CorruptRecordError, OSError.
        """
        tail, found = self.tail, list[Remains]()
        if tail is not None:
            behind = self.files[self.files.index(tail) + 1 :]
            if not trusted:
                found.append(remains(tail, self.tail_offset, self.expected))
        else:
            # Older ones are there if the file in which the journal continued is missing.
            behind = [file for file in self.files if file.first_batch >= self.expected]
        for file in (*behind, *self.spares):
            if not (trusted and file.first_batch == 0 and self._begins_empty(file)):
                found.append(remains(file, DATA_OFFSET, 0))
        suspects = [rest for rest in found if rest.end > rest.begin]
        for rest in suspects:
            if rest.synced >= self.expected:
                raise self.damaged(suspects[0].file, suspects[0].begin)
            if 0 < rest.first < self.expected:
                raise self.damaged(rest.file, rest.begin)
        for act in (self._keep_copy, self._cut_off):  # the copies are synced before the first cut
            for rest in suspects:
                act(rest)
            if suspects:
                self.storage.sync_directory()
        if tail is not None:
            with using(tail) as handle:
                if handle.length < tail.length:
                    handle.preallocate(tail.length)
                    handle.datasync()
        self.repaired_bytes = sum(rest.end - rest.begin for rest in suspects)

    def _begins_empty(self, file: DataFile) -> bool:
        with using(file) as handle:
            return not handle.pread(len(END_MARK), DATA_OFFSET).strip(b"\0")

    def _keep_copy(self, rest: Remains) -> None:
        """A disk without room for the copy must not keep the store from opening.

        Nothing in it was ever confirmed. The reserve is released for it; maintenance sets it
        aside again when it next starts.
        """
        name = fresh_name(self.storage, f"{rest.file.name}.{rest.begin}.torn")
        kept = ""
        for _ in range(2):
            try:
                copy_range(self.storage, rest.file.name, rest.begin, rest.end, name)
                kept = f"A copy is kept in {self.storage.describe(name)}."
                break
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                self.storage.unlink(name)
                self.storage.unlink(RESERVE_NAME)
                kept = f"There was no room for a copy ({error})."
        self.notes.append(
            f"A torn tail of {rest.end - rest.begin} bytes at offset {rest.begin} of "
            f"{self.storage.describe(rest.file.name)} was cut off; nothing in it had been confirmed "
            f"as synced. {kept}"
        )

    def _cut_off(self, rest: Remains) -> None:
        """A crash in between repeats it."""
        if rest.file is not self.tail:
            self.storage.unlink(rest.file.name)
            (self.files if rest.file in self.files else self.spares).remove(rest.file)
            return
        with using(rest.file) as handle:
            for at in range(rest.begin, rest.end, _ZEROS_BYTES):
                handle.pwritev([bytes(min(_ZEROS_BYTES, rest.end - at))], at)
            handle.datasync()
