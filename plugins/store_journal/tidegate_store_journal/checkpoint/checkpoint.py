"""Checkpoints and cleanup: what makes the next start short and the disk small.

On the loop, in slices, a checkpoint takes what had changed when it began (copying arrays, not
objects). A thread then writes it: bindings journal, then LMDB (docs/journal-format.md section 8).
Cleanup is a checkpoint that then removes or pools the data files that were dead when it began; a
dead file never becomes live again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.spi import StoreIOError
from tidegate_store_journal.bodies.large import LargeFiles
from tidegate_store_journal.checkpoint.bindings import Bindings, Mark
from tidegate_store_journal.checkpoint.live import LiveList
from tidegate_store_journal.checkpoint.metadata import Metadata, MetadataError, MetadataState
from tidegate_store_journal.index.acklog import AckBlock, AckPage
from tidegate_store_journal.index.changes import Changes
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.slices import in_slices
from tidegate_store_journal.log.datafile import DataFile, Tail
from tidegate_store_journal.log.files import FULL_ERRNOS, DataFiles
from tidegate_store_journal.log.storage import Storage

logger = logging.getLogger("tidegate.store.journal")


#: A file that only reserves space. When a checkpoint finds the disk full it is deleted, so that the
#: checkpoint can be written after all and dead data files deleted: the way out of a full disk.
RESERVE_NAME: Final = "reserve"
RESERVE_BYTES: Final = 4 << 20


@dataclass(slots=True)
class _Work:
    """What one checkpoint writes, a snapshot taken on the loop."""

    changes: Changes
    state: MetadataState
    mark: Mark | None
    lives: dict[int, LiveList] = field(default_factory=dict[int, LiveList])
    dead: list[DataFile] = field(default_factory=list["DataFile"])


@dataclass(eq=False)
class Checkpointer:
    """Runs one checkpoint at a time. All methods are for the event loop.

    Attributes: bindings: None in memory. sync: puts everything on stable storage. until_whole: waits
        until the index is as of one batch.
    """

    storage: Storage
    metadata: Metadata
    index: Index
    files: DataFiles
    tail: Tail
    executor: Executor
    store_id: str
    sync: Callable[[], Awaitable[None]]
    until_whole: Callable[[], Awaitable[None]]
    bindings: Bindings | None
    large: LargeFiles | None

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self._unsaved: Changes | None = None  # of checkpoints that failed
        self._saved_batch = -1
        self._saved_released = self.index.log.released
        if self.metadata.is_kept:
            self.index.log.fetch = self._fetch

    async def run(
        self,
        *,
        cleanup: bool = False,
        clean: bool = False,
        force: bool = False,
        all_lives: bool = False,
    ) -> int:
        """Write a checkpoint if anything changed, and put dead files away when *cleanup*.

        *clean*: the store is being closed; nothing is written after this. *force*: write one even
        when nothing changed. *all_lives*: with a live list for every file: acknowledgements are lost,
        and only the index knows of them; a rebuild would bring back messages that were consumed.
        Returns: data files put away. Raises: OSError; StoreError when the journal cannot be synced.
        """
        async with self._lock:
            await self.until_whole()
            dead = self._find_dead() if cleanup else []
            lives = await self._live_lists(dead, all_lives=all_lives)
            await self.until_whole()
            work = self._begin(dead, lives, is_asked=clean or force, clean=clean)
            loose = self.index.large.take_loose()
            if work is None:
                await self._sweep(loose)
                return 0
            async for _ in in_slices(self.index.tell_lists()):
                pass
            # Positions and locations in the checkpoint must not be ahead of what is on disk.
            await self.sync()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.executor, self._write, work)
            self._unsaved = None
            self._saved_batch = work.state.batch
            self._saved_released = work.state.ack_released
            await self._sweep(loose)
            async for _ in in_slices(self.index.pack()):
                pass
            await self.index.log.page_out()
            # In the journal's order, without gaps: a file must not outlive another that records
            # what became of its messages. If a page is still being read from one, wait.
            gone = list(itertools.takewhile(lambda file: file.readers == 0, work.dead))
            if gone:
                try:
                    await self.files.dispose(gone)
                finally:
                    for file in gone:
                        if self.files.get(file.file_id) is None:
                            self.index.forget_file(file.file_id)
                if self.bindings is not None:
                    # Not after a failure: a file that still exists needs its live list.
                    forget, ids = self.bindings.forget, [file.file_id for file in gone]
                    await loop.run_in_executor(self.executor, forget, ids)
            return len(gone)

    async def _sweep(self, loose: set[str]) -> None:
        """Release the large bodies that no message in the checkpoint on disk refers to."""
        if self.large is not None:
            await self.large.sweep(loose)

    def _begin(
        self, dead: list[DataFile], lives: dict[int, LiveList], *, is_asked: bool, clean: bool
    ) -> _Work | None:
        index = self.index
        if not (
            is_asked
            or dead
            or self._unsaved is not None
            or index.batch != self._saved_batch
            or index.log.released != self._saved_released
        ):
            return None
        changes = index.begin_changes()
        if self._unsaved is not None:
            changes.follow(self._unsaved)
        self._unsaved = changes
        mark = None
        bindings = self.bindings
        if bindings is not None:
            bindings.pending_bytes = changes.small_bytes
            mark = Mark(
                *msgspec.structs.astuple(changes.numbers),
                floor_batch=bindings.mark.floor_batch,
                floor_released=bindings.mark.floor_released,
            )
            # Even if only the batch changed: damage up to it is no torn tail.
            is_new = msgspec.structs.replace(mark, oldest=bindings.mark.oldest) != bindings.mark
            if not (is_new or dead or lives or changes.small or bindings.must_carry):
                mark = None
        tail_file = self.tail.file
        state = MetadataState(
            *msgspec.structs.astuple(changes.numbers),
            store_id=self.store_id,
            clean=clean,
            file_id=tail_file.file_id if tail_file else 0,
            offset=self.tail.offset,
        )
        return _Work(changes, state, mark, lives, dead)

    def has_dead(self) -> bool:
        """Whether a cleanup would remove a file now: the first dead one has no reader."""
        return any(file.readers == 0 for file in self._dead_of_journal()[:1])

    def _find_dead(self) -> list[DataFile]:
        """Files that may be removed, in this order."""
        return [*self.files.dead_elsewhere(), *self._dead_of_journal()]

    def _dead_of_journal(self) -> list[DataFile]:
        """Files without live records, except the one that replay would start from."""
        used = self.files.used()
        files = self.index.files
        if self.index.is_dropping:
            return []  # references between files are incomplete
        dead: list[DataFile] = []
        for file in used[:-1]:
            use = files.get(file.file_id)
            if file is not self.tail.file and (use is None or use.references == 0):
                dead.append(file)
        return dead

    async def _live_lists(self, dead: list[DataFile], *, all_lives: bool) -> dict[int, LiveList]:
        """Live lists of files that *dead* ones refer to. Each is as of its own batch."""
        lives: dict[int, LiveList] = {}
        if self.bindings is not None:
            wanted = self._all_files if all_lives or self.bindings.must_carry else self._spoken
            await self.index.log.of_files(lambda: wanted(dead))
            for file_id in sorted(wanted(dead)):
                await self.until_whole()
                lives[file_id] = self._live_list(file_id)
                await asyncio.sleep(0)
        return lives

    def _live_list(self, file_id: int) -> LiveList:
        index = self.index
        rows = list(itertools.chain.from_iterable(index.log.parts_in(file_id)))
        places: dict[int, int] = {}
        if self.files.is_elsewhere(file_id):
            # Its records do not say which of them are live, so the list has their locations.
            for list_id in index.lists_in(file_id):
                for piece in index.lists[list_id].pieces_in(file_id):
                    places.update(piece)
        return LiveList(index.batch, dict(index.living_in(file_id)), rows, places)

    async def _fetch(self, page: AckPage) -> list[AckBlock]:
        """Paged-out rows of the acknowledged log. Raises: StoreIOError, OSError."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.executor, self.metadata.acknowledged, page)
        except MetadataError as error:
            raise StoreIOError(
                f"rows of the acknowledged log cannot be read: {error}. Restart the gateway: the "
                "metadata store is rebuilt then"
            ) from error

    def _all_files(self, _dead: list[DataFile]) -> set[int]:
        staying = self.files.elsewhere()
        used = {file.file_id for file in self.files.used()}
        return used.union(staying).intersection(self.index.files)

    def _spoken(self, dead: list[DataFile]) -> set[int]:
        """Living files that acknowledgements in *dead* mention, and all in directories that stay:
        references to those may be in older files than the records that nothing of them lives.

        A live list as new as the dead file already says everything that the file says.
        """
        files = self.index.files
        staying = self.files.elsewhere()
        used = self.files.used()
        lives = self.bindings.lives if self.bindings is not None else {}
        begins = {file.file_id: after.first_batch for file, after in itertools.pairwise(used)}
        spoken: set[int] = set()
        for file in dead:
            use = files.get(file.file_id)
            if use is not None:
                end = begins.get(file.file_id, self.index.batch + 1)
                spoken |= {other for other in use.speaks_of if lives.get(other, -1) < end - 1}
        return {
            file_id
            for file_id in spoken - {file.file_id for file in dead}
            if file_id in staying or (file_id in files and files[file_id].references)
        }

    def _write(self, work: _Work) -> None:
        """In the thread. A full disk must not block deleting dead files: see RESERVE."""
        self._with_reserve(lambda: self._write_all(work))
        if work.dead and work.mark is not None and self.metadata.is_kept:
            assert self.bindings is not None
            # Only now: a start that finds an older checkpoint does not use it. Until it is durable, all
            # files are there that any checkpoint names.
            floor = {"floor_batch": work.mark.batch, "floor_released": work.mark.ack_released}
            self.bindings.carry({}, msgspec.structs.replace(work.mark, **floor))

    def _with_reserve(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if error.errno not in FULL_ERRNOS or RESERVE_NAME not in self.storage.list():
                raise
            self.storage.unlink(RESERVE_NAME)
            write()

    def _write_all(self, work: _Work) -> None:
        if work.mark is not None:
            assert self.bindings is not None
            self.bindings.carry(work.changes.small, work.mark, work.lives)
            work.changes.small.clear()
            self.bindings.pending_bytes = work.changes.small_bytes = 0
        state = work.state
        if self.bindings is not None:
            state = msgspec.structs.replace(state, bindings=self.bindings.batch)
        self.metadata.save(work.changes, state)

    def make_reserve(self) -> None:
        """Create the reserve if it is missing and there is room. Blocks; any thread.

        Raises: OSError for anything but a full disk.
        """
        if not self.storage.durable or RESERVE_NAME in self.storage.list():
            return
        with closing(self.storage.open(RESERVE_NAME, create=True)) as file:
            try:
                file.preallocate(RESERVE_BYTES)
            except OSError as error:
                self.storage.unlink(RESERVE_NAME)  # an empty one is of no use
                if error.errno not in FULL_ERRNOS:
                    raise
