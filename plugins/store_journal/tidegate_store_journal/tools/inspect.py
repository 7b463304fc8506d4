"""What is in a journal, for ``tidegate journal inspect``: files, records by type, pending lists.

Takes no lock and writes nothing; see ``_lookon``. Everything here blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidegate.spi import Progress, StoreIOError
from tidegate_store_journal.checkpoint.metadata import (
    MetadataCounters,
    MetadataError,
    read_counters,
)
from tidegate_store_journal.log.datafile import read_data_file
from tidegate_store_journal.log.format import FormatError, file_name
from tidegate_store_journal.tools.census import take_census
from tidegate_store_journal.tools.lookon import Look, ReadOnlyStorage, look
from tidegate_store_journal.tools.why import FileReport, Owner, file_reports, owners


@dataclass(frozen=True, slots=True)
class ListReport(Owner):
    """A pending list.

    Attributes:
        messages, body_bytes: how much is pending; first_sequence: of the oldest, 0 when empty.
        delivered: of them, how many were delivered before and not acknowledged.
    """

    pending_list: int = 0
    messages: int = 0
    body_bytes: int = 0
    first_sequence: int = 0
    delivered: int = 0


@dataclass(slots=True)
class JournalReport:
    """A journal.

    Attributes:
        store_id: identity of the contents; batch, last_sequence: the highest there are.
        acknowledged_first, acknowledged_last: rows of the acknowledged log that are held.
        files: in the journal's order; lists: by their id.
        records: per file that holds batches, records by type; empty when they were not counted.
        batches: per file, the numbers of its first and its last batch; likewise.
        counters: what was ever written into the metadata store; None when it cannot be read.
    """

    directory: str
    store_id: str
    batch: int
    last_sequence: int
    acknowledged_first: int
    acknowledged_last: int
    sessions: int
    retained: int
    files: list[FileReport]
    lists: list[ListReport]
    records: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    batches: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    counters: MetadataCounters | None = None


def report(directory: Path, progress: Progress, *, records: bool = True) -> JournalReport:
    """Everything worth knowing. With *records* the files are read whole, to count what is in them.

    Raises: StoreIOError, CorruptRecordError.
    """
    with look(directory) as seen:
        index = seen.replay.index
        result = JournalReport(
            directory=str(directory),
            store_id=seen.store_id,
            batch=index.batch,
            last_sequence=index.last_sequence,
            acknowledged_first=index.log.released + 1,
            acknowledged_last=index.log.last,
            sessions=len(index.sessions),
            retained=len(index.retained),
            files=file_reports(seen),
            lists=_lists(seen),
        )
    try:
        result.counters = read_counters(directory)
    except MetadataError:
        pass  # `verify` says what is wrong with it; the rest is in the data files
    if records:
        storage = ReadOnlyStorage(directory)
        storage.list()  # it has to know where they are
        used = [file for file in result.files if file.state in ("used", "current")]
        for done, one in enumerate(used):
            name = file_name(one.file_id)
            progress("counting records", done, len(used))
            try:
                census = take_census(read_data_file(storage, name))
            except FileNotFoundError:
                continue  # put away by the gateway meanwhile
            except FormatError as error:
                raise StoreIOError(f"{storage.describe(name)}: {error}") from error
            result.records[one.name] = census.types
            result.batches[one.name] = (census.first_batch, census.last_batch)
        progress("counting records", len(used), len(used))
    return result


def _lists(seen: Look) -> list[ListReport]:
    index = seen.replay.index
    queues = filter(None, index.destinations.values())
    found: list[ListReport] = []
    owner_of = owners(index)
    for list_id in sorted({*queues, *index.subscriptions, *index.lists}):
        owner = owner_of(list_id)
        who = (owner.kind, owner.destination, owner.client_id, owner.subscription)
        pending = index.lists.get(list_id)
        if pending is None:
            found.append(ListReport(*who, list_id))
            continue
        page = pending.page(0, 1, 1)
        first = page[0][0] if page else 0
        counts = (len(pending), pending.body_bytes(), first, len(pending.deliveries))
        found.append(ListReport(*who, list_id, *counts))
    return found
