"""The options of ``[store] plugin = "journaled"``: those of the SQL store, and of the journal in front.

Names, units and defaults are those of the journaled JDBC persistence adapter, in snake_case.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from tidegate.spi import ConfigError, Kind, format_size, option
from tidegate.spi.machine import lease
from tidegate_store_jdbc import JdbcOptions
from tidegate_store_journal import JournalOptions

#: What to do at start when the journal of the database's last gateway is not here.
FAIL: Final = "fail"
IGNORE: Final = "ignore"


@dataclass(frozen=True, slots=True, repr=False)
class JournaledOptions(JdbcOptions):
    """Options of the journaled SQL store."""

    use_journal: bool = option(
        True,
        help="Put the journal in front of the database. With false this is the plain SQL store, "
        "which refuses a database whose journal still holds messages.",
    )
    use_quick_journal: bool = option(
        False,
        help="Keep the bodies of messages in the journal and only references in the database. The "
        "journal then holds the bodies of everything that is pending, and is as important as the "
        "database.",
    )
    journal_directory: str = option(
        "journaled",
        help="Directory of the journal, below the data directory unless absolute. A standby "
        "that is to take over without losing anything needs the same directory, on shared "
        "storage.",
    )
    journal_log_files: int = option(
        2,
        help="Number of log files of the journal. Together with journal_log_file_size, this "
        "is how much may wait for the database. When half of it is used a checkpoint "
        "begins; when all of it is full, messages wait.",
        minimum=2,
        maximum=100,
    )
    journal_log_file_size: int = option(
        20 << 20,
        help="Size of one log file.",
        kind=Kind.SIZE,
        minimum=64 << 10,
        maximum=1 << 30,
    )
    journal_archive_directory: str = option(
        "",
        help="Move log files that are no longer needed to this directory, below the "
        "journal's unless absolute. Left empty: they are reused.",
    )
    checkpoint_interval: float = option(
        6.0,
        help="Time between checkpoints. A checkpoint writes what is still pending to the "
        "database in one transaction; what was consumed before never gets there.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
    )
    journal_lost_policy: str = option(
        FAIL,
        help="When the database's last journal is not the one in journal_directory and may hold "
        "confirmed messages: 'fail' refuses to start, 'ignore' gives those messages up.",
        choices=(FAIL, IGNORE),
    )

    @property
    def files_bytes(self) -> int:
        """Bytes of the journal's files when it is full: one more for acknowledgements, one
        prepared ahead, and one kept."""
        return (self.journal_log_files + 3) * self.journal_log_file_size

    @property
    def capacity_bytes(self) -> int:
        """Bytes that may wait for the database."""
        return self.journal_log_files * self.journal_log_file_size


#: The options of the journal and their defaults, by name.
_JOURNAL: Final = {
    field.name: field.default
    for field in fields(JournaledOptions)
    if field.name != "use_journal" and field.name not in {own.name for own in fields(JdbcOptions)}
}


def check_journal(options: JournaledOptions) -> None:
    """Refuse options that cannot work together. Raises: ConfigError."""
    if not options.journal_directory.strip():
        raise ConfigError("is empty; name a directory such as 'journaled'", key="journal_directory")
    if not options.use_journal:
        for key, default in _JOURNAL.items():
            if getattr(options, key) != default:
                raise ConfigError("does nothing without use_journal", key=key)


def check_store_limit(options: JournaledOptions, limit: int) -> None:
    """Check that *limit* (``broker.store_limit``) fits an empty journal. Raises: ConfigError."""
    least = 2 * options.files_bytes
    if 0 < limit < least:
        raise ConfigError(
            f"broker.store_limit ({format_size(limit)}) is less than {format_size(least)}, twice what the"
            " journal may take by itself, and would never be free: make its files smaller, or the limit"
            " larger",
            key="journal_log_file_size",
        )


def journal_options(options: JournaledOptions, *, is_standby: bool = False) -> JournalOptions:
    """The options of the journal that stands in front."""
    return JournalOptions(
        # Without files (`persistent = false`) it gets room for twice what may wait.
        memory_limit=max(
            JournalOptions().memory_limit,
            2 * options.files_bytes,
        ),
        # Our checkpoint frees whole files at once, and their room may be needed immediately.
        cleanup_interval=JournalOptions().checkpoint_interval,
        directory=options.journal_directory,
        lock_policy=lease.WAIT if is_standby else lease.FAIL,
        lock_renew_period=options.lock_renew_period,
        lock_expiration=options.lock_expiration,
        journal_max_file_length=options.journal_log_file_size,
        journal_min_files=options.journal_log_files,
        journal_pool_files=options.journal_log_files,
        archive_data_logs=bool(options.journal_archive_directory),
        directory_archive=options.journal_archive_directory or "archive",
    )
