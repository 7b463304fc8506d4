"""What a store is made of, as its options say. Nothing is opened here; :mod:`.store` puts it together."""

from __future__ import annotations

from pathlib import Path

from tidegate.spi import StoreContext, SyncedFor
from tidegate_store_journal.bodies.large import NO_NEW_BODIES, LargeFiles
from tidegate_store_journal.bodies.series import SeriesPolicy
from tidegate_store_journal.checkpoint.metadata import LmdbMetadata, Metadata
from tidegate_store_journal.log.files import FilePolicy
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.log.storage import DirectoryStorage, Storage
from tidegate_store_journal.options import ALWAYS, NEVER, PERIODIC, JournalOptions
from tidegate_store_journal.presets import directory_of, refuse_other_journal, require_directory
from tidegate_store_journal.start.replay import Replay
from tidegate_store_journal.write.journaltypes import open_directory


def make_storage(context: StoreContext, options: JournalOptions) -> Storage:
    """Where the data files are: the directory that the options name, or memory."""
    if not context.persistent:
        return MemoryStorage(options.memory_limit)
    return open_directory(options, directory_of(context, options.directory))


def large_storage_of(context: StoreContext, options: JournalOptions) -> Storage | None:
    """Where large bodies are; None: nowhere."""
    if not context.persistent:
        return None
    directory = directory_of(context, options.directory) / Path(options.large_messages_directory)
    # Switched off, those that are there still have to be delivered.
    is_used = options.large_message_min_size or directory.is_dir()
    return DirectoryStorage(directory) if is_used else None


def make_large(options: JournalOptions, storage: Storage | None) -> LargeFiles | None:
    """Large bodies in *storage*."""
    if storage is None:
        return None
    return LargeFiles(
        storage,
        size_min=options.large_message_min_size or NO_NEW_BODIES,
        free_limit_bytes=options.disk_free_limit,
        syncs=options.sync_strategy != NEVER,
    )


def make_metadata(options: JournalOptions, storage: Storage) -> Metadata:
    """What checkpoints are written to."""
    directory = storage.metadata_directory
    if directory is None:
        return Metadata()
    metadata = LmdbMetadata(directory)
    return metadata if options.persistent_index else Metadata(metadata)


def claim(context: StoreContext, options: JournalOptions, storage: Storage) -> None:
    """Take the directory for this process. Blocks. Raises: StoreLockedError, StoreIOError, OSError."""
    if isinstance(storage, NamedStorage):
        refuse_other_journal(context, options.directory)
        if not options.create_journal_dir:
            require_directory(context, options.directory)
    storage.lock(f"gateway={context.gateway_name}")


def synced_for(options: JournalOptions) -> SyncedFor:
    """What is confirmed only when it is on stable storage."""
    waiting = SyncedFor(0)
    if options.sync_strategy == ALWAYS:
        if options.journal_sync_non_transactional:
            waiting |= SyncedFor.SINGLE
        if options.journal_sync_transactional:
            waiting |= SyncedFor.TRANSACTION
    return waiting


def file_policy(options: JournalOptions, free_limit_bytes: int) -> FilePolicy:
    """How many data files there are."""
    return FilePolicy(
        length=options.file_length,
        files_min=options.journal_min_files,
        pool_files=options.journal_pool_files,
        archive=options.directory_archive if options.archive_data_logs else "",
        free_limit_bytes=free_limit_bytes,
    )


def series_policy(options: JournalOptions, storage: Storage) -> SeriesPolicy:
    """Which destinations have directories, and how those are kept."""
    is_periodic = options.sync_strategy == PERIODIC
    return SeriesPolicy(
        filters=options.per_destination if storage.durable else (),
        file_length=options.file_length,
        record_bytes_max=options.max_record_size,
        pool_limit=options.filepool_limit,
        clean_percent=options.filepool_cleanratio,
        cleans_up=options.message_cleanup,
        sync=options.sync_strategy == ALWAYS,
        sync_seconds=options.journal_disk_sync_interval if is_periodic else 0.0,
    )


def keeps_orphans(options: JournalOptions, found: Replay) -> bool:
    """Large bodies that no message names may be all that is left of messages whose records are lost."""
    # Without an index on disk every start rebuilds; that says nothing of losses.
    if found.rebuilt and options.persistent_index:
        return True
    # Which files are missing cannot always be told; nothing that may be missed goes.
    if options.ignore_missing_journalfiles:
        return True
    # Something was taken out or cut off. (A policy that stays set is no sign of it, and each kill
    # would leave its files for good.)
    is_repaired = bool(found.report.name or found.repaired_bytes)
    return options.quarantines and is_repaired
