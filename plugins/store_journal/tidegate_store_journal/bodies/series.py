"""Directories of destinations: messages there, references to them in the journal.

A directory is a series of ordinary data files. A batch, however many destinations it touches, is
atomic:

1. Each message is appended to the tail file of its destination, and those files are synced in
   parallel. Nothing refers to these records yet: a crash leaves only unused space.
2. The batch goes to the journal, with references instead of the messages. From here on all of them
   exist, or none; the index knows them by their data file, like all others.
3. A file without live records is removed or pooled after a checkpoint, like all others.

So everything shared by all destinations stays in the journal, and these are treated like any other
data files. Methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass
from functools import partial
from itertools import islice
from typing import Final

from tidegate.spi import (
    AddMessage,
    Message,
    Operation,
    StoreError,
    StoreIOError,
    store_error,
)
from tidegate_store_journal.bodies.directory import Directory, Item, Job, carry_out, item_of
from tidegate_store_journal.bodies.folders import Folders, Found, covers, folder_name
from tidegate_store_journal.index.effects import AddReference, moves_apart
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import DataFiles
from tidegate_store_journal.log.format import BATCH_HEADER_BYTES, DATA_OFFSET, SHARED_BIT, encode
from tidegate_store_journal.log.room import RoomWatch
from tidegate_store_journal.log.storage import FULL_ERRNOS, NO_HANDLE_ERRNOS, Storage
from tidegate_store_journal.options import ALWAYS, PERIODIC, JournalOptions

logger = logging.getLogger("tidegate.store.journal")

#: Syncs at the same time: a disk runs many together, and a batch waits for the slowest. The threads
#: are separate, so that no checkpoint delays them.
_THREADS: Final = 32
#: Files open for writing at the same time: each has a descriptor.
_JOBS_MAX: Final = 256
#: Destinations whose directory name is cached.
_KNOWN_MAX: Final = 100_000

Append = Callable[[Sequence[Operation | AddReference]], Awaitable[None]]


@dataclass(eq=False)
class Series:
    """See the module. Sits between the store's surface and the appender.

    Attributes: directories: by name. lock: only one batch at a time is between its records and its
        references. grown_bytes: growth of directories since their bound was checked; keep_bound:
        checks it. is_active: batches must pass through here. checkpoint: runs one, with a cleanup.
        fail: called when the disk is broken.
    """

    storage: Storage
    found: InitVar[Found]
    files: DataFiles
    index: Index
    options: JournalOptions
    store_id: str
    room: RoomWatch
    checkpoint: Callable[[], Awaitable[object]]
    fail: Callable[[BaseException], None]

    def __post_init__(self, found: Found) -> None:
        self.lock = asyncio.Lock()
        self.directories: dict[str, Directory] = {}
        self.grown_bytes = 0
        self.keep_bound: Callable[[], Awaitable[None]] | None = None
        self._filters = self.options.per_destination if self.storage.durable else ()
        self.is_active = bool(self._filters)
        self._is_synced = self.options.sync_strategy == ALWAYS
        self._pool = ThreadPoolExecutor(_THREADS, "tidegate-journal-directories")
        self._folders = Folders(self.storage)
        self._names: dict[str, str] = {}  # directory names by destination; "" for none
        self._unsynced: dict[int, DataFile] = {}
        self._syncing = asyncio.Lock()
        self._pinned: dict[str, set[int]] = {}  # files written to by batches not yet in the journal
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for name, pool in found.pools.items():
            self._directory(name, is_made=True).pool.extend(pool)
        for file in found.files.values():
            self.files.add(file)
        self.files.dead_elsewhere = self._dead

    def _directory(self, name: str, *, is_made: bool = False) -> Directory:
        directory = self.directories.get(name)
        if directory is None:
            directory = Directory(name, self._folders, self._pool, is_made=is_made)
            self.directories[name] = self.files.homes[name] = directory
        return directory

    # ---------------------------------------------------------------------------- writing

    async def write(self, operations: Sequence[Operation], append: Append) -> None:
        """Write a batch: see the module. *append* writes what it is given to the journal.

        Raises: as MessageStore.write. Cancellation: as there; a write in progress goes on.
        """
        plain = moves_apart(operations)
        by_name: dict[str, list[Item]] = {}
        for item in plain:
            if type(item) is AddMessage and (name := self._name_of(item.message)):
                message = item.message
                record = item_of(item.sequence, encode(message), len(message.body))
                by_name.setdefault(name, []).append(record)
        if not by_name:
            await append(operations)
            return
        # shield: nothing else may write to a file while a thread does.
        await asyncio.shield(self._spawn(self._write(plain, by_name, append)))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        _ = task.cancelled() or task.exception()  # the waiting caller was told

    async def _write(
        self,
        operations: Sequence[Operation | AddReference],
        by_name: dict[str, list[Item]],
        append: Append,
    ) -> None:
        if self.room.is_short:
            await self.room.require()
        if self.keep_bound is not None and self.grown_bytes >= self.files.file_length // 2:
            await self.keep_bound()
        async with self.lock:
            try:
                places = await self.place("tail", by_name, synced=self._is_synced)
                await append([self._referred(operation, places) for operation in operations])
            finally:
                self.let_go("tail")

    def _referred(
        self, operation: Operation | AddReference, places: dict[int, int]
    ) -> Operation | AddReference:
        if type(operation) is not AddMessage or operation.sequence not in places:
            return operation
        lists = operation.pending_lists
        place = places[operation.sequence] | (SHARED_BIT if len(lists) > 1 else 0)
        return AddReference(operation.sequence, place, lists, self._is_synced)

    def _name_of(self, message: Message) -> str:
        """The directory of its destination; "" if none, or if the body has its own file."""
        if message.large is not None:
            return ""
        destination = message.destination
        name = self._names.get(destination)
        if name is None:
            if len(self._names) >= _KNOWN_MAX:
                self._names.clear()
            is_covered = covers(self._filters, destination)
            name = self._names[destination] = folder_name(destination) if is_covered else ""
        return name

    async def place(
        self, key: str, by_name: dict[str, list[Item]], *, synced: bool
    ) -> dict[int, int]:
        """Append records to directories. Returns: locations by sequence.

        The files stay until :meth:`let_go`, or until the same *key* comes again. Raises: StoreFullError, StoreUnavailableError, StoreIOError.
        """
        jobs: list[Job] = []
        pinned = self._pinned[key] = set()
        try:
            limit = self.options.max_record_size
            for name, items in by_name.items():
                small = [item for item in items if len(item[1]) <= limit]
                if small:
                    jobs.append(await self._plan(name, key, small))
                for item in items:
                    if len(item[1]) > limit:
                        jobs.append(await self._plan(name, "", [item]))
            pinned |= {job.file.file_id for job in jobs}
            for begin in range(0, len(jobs), _JOBS_MAX):
                await self._carry_out(jobs[begin : begin + _JOBS_MAX], synced=synced)
        except OSError as error:
            answer = store_error("the messages of a batch cannot be written", error)
            if error.errno in FULL_ERRNOS:
                self.room.report_full()
            elif not answer.retryable:
                self.fail(error)
            raise answer from error
        return {sequence: place for job in jobs for sequence, place in job.places.items()}

    def let_go(self, key: str) -> None:
        """Unpin: the placed records are referenced now, or never will be."""
        self._pinned.pop(key, None)

    async def _plan(self, name: str, key: str, items: Sequence[Item]) -> Job:
        directory = self._directory(name)
        directory.is_used = True
        size = BATCH_HEADER_BYTES + sum([len(record) for _, record, _ in items])
        spot = directory.spots.get(key)
        length = self.files.file_length
        if spot is not None and spot.end + size <= length:
            job = Job(directory, key, spot)
        else:
            dead_bytes = sum(file.length for file in self._dead_in(directory))
            if not directory.pool and dead_bytes * 2 >= length:
                await self._get_back()
            job = Job.in_new_file(
                directory,
                key,
                store_id=self.store_id,
                file_id=self.files.new_id(),
                length=max(length if key else 0, size + DATA_OFFSET),
            )
        room = length if self.keep_bound is None else length // 2 - self.grown_bytes
        job.put(items, growth_max=max(0, min(room, length - job.spot.end)) if key else 0)
        return job

    async def _get_back(self) -> None:
        """The disk does not grow while something is dead."""
        try:
            await self.checkpoint()
        except (OSError, StoreError) as error:
            logger.warning("dead files wait for a checkpoint that failed error=%s", error)

    async def _carry_out(self, jobs: Sequence[Job], *, synced: bool) -> None:
        """Raises: OSError, once all have ended; what was written stays, unreferenced."""
        loop = asyncio.get_running_loop()
        count = min(len(jobs), _THREADS)
        parts = [partial(carry_out, jobs[begin::count], synced=synced) for begin in range(count)]
        with self.files.lent([job.file for job in jobs if not job.is_new_file]):
            await asyncio.gather(*(loop.run_in_executor(self._pool, part) for part in parts))
        for job in jobs:
            if job.error is None:
                self._took_place(job, synced=synced)
        self.files.close_surplus()
        errors = [job.error for job in jobs if job.error is not None]
        if errors:
            raise min(errors, key=lambda error: error.errno in FULL_ERRNOS | NO_HANDLE_ERRNOS)
        is_periodic = not synced and self.options.sync_strategy == PERIODIC
        if is_periodic and self._timer is None:
            delay = self.options.journal_disk_sync_interval
            self._timer = loop.call_later(delay, self._sync_soon)

    def _took_place(self, job: Job, *, synced: bool) -> None:
        directory, file = job.directory, job.file
        if job.is_new_file:
            directory.is_made = True
            self.files.add(file)
            self.files.retire(file)
        elif not synced:
            self._unsynced[file.file_id] = file
        if job.key:
            directory.spots[job.key] = job.spot
        grown = job.end - file.length
        if grown > 0:
            file.length += grown
            self.grown_bytes += grown

    # ---------------------------------------------------------------------------- syncing

    def _sync_soon(self) -> None:
        self._timer = None
        self._spawn(self.sync())

    def mark_unsynced(self, file_ids: Iterable[int]) -> None:
        """Note files whose replayed records may only be in the system's cache."""
        for file_id in file_ids:
            if (file := self.files.get(file_id)) is not None:
                self._unsynced[file_id] = file

    async def sync(self) -> None:
        """Return when all records are on stable storage. Raises: StoreUnavailableError, StoreIOError."""
        async with self._syncing:  # no caller returns while another still syncs what it needs
            while self._unsynced:
                await self._sync_some([*islice(self._unsynced.values(), _JOBS_MAX)])

    async def _sync_some(self, files: Sequence[DataFile]) -> None:
        loop = asyncio.get_running_loop()
        try:
            with self.files.lent(files) as handles:
                for file in files:
                    del self._unsynced[file.file_id]
                results = await asyncio.gather(
                    *(loop.run_in_executor(self._pool, handle.datasync) for handle in handles),
                    return_exceptions=True,
                )
        except BaseException as error:
            self._unsynced.update({file.file_id: file for file in files})
            if isinstance(error, OSError):
                raise store_error("a data file cannot be opened", error) from error
            raise
        for file, result in zip(files, results, strict=True):
            if isinstance(result, BaseException):
                self.fail(result)
                raise StoreIOError(f"{file.home.describe(file.name)}: {result}") from result

    # ----------------------------------------------------------------------------- room

    def _dead(self) -> Sequence[DataFile]:
        return [file for item in self.directories.values() for file in self._dead_in(item)]

    def _dead_in(self, directory: Directory) -> list[DataFile]:
        spots = {spot.file.file_id for spot in directory.spots.values()}
        busy = spots.union(*self._pinned.values())
        living = self.index.references_to
        return [f for key, f in directory.files.items() if key not in busy and not living(key)]

    async def drop_pool(self, directory: Directory, *, keeps_bytes: int = 0) -> None:
        """Delete dead files of a directory until they have no more than *keeps_bytes*."""
        pool, names = directory.pool, list[str]()
        while pool and (not keeps_bytes or sum(length for _, length in pool) > keeps_bytes):
            names.append(pool.pop()[0])
        if names:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, directory.delete, names)

    async def remove(self, directory: Directory) -> None:
        """Remove an empty directory. Raises: OSError."""
        del self.directories[directory.name], self.files.homes[directory.name]
        await self.drop_pool(directory)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._folders.remove, directory.name)

    async def until_idle(self) -> None:
        """Wait until no batch is in progress (its caller may have been cancelled)."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Finish everything in progress, and empty the pools."""
        await self.until_idle()
        if self.options.message_cleanup:
            loop = asyncio.get_running_loop()
            try:
                for directory in self.directories.values():
                    await loop.run_in_executor(self._pool, directory.empty_pool)
            except OSError as error:
                logger.warning("dead files cannot be emptied error=%s", error)
        self._pool.shutdown()
