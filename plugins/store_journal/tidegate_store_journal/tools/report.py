"""What is in a journal, and what keeps its data files: ``tidegate journal inspect`` and ``why``.

Both report on one look (see ``lookon``): the state when they were called. They take no lock and
write nothing. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from tidegate.spi import Progress, StoreIOError
from tidegate_store_journal.checkpoint.metadata import MetadataCounters
from tidegate_store_journal.index.holders import Holder, Owner, holders_in, owner_of
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import file_id_of
from tidegate_store_journal.tools.census import Census
from tidegate_store_journal.tools.lookon import Look, look


@dataclass(frozen=True, slots=True)
class ListReport(Owner):
    """A pending list.

    Attributes:
        messages, body_bytes: how much is pending; first_sequence: of the oldest, 0 when empty.
        delivered: how many of them were delivered before but not acknowledged.
    """

    messages: int
    body_bytes: int
    first_sequence: int
    delivered: int


@dataclass(frozen=True, slots=True)
class FileReport:
    """One data file.

    Attributes:
        state: ``current`` (new batches go there), ``used``, ``spare`` (ready for use) or ``free``
            (dead, to be reused).
        length: bytes; live_bytes: bytes of the records of messages that something refers to.
        references: list entries and rows of the acknowledged log that refer to them.
        holders: who keeps it; only :func:`why` fills this in.
    """

    name: str
    file_id: int
    state: str
    length: int
    live_bytes: int
    references: int
    holders: Sequence[Holder] = ()

    @property
    def live_share(self) -> float:
        """Share of the file that is alive, 0 to 1."""
        return self.live_bytes / self.length if self.length else 0.0

    @property
    def live_percent(self) -> str:
        """The same for a table."""
        return f"{100 * self.live_share:.1f}"


@dataclass(slots=True)
class JournalReport:
    """A journal.

    Attributes:
        store_id: identity of the contents; batch, last_sequence: the highest ones.
        acknowledged_first, acknowledged_last: rows of the acknowledged log that are held.
        files: in the journal's order; lists: by their id.
        records: per file with batches, records by type; empty when they were not counted.
        batches: per file, the numbers of its first and its last batch; likewise.
        counters: everything ever written into the metadata store; None if it cannot be read.
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
    """Everything worth knowing. With *records* the files are read whole, to count their records.

    Raises: StoreIOError when there is no journal, or when it changes too fast to be read;
        CorruptRecordError.
    """
    seen = look(directory)
    index = seen.index
    result = JournalReport(
        directory=str(directory),
        store_id=seen.replay.store_id,
        batch=index.batch,
        last_sequence=index.last_sequence,
        acknowledged_first=index.log.released + 1,
        acknowledged_last=index.log.last,
        sessions=len(index.sessions),
        retained=len(index.retained),
        files=_files(seen),
        lists=list(_lists(index)),
        counters=seen.counters,
    )
    if not records:
        return result
    used = seen.replay.files
    for done, file in enumerate(used):
        progress("counting records", done, len(used))
        try:
            census = Census(file)
        except FileNotFoundError:
            continue  # put away by the gateway meanwhile
        name = seen.shown(file.name)
        result.records[name] = census.types
        result.batches[name] = census.first, census.last.batch if census.last else 0
    progress("counting records", len(used), len(used))
    return result


def inspect(directory: Path) -> list[FileReport]:
    """All data files of the journal in *directory*, in the journal's order. Raises: as :func:`report`."""
    return _files(look(directory))


def why(directory: Path, name: str) -> FileReport:
    """What keeps the data file called *name* (a path is fine: its last part counts).

    Raises: as :func:`report`; StoreIOError also when there is no such file.
    """
    wanted = Path(name).name
    seen = look(directory)
    files = {file.name: file for file in _files(seen)}
    found = files.get(wanted) or files.get(seen.shown(wanted))  # under whatever name it has there
    if found is None:
        known = ", ".join(files) or "none"
        raise StoreIOError(f"{directory} has no data file {wanted}; it has: {known}")
    holders = [item for item in holders_in(seen.index, found.file_id) if item is not None]
    return replace(found, holders=holders)


def _files(seen: Look) -> list[FileReport]:
    """All data files, without what keeps them."""
    replay = seen.replay
    reports: list[FileReport] = []
    for file in (*replay.files, *replay.spares):
        use = seen.index.files.get(file.file_id)
        live, references = (use.live_bytes, use.references) if use else (0, 0)
        state = "used" if file.first_batch else "spare"
        if file is replay.tail:
            state = "current"
        name = seen.shown(file.name)
        reports.append(FileReport(name, file.file_id, state, file.length, live, references))
    for name, length in seen.free:
        reports.append(FileReport(seen.shown(name), file_id_of(name), "free", length, 0, 0))
    return reports


def _lists(index: Index) -> Iterator[ListReport]:
    owners = index.owners()
    branches = {branch.pending_list for branch in index.branches.values()}
    for list_id in sorted((owners.keys() - branches - {0}) | index.lists.keys()):
        pending = index.list_of(list_id)
        page = pending.page(0, 1, 1)
        yield ListReport(
            **asdict(owner_of(owners, list_id)),
            messages=len(pending),
            body_bytes=pending.body_bytes(),
            first_sequence=page[0][0] if page else 0,
            delivered=len(pending.deliveries),
        )


def describe(report: FileReport) -> str:
    """*report* of :func:`why` for operators: one line for the file, one per holder."""
    head = f"{report.name}: {report.state}, {report.live_bytes} of {report.length} bytes live"
    lines = [f"{head} ({report.live_percent} %)"]
    for holder in report.holders:
        sequences = ", ".join(map(str, holder.sequences))
        more = ", …" if holder.messages > len(holder.sequences) else ""
        if holder.kind == "acknowledged":
            who = "acknowledged log: no sink has released rows"
        else:
            client = holder.client_id and f"client {holder.client_id}"
            name = holder.subscription and f"name {holder.subscription}"
            parts = (holder.kind, holder.destination, client, name)
            who = f"{' '.join(filter(None, parts))} (list {holder.pending_list}): messages"
        lines.append(f"  {who} {sequences}{more} ({holder.messages}, {holder.live_bytes} bytes)")
    if not report.holders:
        lines.append(f"  {_NOTHING[report.state]}")
    return "\n".join(lines)


_NOTHING: Final = {
    "current": "nothing lives in it, but new batches go there",
    "used": "nothing lives in it: the next cleanup puts it away",
    "spare": "ready for the batches to come",
    "free": "dead; it will be used again",
}
