"""Between recovery and a running store: which files are used again, and what the broker is told."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.spi import RecoveredDestination, RecoveredState, RecoveryReport
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import Storage
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.start.recovery import Recovered


def recovered_state(found: Recovered) -> RecoveredState:
    """What the broker is told."""
    index = found.index
    lists = [*index.lists, *index.destinations.values(), *index.subscriptions]
    return RecoveredState(
        store_id=found.store_id,
        last_sequence=index.last_sequence,
        last_pending_list=max([index.last_list, *lists]),
        destinations=[
            RecoveredDestination(name, list_id) for name, list_id in index.destinations.items()
        ],
        subscriptions=list(index.subscriptions.values()),
        sessions=list(index.sessions.values()),
        inflight=list(index.inflight_records()),
        retained=list(index.retained.values()),
        pending=index.counts(),
        report=RecoveryReport(
            clean=found.clean,
            notes=tuple(found.notes),
            counts={"replayed": found.replayed, "repaired_bytes": found.repaired_bytes},
        ),
    )


def usable_spares(storage: Storage, spares: Sequence[DataFile], length: int) -> list[DataFile]:
    """Spares of *length*; others (the option was changed) are deleted. Blocks. Raises: OSError."""
    usable: list[DataFile] = []
    for file in spares:
        if file.length == length:
            usable.append(file)
        else:
            file.close()
            storage.unlink(file.name)
    return usable


def usable_pool(
    storage: Storage, names: Sequence[str], options: JournalOptions, others: int
) -> list[str]:
    """Dead files that may be used again beside *others*; the rest is deleted. Blocks.

    Raises: OSError.
    """
    usable: list[str] = []
    for name in names:
        file = storage.open(name)
        length = file.length
        file.close()
        limit = options.journal_pool_files
        if length == options.file_length and (limit < 0 or others + len(usable) < limit):
            usable.append(name)
        else:
            storage.unlink(name)
    return usable
