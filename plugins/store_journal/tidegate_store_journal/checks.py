"""Refuses options that contradict each other, or that have no effect.

A user who sets ``memory_limit`` expects memory to be limited. So the factory, which knows what was
set, refuses by name any option that would do nothing. ``broker.persistent = false`` is different:
one switch for a whole configuration that must still start, so there a warning names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from tidegate.spi import ConfigError, format_size, names, option_info
from tidegate.spi.machine.lease import check_lease
from tidegate_store_journal.options import ALWAYS, ASYNCIO, NEVER, PERIODIC, JournalOptions
from tidegate_store_journal.presets import is_default

#: The header of a data file is a page, and records must fit after it.
_FILE_BYTES_MIN: Final = 16 << 10
#: One being filled, one ready, one being compacted, one for acknowledgements at the limit.
_MEMORY_FILES_MIN: Final = 4

#: Options that have an effect even without files.
IN_MEMORY_TOO: Final = frozenset(
    [
        "preset",
        "journal_max_file_length",
        "journal_file_size",
        "journal_min_files",
        "journal_compact_min_files",
        "journal_compact_percentage",
        "journal_buffer_size",
        "journal_buffer_timeout",
        "checkpoint_interval",
        "max_checkpoint_message_add_size",
        "memory_limit",
        "cleanup_interval",
        "slow_sync_threshold",
    ]
)
_DEFAULTS: Final = JournalOptions()


def check(options: JournalOptions, *, persistent: bool = True) -> None:
    """Refuse values that contradict each other. Raises: ConfigError."""
    for field in fields(options):
        choices, value = option_info(field).choices, getattr(options, field.name)
        if choices and value not in choices:
            raise ConfigError(f"{value!r} is not one of {', '.join(choices)}", key=field.name)
    for key in ("directory", "large_messages_directory", "directory_archive"):
        if not getattr(options, key).strip():
            raise ConfigError(
                f"is empty; name a directory such as {getattr(_DEFAULTS, key)!r}", key=key
            )
    if options.journal_type != ASYNCIO:
        if options.journal_max_io not in (None, 1):
            raise ConfigError(
                f"is for journal_type 'ASYNCIO'; with '{options.journal_type}' one request is under "
                "way at a time",
                key="journal_max_io",
            )
        if not options.journal_buffer_timeout and not is_default(options.journal_buffer_size):
            raise ConfigError(
                "does nothing unless journal_buffer_timeout is set or journal_type is 'ASYNCIO'",
                key="journal_buffer_size",
            )
    check_lease(options.lock_renew_period, options.lock_expiration)
    if options.file_length < _FILE_BYTES_MIN:
        raise ConfigError("is too small", key="journal_max_file_length")
    _check_directories(options)
    if not persistent and options.memory_limit < _MEMORY_FILES_MIN * options.file_length:
        raise ConfigError(
            f"{format_size(options.memory_limit)} is less than {_MEMORY_FILES_MIN} times "
            f"journal_max_file_length ({format_size(options.file_length)}): make the files smaller, "
            "or give more memory",
            key="memory_limit",
        )
    if options.cleanup_interval < options.checkpoint_interval:
        raise ConfigError(
            f"{options.cleanup_interval:g} s is shorter than checkpoint_interval "
            f"({options.checkpoint_interval:g} s); files are freed only at checkpoints",
            key="cleanup_interval",
        )


def check_store_limit(options: JournalOptions, limit: int) -> None:
    """Check that an empty journal is below *limit* (``broker.store_limit``). Raises: ConfigError."""
    if 0 < limit < _MEMORY_FILES_MIN * options.file_length:
        raise ConfigError(
            f"broker.store_limit ({format_size(limit)}) is less than {_MEMORY_FILES_MIN} data files of "
            f"{format_size(options.file_length)}, and would never be free: make the files smaller, or "
            "the limit larger",
            key="journal_max_file_length",
        )


def _check_directories(options: JournalOptions) -> None:
    for item in options.per_destination:
        kind, separator, name = item.partition("://")
        if kind not in ("queue", "topic") or not separator or not name:
            raise ConfigError(
                f"{item!r} is not a filter such as 'queue://orders.>' or 'topic://>'",
                key="per_destination",
            )
        try:
            names.check_filter(name)
        except ValueError as error:
            raise ConfigError(f"{item!r}: {error}", key="per_destination") from error
    if options.per_destination:
        return
    for key in ("max_record_size", "filepool_limit", "filepool_cleanratio", "message_cleanup"):
        if is_written(options, key):
            raise ConfigError("has no meaning without per_destination", key=key)


def refuse_idle(options: JournalOptions) -> None:
    """For a store on disk. Raises: ConfigError for the first option without effect."""
    for keys, when in _idle(options):
        for key in keys.split():
            if is_written(options, key):
                raise ConfigError(f"does nothing {when}", key=key)


def _idle(options: JournalOptions) -> Iterator[tuple[str, str]]:
    """Options without effect if set, and when that is so."""
    strategy, compacts = options.sync_strategy, options.journal_compact_percentage
    if not options.journal_datasync and options.journal_disk_sync_strategy != NEVER:
        keys = "journal_disk_sync_strategy sync_on_write"
        yield keys, "with journal_datasync = false, which syncs nothing"
    if strategy != PERIODIC:
        yield "journal_disk_sync_interval", "unless journal_disk_sync_strategy is 'periodic'"
    if strategy != ALWAYS:
        keys = "journal_sync_transactional journal_sync_non_transactional"
        yield keys, "unless journal_disk_sync_strategy is 'always': no confirmation waits"
    if options.archive_data_logs:
        yield "journal_pool_files", "with archive_data_logs = true: dead files go to the archive"
    else:
        yield "directory_archive", "unless archive_data_logs = true"
    if options.journal_compact_min_files and not compacts:
        why = "with journal_compact_percentage = 0, which turns compaction off"
        yield "journal_compact_min_files", why
    if compacts and not options.journal_compact_min_files:
        why = "with journal_compact_min_files = 0, which turns compaction off"
        yield "journal_compact_percentage", why
    if not options.stands_by:
        yield "lock_renew_period lock_expiration", "unless lock_policy is 'wait'"
    if not options.persistent_index:
        yield "archive_corrupted_index", "with persistent_index = false: there is no metadata store"
    if not options.filepool_limit:
        yield "filepool_cleanratio message_cleanup", "with filepool_limit = 0: there is no pool"
    why = "unless broker.persistent = false; on disk, broker.disk_free_limit bounds the store"
    yield "memory_limit", why


def idle_without_files(options: JournalOptions) -> list[str]:
    """The options that were set and have no effect without files."""
    keys = (field.name for field in fields(options) if field.name not in IN_MEMORY_TOO)
    return [key for key in keys if is_written(options, key)]


def is_written(options: JournalOptions, key: str) -> bool:
    """Whether *key* was set. A boolean or None equal to the default never counts."""
    value = getattr(options, key)
    if value is None or isinstance(value, bool):
        return value is not getattr(_DEFAULTS, key)
    return not is_default(value)
