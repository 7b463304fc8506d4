"""What is done to a journal while no gateway runs: compaction now, and a new metadata store."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tidegate.spi import ConfiguredStore, Progress, StoreIOError
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.space.tidy import DestinationCompaction
from tidegate_store_journal.start.recovery import FREE_NAME
from tidegate_store_journal.store import JournalStore
from tidegate_store_journal.tools.located import directory_of

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


def compact(
    store: ConfiguredStore, progress: Progress, *, percentage: int, delete_free: bool
) -> tuple[Space, Space]:
    """Compact the journal of *store* now. Returns: what it took before, and what it takes now.

    *delete_free*: delete dead files that wait to be used again.
    Raises: StoreLockedError while a gateway runs; StoreError.
    """
    directory = directory_of(store)
    return asyncio.run(_compact(store, directory, progress, percentage, delete_free))


async def _compact(
    store: ConfiguredStore, directory: Path, progress: Progress, percentage: int, delete_free: bool
) -> tuple[Space, Space]:
    journal = store.create(progress=progress)
    assert isinstance(journal, JournalStore)
    try:
        await journal.open()
        before = Space(*space_of(directory), journal.live_bytes)
        await journal.compact(percentage=percentage, progress=progress)
        live = journal.live_bytes
    finally:
        await journal.close()
    if delete_free:
        _delete_free(directory)
    return before, Space(*space_of(directory), live)


def compact_destination(
    store: ConfiguredStore, progress: Progress, destination: str
) -> DestinationCompaction:
    """Compact the directory of one destination now. Raises: as :func:`compact`."""
    return asyncio.run(_compact_destination(store, progress, destination))


async def _compact_destination(
    store: ConfiguredStore, progress: Progress, destination: str
) -> DestinationCompaction:
    journal = cast("JournalStore", store.create(progress=progress))
    try:
        await journal.open()
        return await journal.compact_destination(destination)
    finally:
        await journal.close()


def space_of(directory: Path) -> tuple[int, int]:
    """Number and bytes of the data files in *directory*, used, spare and free."""
    storage = NamedStorage(directory)
    sizes = [
        Path(storage.describe(name)).stat().st_size
        for name in storage.list()
        if name.startswith("journal-") and name.endswith((".data", ".free"))
    ]
    return len(sizes), sum(sizes)


def _delete_free(directory: Path) -> None:
    storage = NamedStorage(directory)
    storage.lock("tidegate journal compact")
    try:
        for name in filter(FREE_NAME.fullmatch, storage.list()):
            storage.unlink(name)
        storage.sync_directory()
    finally:
        storage.unlock()


def rebuild_index(store: ConfiguredStore, progress: Progress) -> Rebuilt:
    """Put the metadata store of the journal aside and build it anew from the data files.

    When that cannot be done the old one comes back.
    Raises: StoreLockedError while a gateway runs; CorruptRecordError; StoreError.
    """
    directory = directory_of(store)
    storage = NamedStorage(directory)
    metadata, aside = storage.metadata_directory, directory / ASIDE
    storage.lock("tidegate journal rebuild-index")
    try:
        # Crash story: from the rename to the end there is no metadata, or a new one; either is
        # enough to start with. What is left aside then goes with the next rebuild.
        if metadata.exists():
            shutil.rmtree(aside, ignore_errors=True)
            metadata.rename(aside)
    except OSError as error:
        raise StoreIOError(f"cannot put {metadata} aside: {error}") from error
    finally:
        storage.unlock()
    try:
        found = asyncio.run(_open_and_close(store, progress))
    except BaseException:
        if aside.exists():
            shutil.rmtree(metadata, ignore_errors=True)
            aside.rename(metadata)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    return found


async def _open_and_close(store: ConfiguredStore, progress: Progress) -> Rebuilt:
    journal = store.create(progress=progress)
    try:
        state = await journal.open()
        return Rebuilt(
            journal.statistics().pending_messages,
            len(state.destinations),
            len(state.subscriptions),
            state.report.counts["replayed"],
            # That it was missing is what we did.
            tuple(note for note in state.report.notes if "metadata store was missing" not in note),
        )
    finally:
        await journal.close()
