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


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Options of the journal store."""

    directory: str = option(
        "journal",
        help="Directory of the journal, below the data directory unless absolute. Put it on a "
        "device of its own to keep other writers from delaying the syncs.",
    )
    journal_max_file_length: int = option(
        32 << 20,
        help="Size of a data file. Small files are freed sooner; large ones mean fewer changes "
        "of file. A batch that is larger gets a file of its own size.",
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


def check(options: JournalOptions) -> None:
    """Refuse values that cannot work together. Raises: ConfigError."""
    if not options.directory.strip():
        raise ConfigError("is empty; name a directory such as 'journal'", key="directory")
    if options.journal_disk_sync_strategy not in STRATEGIES:
        raise ConfigError(
            f"{options.journal_disk_sync_strategy!r} is not one of {', '.join(STRATEGIES)}",
            key="journal_disk_sync_strategy",
        )
    if options.journal_max_file_length < 4 * DATA_OFFSET:
        raise ConfigError("is too small", key="journal_max_file_length")
    if options.cleanup_interval < options.checkpoint_interval:
        raise ConfigError(
            f"{options.cleanup_interval:g} s is shorter than checkpoint_interval "
            f"({options.checkpoint_interval:g} s); files are freed only at checkpoints",
            key="cleanup_interval",
        )
