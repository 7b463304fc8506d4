"""The journal store: :class:`tidegate.spi.MessageStore` over data files, an index and checkpoints.

This is the contract's surface; :mod:`.engine` puts together what is below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TypeVar

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    Branch,
    DuplicateId,
    Durability,
    EncodedPage,
    EncodedRows,
    FileHolder,
    LogStatistics,
    Message,
    Progress,
    RequestError,
    StoreCapabilities,
    StoredMessage,
    StoreError,
    StoreFile,
    StoreIOError,
    StoreStatistics,
    WriteBatch,
)
from tidegate_store_journal.checkpoint.metadata import MetadataCounters
from tidegate_store_journal.engine import Engine
from tidegate_store_journal.index.acklog import PAGE_ROWS, ROW_BYTES, AckBlock
from tidegate_store_journal.index.holders import holders_in
from tidegate_store_journal.index.slices import in_slices
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import Folder
from tidegate_store_journal.space.tidy import DestinationCompaction

T = TypeVar("T")


class JournalStore(Engine):
    """See the module and the contract. One instance is opened once."""

    # ------------------------------------------------------------------------------ contract

    @property
    def capabilities(self) -> StoreCapabilities:
        """See MessageStore."""
        return StoreCapabilities(
            durable=self._storage.durable and self._syncs_all,
            acknowledged_log=self,
            encoded_log=self,
            large_bodies=self._large,
            branches=self,
            duplicate_ids=self,
            directories=self._directories,
            measures_room=self._storage.durable,
            files=self,
        )

    @property
    def metadata_counters(self) -> MetadataCounters:
        """What checkpoints wrote so far: shows what never reached the metadata store."""
        return self._metadata.counters

    @property
    def live_bytes(self) -> int:
        """Bytes of the records that a list or the acknowledged log refers to."""
        return sum(map(self._index.live_bytes, self._index.files))

    async def compact(self, *, percentage: int, progress: Progress) -> int:
        """Empty the data files of which less than *percentage* is alive, at once (offline tools).

        Returns: data files put away. Raises: StoreError.
        """
        return await self._offline(lambda: self._reclaim.empty_all(percentage, progress))

    async def compact_destination(self, destination: str) -> DestinationCompaction:
        """Free all room in the directory of one destination (offline tools).

        Raises: StoreError.
        """
        return await self._offline(lambda: self._tidy.compact(destination))

    async def _offline(self, work: Callable[[], Awaitable[T]]) -> T:
        self._require_open()
        try:
            return await work()
        except OSError as error:
            raise StoreIOError(f"{self._storage.describe('')}: {error}") from error

    async def write(self, batch: WriteBatch) -> None:
        """See MessageStore."""
        self._require_open()
        synced = batch.durability is Durability.SYNCED and (
            self._syncs_all or bool(batch.synced_for & self._synced_for)
        )
        if self._buffer is None:
            await self._write(batch.operations, synced)
        else:
            await self._buffer.write(batch.operations, synced)

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """See MessageStore."""
        self._require_open()
        pending = self._index.lists.get(pending_list)
        if pending is None:
            return ()
        messages: list[Message] = []
        page: Sequence[tuple[int, int]] = ()
        counts: list[int] = []
        while not messages:
            page = pending.page(after, limit, bytes_max)
            if not page:
                return ()
            count_of = pending.deliveries.get
            counts = [count_of(sequence, 0) for sequence, _ in page]
            asked = page
            page, messages = await self._losses.read(pending_list, page)
            if page is not asked:  # damaged ones were dropped
                counts = [count_of(sequence, 0) for sequence, _ in page]
        self._hold_large(messages)
        return [
            StoredMessage.of(sequence, message, count)
            for (sequence, _), message, count in zip(page, messages, counts, strict=True)
        ]

    async def recovered_branches(self) -> Sequence[Branch]:
        """See Branches."""
        self._require_open()
        return list(self._index.branches.values())

    async def recovered_duplicate_ids(self) -> Sequence[DuplicateId]:
        """See DuplicateIds."""
        self._require_open()
        return list(self._index.all_duplicate_ids())

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See AcknowledgedLog."""
        parts, last = await self._find_acknowledged(after, limit, bytes_max)
        wanted = [row for part in parts for row in zip(part.sequences, part.locations, strict=True)]
        try:
            messages = await self._reader.read(wanted)
        except StoreError as error:
            if len(wanted) == 1:
                nothing = Message(destination="", body=b"", received_at=0)
                error.known = next(_acknowledged(parts, [nothing]))
            raise
        self._hold_large(messages)
        return AcknowledgedPage(list(_acknowledged(parts, messages)), last)

    async def acknowledged_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        """See EncodedLog."""
        parts, last = await self._find_acknowledged(after, limit, bytes_max)
        sequences = list(chain.from_iterable(part.sequences for part in parts))
        locations = list(chain.from_iterable(part.locations for part in parts))
        values = await self._reader.read_small_values(sequences, locations)
        if b"" in values:  # cut off there
            del values[values.index(b"") :]
        runs: list[EncodedRows] = []
        at = 0
        for part in parts:
            messages = values[at : at + part.count]
            at += part.count
            if messages:
                runs.append(_encoded(part, messages))
        return EncodedPage(runs, last)

    async def _find_acknowledged(
        self, after: int, limit: int, bytes_max: int
    ) -> tuple[list[AckBlock], int]:
        """Rows after *after*, once they are on disk.

        Returns: them; the last row that is on disk.
        Raises: RequestError: they were released; StoreError.
        """
        self._require_open()
        log = self._index.log
        # Rows of WRITTEN batches exist but could still be lost, and their numbers reused: nobody may
        # see them before they are on disk. A sync for each page would hold up the batches behind it.
        last = log.durable.look(log.last, self._index.batch, self._writer.synced_batch)
        if last <= after < log.last:
            last = log.last
            await self._appender.sync()
        await log.at(after + 1)
        if after < log.released:
            raise RequestError(
                f"acknowledged rows up to {log.released} were released; asked for those behind "
                f"{after}"
            )
        return log.parts(after, limit, bytes_max, last), last

    async def release_acknowledged(self, through: int) -> None:
        """See AcknowledgedLog. Becomes durable with the next checkpoint."""
        self._require_open()
        # Unsynced rows were never read, so nobody can be done with them.
        log = self._index.log
        through = min(through, log.last)
        while log.released < through:
            await log.at(log.released + 1)
            self._index.release(min(through, log.released + PAGE_ROWS))
            if log.released < through:
                await asyncio.sleep(0)

    def log_statistics(self) -> LogStatistics:
        """See AcknowledgedLog."""
        self._require_open()
        log = self._index.log
        held = self._index.acknowledged_bytes + (log.last - log.released) * ROW_BYTES
        return LogStatistics(log.released + 1, log.last, held, log.oldest_at)

    def store_files(self) -> Iterator[StoreFile]:
        """See StoreFiles: the data files, the journal's own first, in its order."""
        self._require_open()
        files, tail = self._files, self._appender.tail.file
        used = files.used()
        spares = [file for file in files.own.files.values() if not file.first_batch]
        homes = [home for home in files.homes.values() if home is not files.own]
        elsewhere = [file for home in homes for file in home.files.values()]
        free = [
            (home, *item) for home in files.homes.values() for item in (*home.pool, *home.parting)
        ]

        def found() -> Iterator[StoreFile]:
            for file in (*used, *spares, *elsewhere):
                state = "used" if file.first_batch else "spare"
                yield self._seen(file, "current" if file is tail else state)
            for home, name, length in free:
                yield StoreFile(_shown(home.name, home.folder, name), "free", length, 0, 0)

        return found()

    async def why_kept(self, name: str) -> Sequence[FileHolder] | None:
        """See StoreFiles."""
        self._require_open()
        holders: list[FileHolder] = []
        is_there = False
        everything = [file for home in self._files.homes.values() for file in home.files.values()]
        async for file in in_slices(everything):
            if _shown(file.folder, file.home, file.name) != name:
                continue
            is_there = True
            async for holder in in_slices(holders_in(self._index, file.file_id)):
                if holder is not None:
                    holders.append(FileHolder(**asdict(holder)))
            break
        async for listed in in_slices(() if is_there else self.store_files()):
            is_there = is_there or listed.name == name
        return holders if is_there else None

    def _seen(self, file: DataFile, state: str) -> StoreFile:
        index, file_id = self._index, file.file_id
        live, references = index.live_bytes(file_id), index.references_to(file_id)
        name = _shown(file.folder, file.home, file.name)
        return StoreFile(name, state, file.length, live, references)

    def statistics(self) -> StoreStatistics:
        """See MessageStore."""
        self._require_open()
        index = self._index
        return StoreStatistics(
            pending_messages=index.pending_messages,
            disk_bytes=self._disk_bytes(),
            writable=self._appender.failure is None,
            reusable_bytes=self._files.pool_bytes,
        )

    def _hold_large(self, messages: Sequence[Message]) -> None:
        """Keep large bodies of messages that were read while somebody has the message."""
        if self._large is not None and self._index.large:
            for message in messages:
                if message.large is not None:
                    self._large.hold(message.large)


def _shown(folder: str, home: Folder, name: str) -> str:
    """A file's name below the journal's directory, whatever the engine calls it."""
    own = Path(home.describe(name)).name
    return f"{folder}/{own}" if folder else own


def _acknowledged(
    parts: Iterable[AckBlock], messages: Iterable[Message]
) -> Iterator[AcknowledgedMessage]:
    """The rows of *parts*, each with its message."""
    found = iter(messages)
    for part in parts:
        numbers, times = range(part.first, part.last + 1), part.delivered_at
        # The numbers first: they end before a message of the next part is taken.
        rows = zip(numbers, part.sequences, found, times, part.delivery_counts, strict=False)
        for row, sequence, message, delivered_at, delivery_count in rows:
            yield AcknowledgedMessage(
                row,
                sequence,
                message,
                part.pending_list,
                delivered_at,
                part.acked_at,
                part.client_id,
                part.subscription,
                part.protocol,
                part.principal,
                delivery_count,
                part.outcome,
                part.reason,
            )


def _encoded(part: AckBlock, messages: list[bytes]) -> EncodedRows:
    """The first rows of *part*, one for each of *messages*."""
    count = len(messages)
    return EncodedRows(
        part.first,
        part.pending_list,
        part.acked_at,
        part.client_id,
        part.subscription,
        part.protocol,
        part.principal,
        part.outcome,
        part.reason,
        part.sequences[:count],
        part.delivered_at[:count],
        part.delivery_counts[:count],
        messages,
    )
