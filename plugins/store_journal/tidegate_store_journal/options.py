"""The options of ``[store] plugin = "journal"``; names and defaults follow the AMQ and Artemis documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.spi import ConfigError, Kind, SyncedFor, option
from tidegate.spi.machine.lease import FAIL, WAIT
from tidegate_store_journal.presets import (
    CHOICES,
    NO_PRESET,
    DefaultFloat,
    DefaultInt,
    DefaultList,
    DefaultText,
    is_default,
    preset_values,
)

#: When written batches are forced to stable storage.
ALWAYS: Final = "always"
PERIODIC: Final = "periodic"
NEVER: Final = "never"
STRATEGIES: Final = (ALWAYS, PERIODIC, NEVER)

#: How batches get to the disk.
NIO: Final = "NIO"
ASYNCIO: Final = "ASYNCIO"
MAPPED: Final = "MAPPED"
TYPES: Final = (NIO, ASYNCIO, MAPPED)
#: ``journal_max_io`` of ASYNCIO; the others have one request in progress.
ASYNCIO_MAX_IO: Final = 500


#: What damage in the middle of the journal leads to.
REFUSE: Final = "refuse"
QUARANTINE: Final = "quarantine"
DAMAGE_POLICIES: Final = (REFUSE, QUARANTINE)


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Options of the journal store."""

    preset: str = option(
        NO_PRESET,
        help="Names, sizes and layout of an older store: 'kahadb', 'amq', 'artemis' or "
        "'flatfile' (docs/store-journal.md has the table). Options that you set yourself "
        "take precedence.",
        choices=CHOICES,
    )
    directory: str = option(
        DefaultText("journal"),
        help="Directory of the journal, below the data directory unless absolute; {gateway} in it "
        "is the gateway's name. Put it on a "
        "device of its own to keep other writers from delaying the syncs.",
    )
    create_journal_dir: bool = option(
        True,
        help="Create the directory when it is missing. False: refuse to start, so that an "
        "unmounted volume does not look like an empty store.",
    )
    lock_policy: str = option(
        DefaultText(FAIL),
        help="When another gateway owns the directory at start: 'fail' at once, or 'wait' "
        "as its standby. Set 'wait' for all gateways of the directory: it also keeps a "
        "gateway that was paused from confirming anything (docs/high-availability.md).",
        choices=(WAIT, FAIL),
    )
    lock_renew_period: float = option(
        DefaultFloat(0.5),
        help="Time between signs of life in the lock file.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
    )
    lock_expiration: float = option(
        DefaultFloat(2.0),
        help="How long a standby waits for an owner that may or may not be dead, because it "
        "is on another machine. An owner that was away for longer gives up.",
        kind=Kind.DURATION,
        minimum=0.05,
        maximum=86400,
    )
    journal_max_file_length: int = option(
        DefaultInt(32 << 20),
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
        DefaultInt(2),
        help="Data files to keep in all, used or ready for use. They are created at the "
        "first start so that no write waits for a new file. One more is created ahead when "
        "the current one is half full.",
        minimum=2,
        maximum=1000,
    )
    journal_pool_files: int = option(
        DefaultInt(-1),
        help="Number of data files, in use or not, up to which dead ones are kept for reuse "
        "instead of being deleted; a reused file needs no padding. -1: never delete one, so "
        "the disk keeps what the largest backlog took.",
        minimum=-1,
        maximum=1_000_000,
    )
    journal_compact_min_files: int = option(
        DefaultInt(10),
        help="Data files in use before a share of live bytes below "
        "journal_compact_percentage starts a compaction, which copies the last messages of "
        "the emptiest file to the end of the journal. However few files there are, the disk "
        "is kept below 3 times the live bytes and 4 files.",
        minimum=1,
        maximum=1_000_000,
        zero="never compact; one message can then keep a file for ever",
    )
    journal_compact_percentage: int = option(
        DefaultInt(30),
        help="Share of live bytes in all used data files, in percent, below which they are "
        "compacted.",
        minimum=1,
        maximum=50,
        zero="never compact",
    )
    archive_data_logs: bool = option(
        False,
        help="Move data files in which nothing is alive to directory_archive instead of "
        "reusing or deleting them. Nothing ever deletes them there.",
    )
    directory_archive: str = option(
        DefaultText("archive"),
        help="Where archive_data_logs moves files to, below the journal's directory unless "
        "absolute. On another file system each file is copied.",
    )
    damaged_journal_policy: str = option(
        DefaultText(REFUSE),
        help="What to do about damage in the middle of a data file: 'refuse' to start, "
        "naming file, offset and length; or 'quarantine': keep a copy of the damaged bytes, "
        "take them out, serve the rest, and list what was lost in damage-NNNN.report. A "
        "torn tail is repaired either way.",
        choices=DAMAGE_POLICIES,
    )
    ignore_missing_journalfiles: bool = option(
        False,
        help="Start even if data files that held pending messages are missing, and list "
        "those messages in damage-NNNN.report. Otherwise the start is refused and the "
        "missing files are named.",
    )
    check_for_corrupt_journal_files: bool = option(
        False,
        help="Read and check every data file at each start, not only what is newer than the "
        "last checkpoint. The start then takes as long as reading all of them.",
    )
    archive_corrupted_index: bool = option(
        False,
        help="Keep a damaged metadata store as metadata.corrupt-N when it is rebuilt, instead of "
        "removing it.",
    )
    per_destination: tuple[str, ...] = option(
        DefaultList(),
        help="Filters of destinations (such as 'queue://>') whose messages are kept in a directory "
        "of their own, in data files like the journal's; the journal then holds only references to "
        "them. A destination with a backlog does not keep the files of others.",
    )
    max_record_size: int = option(
        DefaultInt(1 << 20),
        help="For a destination with a directory of its own: a larger message is kept in a "
        "file of its own there, which is removed when that message is consumed.",
        kind=Kind.SIZE,
        minimum=1 << 10,
        maximum=1 << 30,
    )
    filepool_limit: int = option(
        DefaultInt(100),
        help="Dead data files that a destination's directory keeps for reuse instead of "
        "deleting them (fewer if they would exceed the bound on its room).",
        minimum=0,
        maximum=100_000,
    )
    filepool_cleanratio: int = option(
        DefaultInt(0),
        help="Percentage of those files that are emptied when they are no longer needed. "
        "The others keep their contents, which saves time and takes room.",
        minimum=0,
        maximum=100,
    )
    message_cleanup: bool = option(
        False,
        help="Empty all of those files when the gateway stops: less room, a longer stop.",
    )
    journal_disk_sync_strategy: str = option(
        DefaultText(ALWAYS),
        help="When confirmed batches are forced to disk: 'always' before the confirmation, "
        "'periodic' every journal_disk_sync_interval, 'never' when the system likes. Only "
        "'always' never loses confirmed messages in a power cut; none of them loses any "
        "when only the gateway dies.",
        choices=STRATEGIES,
    )
    sync_on_write: bool | None = option(
        None,
        help="The AMQ documents' name: true is journal_disk_sync_strategy 'always', false is "
        "'never'; give one of the two.",
    )
    journal_disk_sync_interval: float = option(
        DefaultFloat(1.0),
        help="Time between syncs with strategy 'periodic': how much a power cut can cost.",
        kind=Kind.DURATION,
        minimum=0.001,
        maximum=3600,
    )
    journal_type: str = option(
        DefaultText(NIO),
        help="How batches get to the disk: 'NIO' by a thread; 'ASYNCIO' by io_uring without "
        "a thread (the extra 'asyncio' of tidegate-store-journal; falls back to NIO if it "
        "is missing); 'MAPPED' by a thread through a mapping of the file. The bytes on disk "
        "are the same.",
        choices=TYPES,
    )
    journal_max_io: int | None = option(
        None,
        help="Requests of one batch under way at once. Left out: 500 with journal_type "
        "'ASYNCIO'; the others always have 1.",
        minimum=1,
        maximum=4096,
    )
    journal_buffer_size: int = option(
        DefaultInt(490 << 10),
        help="With journal_buffer_timeout: a batch is written as soon as it reaches this "
        "size. With journal_type 'ASYNCIO' also the longest request; larger batches are "
        "several.",
        kind=Kind.SIZE,
        minimum=4 << 10,
        maximum=64 << 20,
    )
    journal_buffer_timeout: float = option(
        0.0,
        help="Gather batches for this long, or until journal_buffer_size, and write and "
        "sync them as one. What arrives while a batch is under way is always gathered, even "
        "with 0.",
        kind=Kind.DURATION,
        minimum=0.000_001,
        maximum=10,
        zero="write at once",
    )
    journal_sync_transactional: bool = option(
        True,
        help="Commits of transactions are confirmed when they are on disk. False: when they are "
        "written; a power cut may cost the last 50 ms.",
    )
    journal_sync_non_transactional: bool = option(
        True,
        help="Everything else is confirmed when it is on disk. False: as above.",
    )
    journal_datasync: bool = option(
        True,
        help="Sync data files at all. False: confirmed messages survive the death of the gateway "
        "but not of the machine; checkpoints still sync, so that they are never ahead.",
    )
    checkpoint_interval: float = option(
        DefaultFloat(5.0),
        help="Time between checkpoints into the metadata store: what a start after a crash "
        "replays.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
    )
    max_checkpoint_message_add_size: int = option(
        100_000,
        help="Number of messages, added and not consumed since the last checkpoint, at "
        "which the next one begins early. Bounds what a start after a crash replays while a "
        "backlog builds up.",
        minimum=4096,
        maximum=100_000_000,
        zero="checkpoints by the clock only",
    )
    persistent_index: bool = option(
        True,
        help="Keep the index in the metadata store. false: keep it in memory only; every start "
        "then reads all data files (some 20 seconds for 5 million small messages).",
    )
    memory_limit: int = option(
        DefaultInt(512 << 20),
        help="Only with broker.persistent = false: memory for the data files, as if it were "
        "the disk. At the limit new messages are refused (store full); acknowledging makes "
        "room. At least 4 files.",
        kind=Kind.SIZE,
        minimum=256 << 10,
        act="new messages are refused (store full)",
    )
    cleanup_interval: float = option(
        DefaultFloat(30.0),
        help="Time between deletions of data files in which nothing is alive.",
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=86400,
    )
    large_message_min_size: int = option(
        DefaultInt(100 << 10),
        help="Bodies of at least this size that a protocol can stream get a file of their "
        "own and are never whole in memory.",
        kind=Kind.SIZE,
        minimum=1 << 10,
        maximum=64 << 20,
        zero="every new body is kept in the data files and passes through memory",
    )
    large_messages_directory: str = option(
        DefaultText("large-messages"),
        help="Directory for the files of large bodies, below the journal's directory unless "
        "absolute. Only this store may use it: at start, whatever no message refers to is "
        "removed.",
    )
    slow_sync_threshold: float = option(
        0.5,
        help="A sync that takes longer is logged as a warning, because every confirmation "
        "waits for it.",
        kind=Kind.DURATION,
        minimum=0.001,
        zero="never log",
    )

    def __post_init__(self) -> None:
        """Give each option its effective value, which is also what is printed.

        Raises: ConfigError: one option under two names, already when a configuration is only checked.
        """
        values = preset_values(self.preset)
        if self.journal_file_size is not None:
            values |= self._other_name(
                "journal_file_size", "journal_max_file_length", DefaultInt(self.journal_file_size)
            )
        if self.sync_on_write is not None:
            strategy = DefaultText(ALWAYS if self.sync_on_write else NEVER)
            values |= self._other_name("sync_on_write", "journal_disk_sync_strategy", strategy)
        for key, value in values.items():
            if is_default(getattr(self, key)):
                object.__setattr__(self, key, value)

    def _other_name(self, other: str, key: str, value: object) -> dict[str, object]:
        if not is_default(getattr(self, key)):
            raise ConfigError(f"is another name of {key}; give one of the two", key=other)
        return {key: value}

    @property
    def stands_by(self) -> bool:
        """Whether it waits for the owner of the directory, and lets others wait."""
        return self.lock_policy == WAIT

    @property
    def file_length(self) -> int:
        """Bytes of a data file, under whichever name it was set."""
        return int(self.journal_max_file_length)

    @property
    def quarantines(self) -> bool:
        """Whether damage is taken out instead of refused."""
        return self.damaged_journal_policy == QUARANTINE

    @property
    def sync_strategy(self) -> str:
        """When confirmed batches are synced, all options considered."""
        return self.journal_disk_sync_strategy if self.journal_datasync else NEVER

    @property
    def synced_for(self) -> SyncedFor:
        """What is confirmed only once it is on stable storage."""
        if self.sync_strategy != ALWAYS:
            return SyncedFor(0)
        single = SyncedFor.SINGLE if self.journal_sync_non_transactional else SyncedFor(0)
        return single | (SyncedFor.TRANSACTION if self.journal_sync_transactional else 0)

    @property
    def max_io(self) -> int:
        """Requests of one batch in progress at once."""
        if self.journal_type != ASYNCIO:
            return 1
        return self.journal_max_io or ASYNCIO_MAX_IO
