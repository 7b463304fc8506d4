"""All existing data files, wherever they are: reads them, and removes or pools dead ones.

Files are in *homes*: the journal's own, and the directories of destinations (``bodies``). All share
ids, reading and removal. There can be more files than descriptors, and clients can use those up, so
read-only files are open while borrowed, and some of them longer. All methods are for the event loop
unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from typing import Final

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import NO_HANDLE_ERRNOS, File, Folder, Storage
from tidegate_store_journal.options import JournalOptions

logger = logging.getLogger("tidegate.store.journal")

#: Dead files plus ready ones: this many are needed soon.
SPARES_MAX: Final = 2
#: Open data files besides the current one and the spares; far below the usual limit of 1024.
OPEN_FILES_MAX: Final = 128
_OPEN_FILES_MIN: Final = 4


class Home:
    """A directory of data files.

    Attributes: files: by id. pool: names and lengths of dead files to be reused;
        parting: of those that join it once their names are durable. name: "" for the journal's own.
    """

    def __init__(self, name: str, folder: Folder, executor: Executor) -> None:
        """*executor*: for what blocks."""
        self.name = name
        self.folder = folder
        self.executor = executor
        self.files: dict[int, DataFile] = {}
        self.pool: deque[tuple[str, int]] = deque()
        self.parting: list[tuple[str, int]] = []

    @property
    def disk_bytes(self) -> int:
        """Bytes of all its files."""
        dead = sum(length for _, length in (*self.pool, *self.parting))
        return sum(file.length for file in self.files.values()) + dead


class Homes:
    """See the module.

    Attributes: own: home of the journal's own files. homes: all, by name. dead_elsewhere: files in
        directories of destinations without live records, and not being written to.
    """

    def __init__(self, storage: Storage, executor: Executor, options: JournalOptions) -> None:
        self._storage = storage
        self._executor = executor
        self._options = options
        self._files: dict[int, DataFile] = {}
        self._spares: deque[DataFile] = deque()  # the journal's own, prepared and unused
        self._making: list[int] = []  # lengths of files being made
        self._open_max = OPEN_FILES_MAX
        self._open_old: OrderedDict[int, DataFile] = OrderedDict()
        self.own = Home("", storage, executor)
        self.homes = {"": self.own}
        self.dead_elsewhere: Callable[[], Sequence[DataFile]] = lambda: ()

    def add(self, file: DataFile) -> None:
        """Add a file that exists now."""
        self._files[file.file_id] = self.homes[file.folder].files[file.file_id] = file

    def forget(self, file: DataFile) -> None:
        """Close a file that is no longer ours. Idempotent."""
        self._files.pop(file.file_id, None)
        self.homes[file.folder].files.pop(file.file_id, None)
        self._open_old.pop(file.file_id, None)
        file.close()

    def get(self, file_id: int) -> DataFile | None:
        """The file with this id."""
        return self._files.get(file_id)

    def is_elsewhere(self, file_id: int) -> bool:
        """Whether the file exists in a destination's directory."""
        return file_id in self._files and file_id not in self.own.files

    def elsewhere(self) -> set[int]:
        """Ids of all files in directories of destinations."""
        return self._files.keys() - self.own.files.keys()

    @property
    def disk_bytes(self) -> int:
        """Bytes of all data files."""
        return sum(home.disk_bytes for home in self.homes.values()) + sum(self._making)

    def used(self) -> list[DataFile]:
        """The journal's own that hold batches, in its order."""
        used = [file for file in self.own.files.values() if file.first_batch]
        return sorted(used, key=lambda file: file.first_batch)

    # ------------------------------------------------------------------------- open files

    def open(self, file: DataFile) -> File:
        """A handle of the file. Raises: OSError."""
        while True:
            try:
                return file.home.open(file.name)
            except OSError as error:
                if not self.gives_up_handles(error):
                    raise

    def borrow(self, file: DataFile) -> File:
        """An open handle that stays open until :meth:`give_back`. Raises: OSError."""
        file.readers += 1
        if file.handle is None:
            try:
                file.handle = self.open(file)
            except OSError:
                file.readers -= 1
                raise
            self.retire(file)
        elif file.file_id in self._open_old:
            self._open_old.move_to_end(file.file_id)
        return file.handle

    def give_back(self, file: DataFile) -> None:
        """Return a borrowed handle."""
        file.readers -= 1

    @contextmanager
    def lent(self, files: Iterable[DataFile]) -> Generator[list[File]]:
        """Handles of all *files*, see :meth:`borrow`."""
        with ExitStack() as stack:
            handles: list[File] = []
            for file in files:
                handles.append(self.borrow(file))
                stack.callback(self.give_back, file)
            yield handles

    def retire(self, file: DataFile) -> None:
        """The file is full: from now on it is only read, and may be closed when many are open."""
        self._open_old[file.file_id] = file
        self.close_surplus()

    def close_surplus(self) -> None:
        """Close the least recently read files, above a limit."""
        for file in list(self._open_old.values()):
            if len(self._open_old) <= self._open_max:
                return
            if not file.readers:
                del self._open_old[file.file_id]
                file.close()

    def gives_up_handles(self, error: OSError) -> bool:
        """Out of descriptors: close read-only files, and keep fewer open from now on.

        Returns: whether it is worth trying again.
        """
        if error.errno not in NO_HANDLE_ERRNOS or not self._open_old:
            return False
        self._open_max = max(_OPEN_FILES_MIN, len(self._open_old) // 2)
        before = len(self._open_old)
        self.close_surplus()
        return len(self._open_old) < before

    # ------------------------------------------------------------------------ dead files

    async def dispose(self, files: Sequence[DataFile]) -> None:
        """Archive, pool, or delete dead files, those of one home in this order. Raises: OSError.

        They must have no live records, in the checkpoint either, and no readers. Files not reached
        because of an error stay.
        """
        parts: dict[str, list[DataFile]] = {}
        for file in files:
            assert file.readers == 0, "a page is being read from it"
            parts.setdefault(file.folder, []).append(file)
        # The journal's own last: they record what was live in the others.
        own = parts.pop("", None)
        results = await asyncio.gather(
            *(self._dispose_in(self.homes[name], part) for name, part in parts.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if own:
            await self._dispose_in(self.own, own)
            logger.info("put away dead data files count=%d pool=%d", len(own), len(self.own.pool))

    async def _dispose_in(self, home: Home, files: Sequence[DataFile]) -> None:
        loop = asyncio.get_running_loop()
        kept = self._kept_of_journal(files) if home is self.own else self._kept_in(home, files)
        done: list[DataFile] = []
        try:
            await loop.run_in_executor(home.executor, self._put_away, home, files, kept, done)
        finally:
            for file in done:
                self.forget(file)
                if file.file_id in kept:
                    home.parting.append((_format.free_name(file.file_id), kept[file.file_id]))
            await loop.run_in_executor(home.executor, home.folder.sync_directory)
            # Not earlier: a file taken from the pool gets a new header at once, and a power cut
            # could bring back its old name, which that header contradicts.
            home.pool.extend(home.parting)
            home.parting.clear()

    def _kept_of_journal(self, files: Sequence[DataFile]) -> dict[int, int]:
        """Which dead files go to the pool, and their lengths there."""
        options, kept = self._options, dict[int, int]()
        if options.archive_data_logs or not self._storage.durable:
            return kept  # in memory a dead file would only keep its bytes
        limit = max(options.journal_pool_files, options.journal_min_files)
        free = len(self.own.pool) + len(self.own.parting)
        for file in files:
            # Keep those needed soon anyway: new ones would have to be padded.
            is_needed = len(self._spares) + free < SPARES_MAX
            staying = len(self.own.files) - len(files) + free + len(self._making)
            if file.length == self._options.file_length and (
                is_needed or options.journal_pool_files < 0 or staying < limit
            ):
                kept[file.file_id] = file.length
                free += 1
        return kept

    def _kept_in(self, home: Home, files: Sequence[DataFile]) -> dict[int, int]:
        """The same for a destination's directory; some are emptied."""
        options = self._options
        lengths = [length for _, length in (*home.pool, *home.parting)]
        kept: dict[int, int] = {}
        for file in files[: max(0, options.filepool_limit - len(lengths))]:
            emptied = lengths.count(0) + 1
            is_emptied = emptied * 100 <= options.filepool_cleanratio * (len(lengths) + 1)
            lengths.append(0 if is_emptied else file.length)
            kept[file.file_id] = lengths[-1]
        return kept

    def _put_away(
        self, home: Home, files: Iterable[DataFile], kept: dict[int, int], done: list[DataFile]
    ) -> None:
        """In a thread. *done*: gets each file when it is done. Raises: OSError."""
        options, folder = self._options, home.folder
        archives = options.archive_data_logs and self._storage.durable and home is self.own
        for file in files:
            if file.file_id in kept:
                free = _format.free_name(file.file_id)
                folder.rename(file.name, free)
                done.append(file)
                if not kept[file.file_id]:
                    kept[file.file_id] = file.length  # until it is emptied, which may fail
                    folder.open(free, create=True).close()
                    kept[file.file_id] = 0
                continue
            if archives:
                folder.rename(file.name, f"{options.directory_archive}/{file.name}")
            else:
                folder.unlink(file.name)
            done.append(file)
