"""Directories of destinations: messages there, references to them in the journal.

A directory is a series of ordinary data files. A batch, however many destinations it touches, is
atomic:

1. Each message is appended to the tail file of its destination, and those files are synced, all at
   once. Nothing refers to these records yet: a crash leaves room, and nothing else.
2. The batch goes to the journal, with references in place of the messages. From here on they are
   there, all or none; the index knows them by the data file that they lie in, as it does all others.
3. A file in which nothing lives is put away after a checkpoint, like all others.

So everything that must be one for all destinations stays in the journal, and what is done with data
files is done with these. Methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidegate.spi import (
    AddMessage,
    Discard,
    DiscardReason,
    Message,
    Move,
    Operation,
    StoreError,
    StoreIOError,
    store_error,
)
from tidegate_store_journal.bodies.directory import (
    Directory,
    Item,
    Job,
    carry_out,
    delete,
    item_of,
    put_away,
)
from tidegate_store_journal.bodies.folders import Folders, Found, covers, folder_name
from tidegate_store_journal.index.effects import AddReference
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.files import FULL_ERRNOS, DataFiles, Elsewhere
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    SHARED_BIT,
    encode,
)
from tidegate_store_journal.log.storage import Storage

logger = logging.getLogger("tidegate.store.journal")

#: Syncs under way at once: a disk carries many out together, and a batch waits for the slowest. They
#: are ours alone, so that nothing of a checkpoint stands in front of them.
_THREADS: Final = 32
#: No room on the disk, or no descriptors: nothing took effect, and it may go well later.
_RETRYABLE: Final = FULL_ERRNOS | {errno.EMFILE, errno.ENFILE}
#: Files that are written to at once: each has a descriptor.
_JOBS_MAX: Final = 256
#: Destinations whose directory is remembered; of others the name is made again.
_KNOWN_MAX: Final = 100_000

Append = Callable[[Sequence[Operation | AddReference]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SeriesPolicy:
    """Attributes:
    filters: destinations that have a directory. file_length: of a file, at most, unless one message
        is longer. record_bytes_max: a longer message has a file of its own.
    pool_limit: dead files that a directory keeps. clean_percent: how many of those are emptied.
    cleans_up: all of them, when the store is closed.
    sync: every batch is on disk before it is confirmed. sync_seconds: else, how often; 0: never.
    """

    filters: Sequence[str]
    file_length: int
    record_bytes_max: int
    pool_limit: int
    clean_percent: int
    cleans_up: bool
    sync: bool
    sync_seconds: float


class Series(Elsewhere):
    """See the module; it is between the store's surface and the appender, and ``Elsewhere``."""

    def __init__(
        self,
        storage: Storage,
        found: Found,
        files: DataFiles,
        index: Index,
        policy: SeriesPolicy,
        *,
        store_id: str,
        require_room: Callable[[], Awaitable[None]],
        checkpoint: Callable[[], Awaitable[object]],
        report_full: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """*require_room*: raises StoreFullError. *checkpoint*: a cleanup, too. *report_full*: the
        disk is full. *fail*: it is broken."""
        self.policy = policy
        self.lock = asyncio.Lock()  # one batch at a time is between its records and its references
        self.directories: dict[str, Directory] = {}
        #: By how much directories grew since somebody looked at their bound, and who looks.
        self.grown_bytes = 0
        self.keep_bound: Callable[[], Awaitable[None]] | None = None
        self._files = files
        self._index = index
        self._store_id = store_id
        self._require_room = require_room
        self._checkpoint = checkpoint
        self._report_full = report_full
        self._fail = fail
        self._pool = ThreadPoolExecutor(_THREADS, "tidegate-journal-directories")
        self._folders = Folders(storage)
        self._by_id = found.files
        self._names: dict[str, str] = {}  # of directories, by destination; "" for none
        self._unsynced: dict[int, DataFile] = {}
        self._syncing = asyncio.Lock()
        self._pinned: dict[str, set[int]] = {}  # written, but their batch is not yet
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for name, pool in found.pools.items():
            directory = Directory(name, self._folders.get(name), is_made=True)
            directory.pool = pool
            self.directories[name] = directory
        for file in found.files.values():
            self.directories[file.folder].files[file.file_id] = file

    # ---------------------------------------------------------------------------- writing

    @property
    def is_active(self) -> bool:
        """Batches have to pass here."""
        return bool(self.policy.filters)

    async def write(self, operations: Sequence[Operation], append: Append) -> None:
        """Write a batch: see the module. *append* writes what it is given to the journal.

        Raises: as MessageStore.write. Cancellation: as there; what was begun goes on.
        """
        wanted: list[tuple[str, int, Message]] = []
        for operation in operations:
            if type(operation) is AddMessage:
                sequence, message = operation.sequence, operation.message
            elif type(operation) is Move:
                sequence, message = operation.target_sequence, operation.message
            else:
                continue
            # The body of a large one has a file of its own.
            if message.large is None and (name := self._name_of(message.destination)):
                wanted.append((name, sequence, message))
        if not wanted:
            await append(operations)
            return
        # shield: nobody else may write to a file while a thread does.
        await asyncio.shield(self._spawn(self._write(operations, wanted, append)))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited was told

    async def _write(
        self,
        operations: Sequence[Operation],
        wanted: Sequence[tuple[str, int, Message]],
        append: Append,
    ) -> None:
        await self._require_room()
        if self.keep_bound is not None and self.grown_bytes >= self.policy.file_length // 2:
            await self.keep_bound()
        async with self.lock:
            by_name: dict[str, list[Item]] = {}
            for name, sequence, message in wanted:
                item = item_of(sequence, encode(message), len(message.body))
                by_name.setdefault(name, []).append(item)
            try:
                places = await self.place("tail", by_name, synced=self.policy.sync)
                await append(self._with_references(operations, places))
            finally:
                self.let_go("tail")

    def _with_references(
        self, operations: Sequence[Operation], places: dict[int, int]
    ) -> list[Operation | AddReference]:
        """A move becomes what it is: one message leaves, another one comes."""
        result: list[Operation | AddReference] = []
        synced = self.policy.sync
        for operation in operations:
            if type(operation) is AddMessage and operation.sequence in places:
                sequence, lists = operation.sequence, operation.pending_lists
            elif type(operation) is Move and operation.target_sequence in places:
                gone = Discard(operation.pending_list, (operation.sequence,), DiscardReason.DROPPED)
                result.append(gone)
                sequence, lists = operation.target_sequence, (operation.target_list,)
            else:
                result.append(operation)
                continue
            place = places[sequence] | (SHARED_BIT if len(lists) > 1 else 0)
            result.append(AddReference(sequence, place, lists, synced))
        return result

    def _name_of(self, destination: str) -> str:
        """The directory of the destination; "": it has none."""
        name = self._names.get(destination)
        if name is None:
            if len(self._names) >= _KNOWN_MAX:
                self._names.clear()
            is_covered = covers(self.policy.filters, destination)
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
            limit = self.policy.record_bytes_max
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
                self._report_full()
            elif not answer.retryable:
                self._fail(error)
            raise answer from error
        return {sequence: place for job in jobs for sequence, place in job.places.items()}

    def let_go(self, key: str) -> None:
        """What was placed is referred to now, or never will be."""
        self._pinned.pop(key, None)

    async def _plan(self, name: str, key: str, items: Sequence[Item]) -> Job:
        directory = self.directories.get(name)
        if directory is None:
            directory = Directory(name, self._folders.get(name), is_made=False)
            self.directories[name] = directory
        directory.is_used = True
        size = BATCH_HEADER_BYTES + sum([len(record) for _, record, _ in items])
        spot = directory.spots.get(key)
        length = self.policy.file_length
        if spot is not None and spot.end + size <= length:
            job = Job(directory, key, spot)
        else:
            if not directory.pool and self._dead_bytes(directory) * 2 >= length:
                await self._get_back()
            job = Job.in_new_file(
                directory,
                key,
                store_id=self._store_id,
                file_id=self._files.new_id(),
                length=max(length if key else 0, size + DATA_OFFSET),
                make=lambda: self._folders.make(name),
            )
        room = length if self.keep_bound is None else length // 2 - self.grown_bytes
        job.put(items, growth_max=max(0, min(room, length - job.spot.end)) if key else 0)
        return job

    async def _get_back(self) -> None:
        """The disk does not grow while something is dead."""
        try:
            await self._checkpoint()
        except (OSError, StoreError) as error:
            logger.warning("dead files wait for a checkpoint that failed error=%s", error)

    async def _carry_out(self, jobs: Sequence[Job], *, synced: bool) -> None:
        """Raises: OSError, when all have ended; what went well stays, and nothing refers to it."""
        loop = asyncio.get_running_loop()
        count = min(len(jobs), _THREADS)
        with self._files.lent([job.file for job in jobs if not job.is_new_file]):
            await asyncio.gather(
                *(
                    loop.run_in_executor(
                        self._pool, lambda part=jobs[begin::count]: carry_out(part, synced=synced)
                    )
                    for begin in range(count)
                )
            )
        for job in jobs:
            if job.error is None:
                self._took_place(job, synced=synced)
        self._files.close_surplus()
        errors = [job.error for job in jobs if job.error is not None]
        if errors:
            raise min(errors, key=lambda error: error.errno in _RETRYABLE)
        if not synced and self.policy.sync_seconds and self._timer is None:
            self._timer = loop.call_later(self.policy.sync_seconds, self._sync_soon)

    def _took_place(self, job: Job, *, synced: bool) -> None:
        directory, file = job.directory, job.file
        if job.is_new_file:
            directory.is_made = True
            directory.files[file.file_id] = self._by_id[file.file_id] = file
            self._files.retire(file)
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

    def mark_unsynced(self, file_ids: Container[int]) -> None:
        """What replay found in these files may be in the system's cache only."""
        self._unsynced.update({key: file for key, file in self._by_id.items() if key in file_ids})

    async def sync(self) -> None:
        """Return when all records are on stable storage. Raises: StoreUnavailableError, StoreIOError."""
        async with self._syncing:  # nobody returns while another one still syncs what he needs
            while self._unsynced:
                await self._sync_some([*islice(self._unsynced.values(), _JOBS_MAX)])

    async def _sync_some(self, files: Sequence[DataFile]) -> None:
        loop = asyncio.get_running_loop()
        try:
            with self._files.lent(files) as handles:
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
                self._fail(result)
                raise StoreIOError(f"{file.home.describe(file.name)}: {result}") from result

    # -------------------------------------------------------------------- see files.Elsewhere

    def get(self, file_id: int) -> DataFile | None:
        """See Elsewhere."""
        return self._by_id.get(file_id)

    def staying(self) -> Collection[int]:
        """See Elsewhere."""
        return self._by_id.keys()

    def dead(self) -> Sequence[DataFile]:
        """See Elsewhere."""
        return [file for item in self.directories.values() for file in self._dead_in(item)]

    def _dead_in(self, directory: Directory) -> list[DataFile]:
        busy = {spot.file.file_id for spot in directory.spots.values()}.union(
            *self._pinned.values()
        )
        uses = self._index.files
        return [
            file
            for file_id, file in directory.files.items()
            if file_id not in busy and (file_id not in uses or not uses[file_id].references)
        ]

    def _dead_bytes(self, directory: Directory) -> int:
        return sum(file.length for file in self._dead_in(directory))

    async def dispose(self, files: Sequence[DataFile]) -> None:
        """See Elsewhere: into the pools of their directories, or away."""
        parts: dict[str, list[DataFile]] = {}
        for file in files:
            parts.setdefault(file.folder, []).append(file)
        results = await asyncio.gather(
            *(self._dispose_in(self.directories[name], part) for name, part in parts.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _dispose_in(self, directory: Directory, files: Sequence[DataFile]) -> None:
        policy = self.policy
        kept: list[tuple[str, int]] = []
        for file in files:
            free = _format.free_name(file.file_id)
            pool = [*directory.pool, *kept]
            if len(pool) < policy.pool_limit:
                emptied = sum(not length for _, length in pool)
                is_emptied = (emptied + 1) * 100 <= policy.clean_percent * (len(pool) + 1)
                kept.append((free, 0 if is_emptied else file.length))
            self.forget(file)
        await asyncio.get_running_loop().run_in_executor(
            self._pool, put_away, directory.home, files, dict(kept)
        )
        directory.pool += kept

    def forget(self, file: DataFile) -> None:
        """Close a file that is not ours any more."""
        del self._by_id[file.file_id]
        del self.directories[file.folder].files[file.file_id]
        self._unsynced.pop(file.file_id, None)
        self._files.forget(file)

    async def drop_pool(self, directory: Directory, *, keeps_bytes: int = 0) -> None:
        """Delete dead files of a directory until they have no more than *keeps_bytes*."""
        names: list[str] = []
        while sum(length for _, length in directory.pool) > keeps_bytes or (
            directory.pool and not keeps_bytes
        ):
            names.append(directory.pool.pop()[0])
        if names:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, delete, directory.home, names)

    async def remove(self, directory: Directory) -> None:
        """Nothing is in it any more. Raises: OSError."""
        del self.directories[directory.name]
        await self.drop_pool(directory)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._folders.remove, directory.name)

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files in all directories."""
        return sum(directory.disk_bytes for directory in self.directories.values())

    async def until_idle(self) -> None:
        """Wait until no batch is under way (who wrote it may have been cancelled)."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """See Elsewhere. What is under way goes on to its end."""
        await self.until_idle()
        for file in self._by_id.values():
            file.close()
        if self.policy.cleans_up:
            try:
                await asyncio.get_running_loop().run_in_executor(self._pool, self._empty_pools)
            except OSError as error:
                logger.warning("dead files cannot be emptied error=%s", error)
        self._pool.shutdown()

    def _empty_pools(self) -> None:
        """In a thread."""
        for directory in self.directories.values():
            for name, length in directory.pool:
                if length:
                    directory.home.open(name, create=True).close()
