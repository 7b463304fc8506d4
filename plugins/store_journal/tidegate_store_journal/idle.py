"""Options that somebody wrote and that would do nothing: an error at the start, never silence.

Whoever writes ``memory_limit`` believes that memory is limited. So the factory, which has what was
written, refuses such options by name. ``broker.persistent = false`` is the exception: it is one
switch for a whole configuration, which has to start with it too, so there a warning names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidegate.spi import ConfigError
from tidegate_store_journal.options import ALWAYS, NEVER, PERIODIC, JournalOptions
from tidegate_store_journal.presets import is_default

#: (keys, whether they do nothing, why): only asked when the key was written.
_RULES: Final[Sequence[tuple[tuple[str, ...], Callable[[JournalOptions], bool], str]]] = (
    (
        ("journal_disk_sync_strategy", "sync_on_write"),
        lambda options: (
            not options.journal_datasync and options.journal_disk_sync_strategy != NEVER
        ),
        "does nothing with journal_datasync = false, which syncs nothing",
    ),
    (
        ("journal_disk_sync_interval",),
        lambda options: options.sync_strategy != PERIODIC,
        "does nothing unless journal_disk_sync_strategy is 'periodic'",
    ),
    (
        ("journal_sync_transactional", "journal_sync_non_transactional"),
        lambda options: options.sync_strategy != ALWAYS,
        "does nothing unless journal_disk_sync_strategy is 'always': no confirmation waits",
    ),
    (
        ("directory_archive",),
        lambda options: not options.archive_data_logs,
        "does nothing unless archive_data_logs = true",
    ),
    (
        ("journal_pool_files",),
        lambda options: options.archive_data_logs,
        "does nothing with archive_data_logs = true: every dead file goes to the archive",
    ),
    (
        ("journal_compact_min_files",),
        lambda options: (
            bool(options.journal_compact_min_files) and not options.journal_compact_percentage
        ),
        "does nothing with journal_compact_percentage = 0, which turns compaction off",
    ),
    (
        ("journal_compact_percentage",),
        lambda options: (
            bool(options.journal_compact_percentage) and not options.journal_compact_min_files
        ),
        "does nothing with journal_compact_min_files = 0, which turns compaction off",
    ),
    (
        ("archive_corrupted_index",),
        lambda options: not options.persistent_index,
        "does nothing with persistent_index = false: there is no metadata store",
    ),
    (
        ("filepool_cleanratio", "message_cleanup"),
        lambda options: not options.filepool_limit,
        "does nothing with filepool_limit = 0: there is no pool",
    ),
    (
        ("memory_limit",),
        lambda _options: True,
        "does nothing unless broker.persistent = false; on disk, disk_free_limit bounds the store",
    ),
)

#: What is about files and the disk: nothing to act on with ``broker.persistent = false``.
_ABOUT_THE_DISK: Final = (
    "directory",
    "create_journal_dir",
    "journal_pool_files",
    "archive_data_logs",
    "directory_archive",
    "damaged_journal_policy",
    "ignore_missing_journalfiles",
    "check_for_corrupt_journal_files",
    "archive_corrupted_index",
    "per_destination",
    "max_record_size",
    "filepool_limit",
    "filepool_cleanratio",
    "message_cleanup",
    "journal_disk_sync_strategy",
    "sync_on_write",
    "journal_disk_sync_interval",
    "journal_type",
    "journal_max_io",
    "journal_sync_transactional",
    "journal_sync_non_transactional",
    "journal_datasync",
    "persistent_index",
    "large_message_min_size",
    "large_messages_directory",
    "disk_free_limit",
)

#: Options of which it must be known whether somebody wrote them.
ASKED_FOR: Final = frozenset(_ABOUT_THE_DISK).union(*(keys for keys, _, _ in _RULES))

_DEFAULTS: Final = JournalOptions()


def is_written(options: JournalOptions, key: str) -> bool:
    """Tell whether somebody wrote *key*. A truth value or None that is the default never counts."""
    value = getattr(options, key)
    if value is None or isinstance(value, bool):
        return value is not getattr(_DEFAULTS, key)
    return not is_default(value)


def refuse_idle(options: JournalOptions) -> None:
    """For a store on disk. Raises: ConfigError: the first option that would do nothing."""
    for keys, does_nothing, why in _RULES:
        for key in keys:
            if is_written(options, key) and does_nothing(options):
                raise ConfigError(why, key=key)


def idle_without_files(options: JournalOptions) -> list[str]:
    """The options that somebody wrote and that have no effect without files."""
    return [key for key in _ABOUT_THE_DISK if is_written(options, key)]
