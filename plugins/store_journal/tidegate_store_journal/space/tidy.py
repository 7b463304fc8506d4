"""Background work on destinations' directories: frees disk space.

The compactor of the journal's own data files empties these too; copies stay in the directory that
they came from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import StoreIOError
from tidegate_store_journal.bodies.directory import Directory
from tidegate_store_journal.bodies.folders import folder_name
from tidegate_store_journal.bodies.series import Series
from tidegate_store_journal.checkpoint.checkpoint import Checkpointer
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.space.compact import Compactor

#: Cost of emptying a file besides its live bytes (syncs, a checkpoint), expressed in bytes.
_COPY_COST_BYTES: Final = 64 << 10
#: On command, files of which more than this lives are left alone.
_FULL_PERCENT: Final = 90


@dataclass(frozen=True, slots=True)
class DestinationCompaction:
    """What compacting one destination did: references kept, bytes of its directory."""

    destination: str
    messages: int
    bytes_before: int
    bytes_after: int


@dataclass(eq=False)
class Tidy:
    """Keeps the bound, and removes directories. All methods are for the event loop.

    Attributes: percentage: a directory longer than a data file of which less lives is compacted, and
        the bound is kept (see :meth:`keep_bound`); 0: neither.
    """

    series: Series
    index: Index
    checkpointer: Checkpointer
    compactor: Compactor
    percentage: int

    def __post_init__(self) -> None:
        self._file_length = self.series.files.file_length
        if self.percentage:
            self.series.keep_bound = self.keep_bound
        self._lock = asyncio.Lock()  # one file is emptied at a time
        self._stuck: set[int] = set()  # files that could not be emptied
        self._is_closing = False

    def close(self) -> None:
        """Stop after the current step."""
        self._is_closing = True

    async def tidy(self) -> None:
        """Free space, and remove empty directories.

        Raises: OSError, StoreError.
        """
        if not self.series.directories:
            return
        async with self._lock:
            self._stuck.clear()
            leaving = [d for d in self.series.directories.values() if self._is_leaving(d)]
            await self._retire({key for directory in leaving for key in directory.files})
            await self.checkpointer.run(cleanup=True)
            await self._remove(leaving)
            for directory in list(self.series.directories.values()):
                size = sum(file.length for file in directory.files.values())
                is_sparse = self._live_bytes(directory) * 100 < self.percentage * size
                if is_sparse and size > self._file_length:
                    await self._compact(directory, self.percentage)
        if self.percentage:
            await self.keep_bound()

    async def keep_bound(self) -> None:
        """Give back room until all directories together keep their bound: 3 times the live bytes
        and 4 data files, the first page of each file counted as live.

        One part of each is left for the copies while files are emptied, and for what directories
        grow until somebody looks again. Raises: StoreError, OSError.
        """
        async with self._lock:
            self.series.grown_bytes = 0
            if self._excess() <= 0:
                return
            living = self.index.references_to
            await self._retire(
                {
                    key
                    for directory in self.series.directories.values()
                    for key in directory.files
                    if not living(key)
                }
            )
            await self.checkpointer.run(cleanup=True)
            await self._drop_pools()
            while self._excess() > 0 and not self._is_closing:
                victims = self._sparsest()
                if not victims:
                    return
                await self._empty(victims)
                await self._drop_pools()

    def _excess(self) -> int:
        total = live = 0
        for directory in self.series.directories.values():
            total += directory.disk_bytes
            live += self._live_bytes(directory) + DATA_OFFSET * len(directory.files)
        return total - 2 * live - 3 * self._file_length

    def _live_bytes(self, directory: Directory) -> int:
        return sum(map(self.index.live_bytes, directory.files))

    def _is_leaving(self, directory: Directory) -> bool:
        """Whether it is empty, and nobody will miss it."""
        if any(map(self.index.references_to, directory.files)):
            return False
        was_used, directory.is_used = directory.is_used, False
        return not was_used or directory.name not in map(folder_name, self.index.destinations)

    async def _retire(self, file_ids: set[int]) -> None:
        """Append nothing more to these files. The caller holds the lock."""
        async with self.series.lock:
            for directory in self.series.directories.values():
                for key, spot in list(directory.spots.items()):
                    if spot.file.file_id in file_ids:
                        del directory.spots[key]

    async def _remove(self, leaving: Sequence[Directory]) -> None:
        async with self.series.lock:
            for directory in leaving:
                if not directory.files:
                    await self.series.remove(directory)

    async def _drop_pools(self) -> None:
        for directory in list(self.series.directories.values()):
            excess = self._excess()
            if excess <= 0:
                return
            pool_bytes = sum(length for _, length in directory.pool)
            await self.series.drop_pool(directory, keeps_bytes=max(0, pool_bytes - excess))

    def _sparsest(self) -> list[DataFile]:
        """The files that free the most room per byte to copy, sparsest first, as many as are needed: each
        round costs a checkpoint. The copies have the room of a data file."""
        gains: list[tuple[float, int, int, DataFile]] = []
        for directory in self.series.directories.values():
            for key, file in directory.files.items():
                live = self.index.live_bytes(key)
                room = file.length - DATA_OFFSET - live
                if room > 0 and key not in self._stuck:
                    gains.append((room / (live + _COPY_COST_BYTES), room, live, file))
        victims: list[DataFile] = []
        excess, copied = self._excess(), 0
        for _, room, live, file in sorted(gains, key=lambda item: -item[0]):
            copied += live + DATA_OFFSET
            if excess <= 0 or (victims and copied > self._file_length):
                break
            victims.append(file)
            excess -= room
        return victims

    async def _empty(self, files: Sequence[DataFile]) -> None:
        """Copy what lives in *files* to others of their directories, and put them away.

        Raises: StoreError, OSError.
        """
        ids = {file.file_id for file in files}
        await self._retire(ids)
        for file in files:
            if not await self.compactor.compact(file, is_stopped=lambda: self._is_closing):
                self._stuck.add(file.file_id)
        self.series.let_go("copies")
        await self.checkpointer.run(cleanup=True)
        self._stuck |= {file.file_id for file in files if self.series.files.get(file.file_id)}

    async def _compact(self, directory: Directory, percentage: int) -> None:
        """Empty every file of a directory of which less than *percentage* lives."""
        live_bytes = self.index.live_bytes
        victims = [
            file
            for key, file in directory.files.items()
            if key not in self._stuck and live_bytes(key) * 100 < percentage * file.length
        ]
        if victims:
            await self._empty(victims)

    async def compact(self, destination: str) -> DestinationCompaction:
        """Free all room in the directory of *destination*, whatever the options say.

        Raises: StoreError when it has none, OSError. Cancellation: safe; it goes on.
        """
        task = asyncio.get_running_loop().create_task(self._compact_all(destination))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _compact_all(self, destination: str) -> DestinationCompaction:
        directory = self.series.directories.get(folder_name(destination))
        if directory is None:
            there = ", ".join(sorted(self.series.directories)) or "none"
            raise StoreIOError(f"{destination} has no directory in the journal; there are: {there}")
        before = directory.disk_bytes
        async with self._lock:
            await self._compact(directory, _FULL_PERCENT)
            async with self.series.lock:
                await self.series.drop_pool(directory)
        stuck = [file.name for key, file in directory.files.items() if key in self._stuck]
        if stuck:
            raise StoreIOError(
                f"{', '.join(stuck)} of {destination} could not be emptied: see the log"
            )
        messages = sum(map(self.index.references_to, directory.files))
        return DestinationCompaction(destination, messages, before, directory.disk_bytes)
