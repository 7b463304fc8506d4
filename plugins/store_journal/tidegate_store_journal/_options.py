"""The options of ``[store] plugin = "journal"``; names and defaults follow the AMQ and Artemis documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.spi import ConfigError, Kind, option
from tidegate_store_journal._format import DATA_OFFSET

#: When written batches are forced to stable storage.
ALWAYS: Final = "always"
PERIODIC: Final = "periodic"
NEVER: Final = "never"
STRATEGIES: Final = (ALWAYS, PERIODIC, NEVER)


class _Default(int):
    """A number that nobody wrote: so that a default can be told from the same number written."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Options of the journal store."""

    directory: str = option(
        "journal",
        help="Directory of the journal, below the data directory unless absolute. Put it on a "
        "device of its own to keep other writers from delaying the syncs.",
    )
    journal_max_file_length: int = option(
        _Default(32 << 20),
        help="Size of a data file. Small files are freed sooner; large ones mean fewer changes "
        "of file. A batch that is larger gets a file of its own size.",
        kind=Kind.SIZE,
        minimum=64 << 10,
        maximum=4 << 30,
    )
    journal_file_size: int | None = option(
        None,
        help="The Artemis documents' name for journal_max_file_length; give one of the two.",
        kind=Kind.SIZE,
        minimum=64 << 10,
        maximum=4 << 30,
    )
    journal_min_files: int = option(
        2,
        help="Data files to keep in all, used or ready for use; made at the first start so that "
        "no write waits for a new file. One more is made ahead when the current one is half full.",
        minimum=2,
        maximum=1000,
    )
    journal_pool_files: int = option(
        -1,
        help="Data files, in use or not, up to which dead ones are kept to be used again instead "
        "of being deleted: a file that is used again needs no padding. -1: never delete one, so "
        "the disk keeps what the largest backlog took.",
        minimum=-1,
        maximum=1_000_000,
    )
    journal_compact_min_files: int = option(
        10,
        help="Data files in use before less than journal_compact_percentage of live bytes begins a "
        "compaction: the last messages of the emptiest file are copied to the end of the journal. "
        "However few files there are, the disk is kept below 3 times the live bytes and 4 files.",
        minimum=1,
        maximum=1_000_000,
        zero="never compact; one message can then keep a file for ever",
    )
    journal_compact_percentage: int = option(
        30,
        help="Share of live bytes in all used data files, in percent, below which they are "
        "compacted.",
        minimum=1,
        maximum=50,
        zero="never compact",
    )
    archive_data_logs: bool = option(
        False,
        help="Move data files in which nothing lives any more to directory_archive instead of "
        "using them again or deleting them. Nothing ever deletes them there.",
    )
    directory_archive: str = option(
        "archive",
        help="Where archive_data_logs moves files to, below the journal's directory unless "
        "absolute. On another file system each file is copied.",
    )
    journal_disk_sync_strategy: str = option(
        ALWAYS,
        help="When confirmed batches are forced to disk: 'always' before the confirmation, "
        "'periodic' every journal_disk_sync_interval, 'never' when the system likes. All but "
        "'always' can lose confirmed messages in a power cut (not when only the gateway dies).",
        choices=STRATEGIES,
    )
    journal_disk_sync_interval: float = option(
        1.0,
        help="Time between syncs with strategy 'periodic': what a power cut can cost.",
        kind=Kind.DURATION,
        minimum=0.001,
        maximum=3600,
    )
    checkpoint_interval: float = option(
        5.0,
        help="Time between checkpoints into the metadata store: what a start after a crash "
        "replays.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
    )
    cleanup_interval: float = option(
        30.0,
        help="Time between deletions of data files in which nothing lives any more.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=86400,
    )
    large_message_min_size: int = option(
        100 << 10,
        help="Bodies of at least this size that a protocol can stream have a file of their own and "
        "are never whole in memory.",
        kind=Kind.SIZE,
        minimum=1 << 10,
        maximum=64 << 20,
        zero="every body is kept in the data files and passes through memory",
    )
    large_messages_directory: str = option(
        "large-messages",
        help="Directory of the files of large bodies, below the journal's directory unless "
        "absolute. Used by this store alone: what no message refers to is removed at the start.",
    )
    disk_free_limit: int = option(
        50 << 20,
        help="New messages are refused (store full) while the file system has less room, so that "
        "acknowledgements, checkpoints and other programs still have some.",
        kind=Kind.SIZE,
        minimum=0,
    )
    slow_sync_threshold: float = option(
        0.5,
        help="A sync that takes longer is logged as a warning: every confirmation waits for it.",
        kind=Kind.DURATION,
        minimum=0.001,
        zero="never log",
    )

    def __post_init__(self) -> None:
        """Refuse one option under two names, already when a configuration is only checked.

        Raises: ConfigError.
        """
        if self.journal_file_size is None:
            return
        if not isinstance(self.journal_max_file_length, _Default):
            raise ConfigError(
                "is another name of journal_max_file_length; give one of the two",
                key="journal_file_size",
            )
        # Whoever prints the options sees the same value under both names.
        object.__setattr__(self, "journal_max_file_length", _Default(self.journal_file_size))

    @property
    def file_length(self) -> int:
        """Bytes of a data file, under whichever name they were given."""
        return int(self.journal_max_file_length)


def check(options: JournalOptions) -> None:
    """Refuse values that cannot work together. Raises: ConfigError."""
    if not options.directory.strip():
        raise ConfigError("is empty; name a directory such as 'journal'", key="directory")
    if options.journal_disk_sync_strategy not in STRATEGIES:
        raise ConfigError(
            f"{options.journal_disk_sync_strategy!r} is not one of {', '.join(STRATEGIES)}",
            key="journal_disk_sync_strategy",
        )
    if options.file_length < 4 * DATA_OFFSET:
        raise ConfigError("is too small", key="journal_max_file_length")
    if options.large_message_min_size and not options.large_messages_directory.strip():
        raise ConfigError(
            "is empty; name a directory such as 'large-messages'", key="large_messages_directory"
        )
    if options.archive_data_logs and not options.directory_archive.strip():
        raise ConfigError("is empty; name a directory such as 'archive'", key="directory_archive")
    if options.cleanup_interval < options.checkpoint_interval:
        raise ConfigError(
            f"{options.cleanup_interval:g} s is shorter than checkpoint_interval "
            f"({options.checkpoint_interval:g} s); files are freed only at checkpoints",
            key="cleanup_interval",
        )
