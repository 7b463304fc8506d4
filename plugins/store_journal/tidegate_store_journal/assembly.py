"""Makes the parts of a store from its options. :mod:`.engine` assembles and opens them."""

from __future__ import annotations

from pathlib import Path

from tidegate.spi import StoreContext, StoreIOError
from tidegate.spi.private_files import warn_of_others
from tidegate_store_journal.checkpoint.metadata import LmdbMetadata, Metadata
from tidegate_store_journal.log.mapped import can_map, with_mapping
from tidegate_store_journal.log.memory import MemoryStorage
from tidegate_store_journal.log.names import NAMINGS, NamedStorage, holds_journal
from tidegate_store_journal.log.storage import DirectoryStorage, Storage
from tidegate_store_journal.options import MAPPED, JournalOptions
from tidegate_store_journal.presets import PRESETS, directory_of, is_default
from tidegate_store_journal.start.replay import Replay


def make_storage(context: StoreContext, options: JournalOptions) -> Storage:
    """Where the data files are: the directory that the options name, or memory."""
    if not context.persistent:
        return MemoryStorage(options.memory_limit)
    lease = options.lock_expiration if options.stands_by and context.may_stand_by else 0.0
    return open_directory(options, directory_of(context, options.directory), lease)


def open_directory(
    options: JournalOptions, directory: Path, lease_seconds: float = 0.0
) -> DirectoryStorage:
    """The storage for *directory*, with the names of the preset. Nothing is made or opened yet."""
    maps = options.journal_type == MAPPED and can_map(directory)
    wrap = with_mapping if maps else None
    naming = NAMINGS.get(options.preset)
    return NamedStorage(directory, naming, wrap=wrap, lease_seconds=lease_seconds)


def large_storage_of(context: StoreContext, options: JournalOptions) -> Storage | None:
    """The storage for large bodies; None for none."""
    if not context.persistent:
        return None
    directory = directory_of(context, options.directory) / Path(options.large_messages_directory)
    # Even when switched off, existing ones still have to be delivered.
    is_used = options.large_message_min_size or directory.is_dir()
    return DirectoryStorage(directory) if is_used else None


def make_metadata(options: JournalOptions, storage: Storage) -> Metadata:
    """What checkpoints are written to."""
    directory = storage.metadata_directory
    if directory is None:
        return Metadata()
    metadata = LmdbMetadata(directory)
    return metadata if options.persistent_index else Metadata(metadata)


def claim(context: StoreContext, options: JournalOptions, storage: Storage) -> None:
    """Take the directory for this process. Blocks. Raises: StoreLockedError, StoreIOError, OSError."""
    owner = f"gateway={context.gateway_name}"
    if not isinstance(storage, NamedStorage):
        storage.lock(owner)
        return
    place = directory_of(context, options.directory)
    if is_default(options.directory) and not holds_journal(place):
        _refuse_other_journal(context, place)
    if not options.create_journal_dir and not place.is_dir():
        raise StoreIOError(
            f"{place} does not exist, and create_journal_dir = false: mount the volume that it "
            "is on, or make the directory"
        )
    storage.lock(owner)
    if not place.is_relative_to(context.data_directory):  # the host reports its own
        warn_of_others(place, "journal directory")


def _refuse_other_journal(context: StoreContext, own: Path) -> None:
    """Refuse to start an empty store beside one made with another preset. Blocks.

    Without this, changing ``preset`` would look like losing every message.
    Raises: StoreIOError; OSError.
    """
    for other in ("journal", *(str(values["directory"]) for values in PRESETS.values())):
        place = directory_of(context, other)
        if place != own and holds_journal(place):
            raise StoreIOError(
                f"{place} holds a journal, and {own}, the directory of this preset, none. Set "
                f'directory = "{other}" to go on with it under the new preset, or move it away '
                "to begin an empty one"
            )


def keeps_orphans(options: JournalOptions, found: Replay) -> bool:
    """Whether to keep unreferenced large bodies: their messages' records may have been lost."""
    # Without an index on disk every start rebuilds, which is no sign of a loss.
    if found.rebuilt and options.persistent_index:
        return True
    # Missing files cannot always be detected, so keep everything that may be needed.
    if options.ignore_missing_journalfiles:
        return True
    # Something was removed or cut off. (That the policy allows it proves nothing: each kill would
    # then leave its files for good.)
    is_repaired = bool(found.report.name or found.repaired_bytes)
    return options.quarantines and is_repaired
