"""Work on a journal while no gateway runs: compaction now, and a new metadata store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from tidegate.spi import ConfiguredStore, Progress, RecoveredState, StoreIOError
from tidegate_store_journal.log.format import DATA_NAME, FREE_NAME
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.space.tidy import DestinationCompaction
from tidegate_store_journal.store import JournalStore
from tidegate_store_journal.tools.located import directory_of

T = TypeVar("T")

#: Where the old metadata waits during a rebuild.
ASIDE: Final = "metadata.before"


@dataclass(frozen=True, slots=True)
class Space:
    """How much room a journal takes. Attributes: files, disk_bytes: of data files, free ones too.

    live_bytes: of records that something refers to.
    """

    files: int
    disk_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild found. Attributes: replayed: operations; notes: sentences for the operator."""

    pending_messages: int
    destinations: int
    subscriptions: int
    replayed: int
    notes: tuple[str, ...]


def _with(
    store: ConfiguredStore,
    progress: Progress,
    work: Callable[[JournalStore, RecoveredState], Awaitable[T]],
) -> T:
    """Open the journal of *store* for *work*. Raises: StoreLockedError while a gateway runs."""

    async def run() -> T:
        journal = cast("JournalStore", store.create(progress=progress))
        try:
            return await work(journal, await journal.open())
        finally:
            await journal.close()

    return asyncio.run(run())


def compact(
    store: ConfiguredStore, progress: Progress, *, percentage: int, delete_free: bool
) -> tuple[Space, Space]:
    """Compact the journal of *store* now. Returns: what it took before, and what it takes now.

    *delete_free*: delete dead files that wait to be used again.
    Raises: StoreLockedError while a gateway runs; StoreError.
    """
    directory = directory_of(store)

    async def work(journal: JournalStore, _state: RecoveredState) -> tuple[Space, int]:
        before = Space(*space_of(directory), journal.live_bytes)
        await journal.compact(percentage=percentage, progress=progress)
        return before, journal.live_bytes

    before, live_bytes = _with(store, progress, work)
    if delete_free:
        storage = NamedStorage(directory)
        storage.lock("tidegate journal compact")
        try:
            for name in filter(FREE_NAME.fullmatch, storage.list()):
                storage.unlink(name)
            storage.sync_directory()
        finally:
            storage.unlock()
    return before, Space(*space_of(directory), live_bytes)


def compact_destination(
    store: ConfiguredStore, progress: Progress, destination: str
) -> DestinationCompaction:
    """Compact the directory of one destination now. Raises: as :func:`compact`."""
    return _with(store, progress, lambda journal, _: journal.compact_destination(destination))


def space_of(directory: Path) -> tuple[int, int]:
    """Number and bytes of the data files in *directory*, used, spare and free."""
    storage = NamedStorage(directory)
    sizes = [
        Path(storage.describe(name)).stat().st_size
        for name in storage.list()
        if DATA_NAME.fullmatch(name) or FREE_NAME.fullmatch(name)
    ]
    return len(sizes), sum(sizes)


def rebuild_index(store: ConfiguredStore, progress: Progress) -> Rebuilt:
    """Put the journal's metadata store aside and rebuild it from the data files.

    If that fails, the old one comes back.
    Raises: StoreLockedError while a gateway runs; CorruptRecordError; StoreError.
    """
    directory = directory_of(store)
    storage = NamedStorage(directory)
    metadata, aside = storage.metadata_directory, directory / ASIDE
    storage.lock("tidegate journal rebuild-index")
    try:
        # Crash story: from the rename to the end there is no metadata, or a new one; either is
        # enough to start with. The next rebuild removes what is left aside.
        if metadata.exists():
            shutil.rmtree(aside, ignore_errors=True)
            metadata.rename(aside)
    except OSError as error:
        raise StoreIOError(f"cannot put {metadata} aside: {error}") from error
    finally:
        storage.unlock()
    try:
        found = _with(store, progress, _found)
    except BaseException:
        if aside.exists():
            shutil.rmtree(metadata, ignore_errors=True)
            aside.rename(metadata)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    return found


async def _found(journal: JournalStore, state: RecoveredState) -> Rebuilt:
    return Rebuilt(
        journal.statistics().pending_messages,
        len(state.destinations),
        len(state.subscriptions),
        state.report.counts["replayed"],
        # We removed it ourselves.
        tuple(note for note in state.report.notes if "metadata store was missing" not in note),
    )
