"""The per-destination layout: bodies in a directory of their destination, references in the journal.

Order of a batch, which is atomic however many destinations it touches:

1. Each message is written to the record file of its destination, and those files are synced, all
   at once. Nothing refers to these records yet; a crash leaves room, and nothing else.
2. The batch goes to the journal, with references in place of the messages. From here on they are
   there, all or none.
3. When nothing refers to a message any more *and that is on disk*, its blocks may be written again.

So everything that must be one for all destinations (the order, the acknowledged log, sessions,
subscriptions, sequences) stays in the journal, and the record files are only a place for bytes.
Methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidegate.spi import (
    AddMessage,
    Message,
    Move,
    Operation,
    StoreFullError,
    StoreIOError,
)
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.files import FULL_ERRNOS
from tidegate_store_journal.log.format import MASK_32, encode
from tidegate_store_journal.split import records as _records
from tidegate_store_journal.split.folders import (
    Folders,
    covers,
    folder_name,
    keep_copy,
    lost_error,
)
from tidegate_store_journal.split.places import Places
from tidegate_store_journal.split.recordfolder import (
    GROW_BYTES_MAX,
    RECORD_FILE,
    Handle,
    Job,
    PoolPolicy,
    RecordFolder,
    clean_up,
    create,
    dispose,
    single_name,
    sync_folders,
)
from tidegate_store_journal.split.records import BLOCK_BYTES, Place, folder_of, unpack_place
from tidegate_store_journal.split.reference import (
    AddReference,
    decode_reference,
    encode_reference,
    with_references,
)
from tidegate_store_journal.split.space import Space
from tidegate_store_journal.split.splitopen import Found
from tidegate_store_journal.split.splitread import Piece, read_pieces

logger = logging.getLogger("tidegate.store.journal")

#: Record files that are open at a time.
_OPEN_FILES_MAX: Final = 64
#: Destinations whose directory is remembered; more are looked up again.
_KNOWN_MAX: Final = 100_000

Append = Callable[[Sequence[Operation | AddReference]], Awaitable[None]]


class Inner(Protocol):
    """Reads what is in the journal itself."""

    async def read(self, wanted: Sequence[tuple[int, int]]) -> list[Message]: ...


@dataclass(slots=True)
class SplitPolicy:
    """Attributes:
    filters: destinations that have a directory. record_bytes_max: see ``max_record_size``.
    sync: every batch is on disk before it is confirmed. sync_seconds: else, how often; 0 never.
    growth_bytes: record files may grow by so much, beyond what is needed, between two looks at
        their bound.
    """

    filters: Sequence[str]
    record_bytes_max: int
    pool: PoolPolicy
    sync: bool
    sync_seconds: float
    growth_bytes: int


@dataclass(slots=True)
class _Freed:
    """Messages that nothing refers to any more, until that is durable and nobody reads them."""

    batch: int
    released: int
    ticket: int
    entries: list[tuple[int, int]]


class Split:
    """See the module; it is between the store's surface and the appender."""

    def __init__(
        self,
        folders: Folders,
        found: Found,
        index: Index,
        inner: Inner,
        policy: SplitPolicy,
        workers: Executor,
        readers: Executor,
        *,
        store_id: str,
        is_durable: Callable[[int, int], bool],
        require_room: Callable[[], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """*is_durable*: the batch with this number is on disk, and so is that rows up to the other
        number are released. *require_room*: raises StoreFullError. *fail*: the disk is broken."""
        self._folders = folders
        self._index = index
        self._inner = inner
        self._policy = policy
        self._workers = workers
        self._readers = readers
        self._store_id = store_id
        self._is_durable = is_durable
        self._require_room = require_room
        self._fail = fail
        self._places: Places = found.places
        self._next_write = found.last_write + 1
        self._by_number = {folder.number: folder for folder in found.folders}
        self._numbers = itertools.count(len(found.folders) + 1)
        self._by_destination = {folder.header.destination: folder for folder in found.folders}
        self._is_split: dict[str, bool] = {}
        self.lock = asyncio.Lock()
        self._jobs: set[asyncio.Future[Any]] = set()
        self._limbo: deque[_Freed] = deque()
        self._tickets = itertools.count(1)
        self._reading: dict[int, None] = {}  # tickets of reads under way, in order
        self._open: OrderedDict[int, RecordFolder] = OrderedDict()
        self._sync_timer: asyncio.TimerHandle | None = None
        self._freed: list[Iterable[int]] = []
        self._held = 0  # number of the directory that is being copied
        self._held_back: list[_Freed] = []
        self._later: list[tuple[int, int]] = []  # written since it is
        #: By how much record files grew since somebody looked at their bound, and who looks.
        self.grown_bytes = 0
        self.keep_bound: Callable[[], Awaitable[None]] | None = None
        self._kept: dict[int, str] = {}  # copies of damaged records, by sequence
        if self.is_active:
            index.on_freed = self._freed.append

    # ---------------------------------------------------------------------------- writing

    @property
    def is_active(self) -> bool:
        """Batches have to pass here: something is, or is to be, in a directory."""
        return bool(self._policy.filters or self._by_number)

    async def write(self, operations: Sequence[Operation], append: Append) -> None:
        """Write a batch: see the module. *append* writes what it is given to the journal.

        Raises: as MessageStore.write. Cancellation: as there.
        """
        if (self._freed or self._limbo) and not self.lock.locked():
            self.collect()
        wanted = [
            operation
            for operation in operations
            if (type(operation) is AddMessage or type(operation) is Move)
            and operation.message.large is None  # its body has a file of its own
            and self._has_folder(operation.message.destination)
        ]
        if not wanted:
            await append(operations)
            return
        await self._require_room()
        if self.keep_bound is not None and self.grown_bytes >= self._policy.growth_bytes:
            await self.keep_bound()
        async with self.lock:
            await self._write(operations, wanted, append, sync=self._policy.sync)

    async def _write(
        self,
        operations: Sequence[Operation],
        wanted: Sequence[AddMessage | Move],
        append: Append,
        *,
        sync: bool,
    ) -> None:
        references, placed, jobs = await self._place(wanted, sync=sync)
        try:
            await self._carry_out(jobs)
        except OSError as error:
            self._give_back(placed)
            if error.errno in FULL_ERRNOS:
                raise StoreFullError(f"no room for the messages of a batch: {error}") from error
            self._fail(error)
            raise StoreIOError(f"the messages of a batch cannot be written: {error}") from error
        put = self._places.put
        for sequence, place in placed:
            put(sequence, place)
        if self._held:
            self._later += placed
        try:
            await append(with_references(operations, references))
        except (StoreIOError, asyncio.CancelledError):
            raise  # nobody knows whether the batch is there: its records stay
        except BaseException:
            for sequence, _ in placed:
                self._places.pop(sequence)
            self._give_back(placed)
            raise
        self._places.seal()

    async def _place(
        self, wanted: Sequence[AddMessage | Move], *, sync: bool
    ) -> tuple[dict[int, AddReference], list[tuple[int, int]], list[Job]]:
        """Encode the messages and find room for them; nothing is written yet."""
        records: dict[RecordFolder, list[tuple[int, bytes, int]]] = {}
        references: dict[int, AddReference] = {}
        for operation in wanted:
            message = operation.message
            folder = self._by_destination.get(message.destination)
            if folder is None:
                folder = await self._make_folder(message.destination)
            if type(operation) is Move:
                sequence, lists = operation.target_sequence, (operation.target_list,)
            else:
                assert type(operation) is AddMessage
                sequence, lists = operation.sequence, operation.pending_lists
            write = self._next_write
            self._next_write += 1
            body_bytes = len(message.body)
            record = _records.encode_record(
                folder.header.seed, sequence, write, encode(message), body_bytes
            )
            records.setdefault(folder, []).append((sequence, record, body_bytes))
            value = encode_reference(
                message.destination,
                write,
                body_bytes,
                synced=sync,
                single=len(record) - _records.RECORD_HEADER_BYTES > self._policy.record_bytes_max,
            )
            references[sequence] = AddReference(sequence, value, body_bytes, lists)
        jobs: list[Job] = []
        placed: list[tuple[int, int]] = []
        try:
            for folder, items in records.items():
                job = folder.job(sync=sync)
                self._touch(folder)
                jobs.append(job)
                before = folder.record_file_bytes
                placed += folder.place(job, items, self._policy.record_bytes_max, self._slack)
                self.grown_bytes += folder.record_file_bytes - before
        except OSError as error:
            self._give_back(placed)
            for job in jobs:
                job.handle.give_back()
            raise StoreIOError(f"a record file cannot be opened: {error}") from error
        return references, placed, jobs

    @property
    def _slack(self) -> int:
        if self.keep_bound is None:
            return GROW_BYTES_MAX
        return max(0, self._policy.growth_bytes - self.grown_bytes)

    async def _carry_out(self, jobs: Sequence[Job]) -> None:
        """Run all jobs at once. Raises: OSError, when all have ended.

        Cancellation: what a thread has begun goes on; its records are room after the next start.
        """
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[object]] = []
        for job in jobs:
            future: asyncio.Future[object] = loop.run_in_executor(self._workers, job.run)
            self._jobs.add(future)
            future.add_done_callback(self._jobs.discard)
            future.add_done_callback(lambda _, handle=job.handle: handle.give_back())
            futures.append(future)
            if not job.sync:
                job.folder.unsynced = True
                job.folder.unsynced_singles.update(name for name, _, _ in job.singles)
        for result in await asyncio.shield(asyncio.gather(*futures, return_exceptions=True)):
            if isinstance(result, BaseException):
                raise result
        if not self._policy.sync and self._policy.sync_seconds and self._sync_timer is None:
            self._sync_timer = loop.call_later(self._policy.sync_seconds, self._sync_soon)

    def _has_folder(self, destination: str) -> bool:
        """The messages of the destination go to a directory of its own."""
        is_split = self._is_split.get(destination)
        if is_split is None:
            if len(self._is_split) >= _KNOWN_MAX:
                self._is_split.clear()
            is_split = self._is_split[destination] = covers(self._policy.filters, destination)
        return is_split

    async def _make_folder(self, destination: str) -> RecordFolder:
        name = folder_name(destination)
        loop = asyncio.get_running_loop()
        try:
            files = await loop.run_in_executor(self._workers, self._folders.make, name)
            header = await loop.run_in_executor(
                self._workers, create, files, self._store_id, destination
            )
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise StoreFullError(
                    f"no room for a directory of {destination}: {error}"
                ) from error
            raise StoreIOError(f"cannot make a directory for {destination}: {error}") from error
        folder = RecordFolder(next(self._numbers), name, files, header, self._policy.pool)
        self.grown_bytes += folder.record_file_bytes
        self._by_number[folder.number] = folder
        self._by_destination[destination] = folder
        return folder

    def _give_back(self, placed: Iterable[tuple[int, int]]) -> None:
        """Nothing can refer to these records: their blocks are free."""
        disposals: list[tuple[RecordFolder, int, str]] = []
        for _, value in placed:
            place = unpack_place(value)
            folder = self._by_number[place.folder]
            disposal = folder.give_back(place)
            if disposal:
                disposals.append((folder, place.number, disposal))
        if disposals:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[object] = loop.run_in_executor(self._workers, dispose, disposals)
            self._jobs.add(future)

            def done(_: object) -> None:
                self._jobs.discard(future)
                error = future.exception()
                if error is not None:
                    logger.warning("cannot put away files of single messages error=%s", error)
                    return
                for folder, number, disposal in disposals:
                    if disposal == "empty":
                        folder.emptied(number)

            future.add_done_callback(done)

    # ---------------------------------------------------------------------------- freeing

    def collect(self) -> None:
        """Take note of what was freed, and free what is safe by now."""
        if self._freed:
            pop = self._places.pop
            entries: list[tuple[int, int]] = []
            for sequences in self._freed:
                for sequence in sequences:
                    place = pop(sequence)
                    if place is not None:
                        entries.append((sequence, place))
            self._freed.clear()
            if entries:
                index = self._index
                ticket = next(self._tickets)
                self._limbo.append(_Freed(index.batch, index.log.released, ticket, entries))
        limbo = self._limbo
        while limbo:
            freed = limbo[0]
            if not self._is_durable(freed.batch, freed.released):
                return
            if self._reading and next(iter(self._reading)) < freed.ticket:
                return  # a page that was asked for before is being read
            limbo.popleft()
            entries = freed.entries
            if self._held:
                mine = [item for item in entries if folder_of(item[1]) == self._held]
                if mine:
                    freed.entries = mine
                    self._held_back.append(freed)
                    entries = [item for item in entries if folder_of(item[1]) != self._held]
            self._give_back(entries)

    # ---------------------------------------------------------------------------- reading

    async def read(self, wanted: Sequence[tuple[int, int]]) -> list[Message]:
        """The messages at (sequence, location in the journal), in the order of *wanted*.

        Raises: CorruptRecordError, StoreIOError. Cancellation: safe.
        """
        get = self._places.get if len(self._places) else None
        places = [get(sequence) if get is not None else None for sequence, _ in wanted]
        others = [item for item, place in zip(wanted, places, strict=True) if place is None]
        messages = iter(await self._read_inner(others) if others else ())
        if len(others) == len(wanted):
            return list(messages)
        mine = [
            (sequence, place)
            for (sequence, _), place in zip(wanted, places, strict=True)
            if place is not None
        ]
        read = iter(await self.read_places(mine))
        return [next(messages) if place is None else next(read) for place in places]

    async def _read_inner(self, wanted: Sequence[tuple[int, int]]) -> list[Message]:
        messages = await self._inner.read(wanted)
        for (sequence, location), message in zip(wanted, messages, strict=True):
            reference = decode_reference(message, location & MASK_32)
            if reference is not None:
                raise lost_error(self._folders, reference.destination, [sequence])
        return messages

    async def read_places(self, wanted: Sequence[tuple[int, int]]) -> list[Message]:
        """As :meth:`read` for (sequence, place)."""
        ticket = next(self._tickets)
        self._reading[ticket] = None
        handles: list[Handle] = []
        pieces: list[Piece] = []
        loop = asyncio.get_running_loop()

        def done(_: object = None) -> None:
            self._reading.pop(ticket, None)
            for handle in handles:
                handle.give_back()

        try:
            for number, (sequence, value) in enumerate(wanted):
                place = unpack_place(value)
                if not pieces or not pieces[-1].takes(place):
                    folder = self._by_number[place.folder]
                    handle = folder.borrow()
                    handles.append(handle)
                    self._touch(folder)
                    pieces.append(Piece(folder, handle, folder.header.seed, place))
                pieces[-1].add(number, sequence, place)
        except OSError as error:
            done()
            raise StoreIOError(f"a record file cannot be opened: {error}") from error
        future = loop.run_in_executor(self._readers, read_pieces, pieces, len(wanted))
        future.add_done_callback(done)
        # shield: cancelling an executor's future would call done while the thread reads.
        return await asyncio.shield(future)

    async def keep_damaged(self, sequence: int) -> str:
        """Copy the record of a message aside, because its room is used again when it is dropped.

        Returns: how to name the copy; "" when the message is not in a directory. Raises: OSError.
        """
        value = self._places.get(sequence)
        if value is None:
            return ""
        kept = self._kept.get(sequence)
        if kept is None:
            place = unpack_place(value)
            folder = self._by_number[place.folder]
            name, offset = RECORD_FILE, folder.header.data_offset + place.number * BLOCK_BYTES
            if place.single:
                name, offset = single_name(place.number), 0
            size = _records.RECORD_HEADER_BYTES + place.payload_bytes
            kept = self._kept[sequence] = await asyncio.get_running_loop().run_in_executor(
                self._workers, keep_copy, folder.files, name, offset, size
            )
        return kept

    def _touch(self, folder: RecordFolder) -> None:
        """Its record file is open; close those that were not used for longest."""
        opened = self._open
        opened[folder.number] = folder
        opened.move_to_end(folder.number)
        if len(opened) <= _OPEN_FILES_MAX:
            return
        for other in list(opened.values())[: len(opened) - _OPEN_FILES_MAX]:
            if other.handle is None or (not other.handle.users and not other.unsynced):
                del opened[other.number]
                if other.handle is not None:
                    other.handle.retire()
                    other.handle = None

    # ---------------------------------------------------------------------------- syncing

    async def sync(self) -> None:
        """Return when everything written so far is on disk. Raises: OSError."""
        folders = [folder for folder in self._by_number.values() if folder.unsynced]
        if not folders:
            return
        work: list[tuple[RecordFolder, Handle, list[str]]] = []
        for folder in folders:
            work.append((folder, folder.borrow(), sorted(folder.unsynced_singles)))
            folder.unsynced = False
            folder.unsynced_singles.clear()
        try:
            await asyncio.shield(
                asyncio.get_running_loop().run_in_executor(self._workers, sync_folders, work)
            )
        except OSError as error:
            # As for the journal: after a failed sync a second one would prove nothing.
            self._fail(error)
            raise
        finally:
            for _, handle, _ in work:
                handle.give_back()

    def _sync_soon(self) -> None:
        self._sync_timer = None
        task = asyncio.get_running_loop().create_task(self.sync())
        self._jobs.add(task)

        def done(_: object) -> None:
            self._jobs.discard(task)
            error = task.exception()
            if error is not None:
                self._fail(error)

        task.add_done_callback(done)

    # ------------------------------------------------------------- for tidying, see _splittidy

    def hold(self, folder: RecordFolder) -> None:
        """Nothing that is in its record file now is written over until :meth:`let_go`."""
        self._held = folder.number

    def let_go(self) -> None:
        """Idempotent."""
        self._held = 0
        self._limbo.extendleft(reversed(self._held_back))
        self._held_back.clear()
        self._later = []

    def later_of(self, folder: RecordFolder) -> list[tuple[int, Place]]:
        """As :meth:`entries_of`, of what was written since :meth:`hold`; ends that, too."""
        later = self._later
        self.let_go()
        freed = {sequence for item in self._limbo for sequence, _ in item.entries}
        entries: list[tuple[int, Place]] = []
        for sequence, value in later:
            # Of a batch that failed there is neither.
            if folder_of(value) == folder.number and (
                sequence in freed or self._places.get(sequence) == value
            ):
                place = unpack_place(value)
                if not place.single:
                    entries.append((sequence, place))
        return entries

    def entries_of(self, folder: RecordFolder) -> list[tuple[int, Place]]:
        """What must be in the new file: also what is freed, but not durably so."""
        entries: list[tuple[int, Place]] = []
        pieces = [*self._places.pieces(), *(freed.entries for freed in self._limbo)]
        for piece in pieces:
            for sequence, value in piece:
                if folder_of(value) == folder.number:
                    place = unpack_place(value)
                    if not place.single:
                        entries.append((sequence, place))
        return entries

    def moved(
        self, folder: RecordFolder, sequences: Sequence[int], places: Sequence[Place], blocks: int
    ) -> None:
        """Living records were copied to these *places* in a file of so many *blocks*."""
        moved = dict(zip(sequences, map(_records.pack_place, places), strict=True))
        for sequence, value in moved.items():
            self._places.move(sequence, value)
        for freed in self._limbo:
            freed.entries = [
                (sequence, value if unpack_place(value).single else moved.get(sequence, value))
                for sequence, value in freed.entries
            ]
        used = [(place.number, _records.blocks_of(place.payload_bytes)) for place in places]
        folder.space = Space(blocks, used)
        folder.unsynced = bool(folder.unsynced_singles)

    def forget(self, folder: RecordFolder) -> None:
        """Its directory goes; nothing lives in it."""
        del self._by_number[folder.number]
        del self._by_destination[folder.header.destination]
        self._open.pop(folder.number, None)
        if folder.handle is not None:
            folder.handle.retire()
            folder.handle = None

    def folder_of(self, destination: str) -> RecordFolder | None:
        """The directory of a destination."""
        return self._by_destination.get(destination)

    def folders(self) -> list[RecordFolder]:
        """All that are there."""
        return list(self._by_number.values())

    @property
    def freeing_bytes(self) -> int:
        """Room in record files of what is consumed, but not durably so, or still being read."""
        blocks = 0
        for freed in self._limbo:
            for _, value in freed.entries:
                place = unpack_place(value)
                if not place.single:
                    blocks += _records.blocks_of(place.payload_bytes)
        return blocks * BLOCK_BYTES

    @property
    def is_reading(self) -> bool:
        """A page is being read from one of them."""
        return bool(self._reading)

    # ----------------------------------------------------------------------- the whole store

    @property
    def disk_bytes(self) -> int:
        """Of all directories."""
        return sum(folder.disk_bytes for folder in self._by_number.values())

    @property
    def messages(self) -> int:
        """How many are in directories."""
        return len(self._places)

    async def until_idle(self) -> None:
        """Return when no thread works for us."""
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def close(self) -> None:
        """Sync, clean up the pools when asked to, close. A disk that fails now is only logged."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        async with self.lock:
            self.collect()
        await self.until_idle()
        try:
            await self.sync()
            if self._policy.pool.cleanup:
                await asyncio.get_running_loop().run_in_executor(
                    self._workers, clean_up, list(self._by_number.values())
                )
        except OSError as error:
            logger.warning("the directories of destinations cannot be cleaned up error=%s", error)
        self._index.on_freed = None
        for folder in self._by_number.values():
            if folder.handle is not None:
                folder.handle.retire()
                folder.handle = None
