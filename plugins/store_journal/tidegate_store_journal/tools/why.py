"""What keeps a data file: which destination, which pending list, which messages.

Reads the checkpoint, and the data files behind it, without a lock and without writing a byte, so it
works beside a running gateway; what it says is how things stood when it was called. Everything here
blocks. This is what ``tidegate journal inspect`` and ``tidegate journal why FILE`` are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.spi import StoreIOError
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import FILE_SHIFT
from tidegate_store_journal.tools.lookon import Look, look

#: Sequences that a report names for each list; there can be millions.
SEQUENCES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Holder:
    """A pending list (or the acknowledged log) that keeps messages in a data file.

    Attributes:
        kind: ``queue``, ``durable subscription``, ``subscription``, ``prepared branch``,
            ``unknown list`` (its destination is gone), or ``acknowledged`` (rows that a sink has
            not released).
        destination: of the list, as in ``queue://orders``; a subscription's filter. "" for the
            messages that a branch sends; one with a destination locks messages of that list, which
            are counted for the list as well.
        client_id, subscription: of a subscription; of a branch, who prepared it and its id.
        pending_list: its id; 0 for the log.
        messages: how many; live_bytes: bytes of their records (a message in several lists counts
            in each).
        sequences: the first SEQUENCES_MAX of them, in order; ack sequences for the log.
    """

    kind: str
    destination: str
    client_id: str
    subscription: str
    pending_list: int
    messages: int
    live_bytes: int
    sequences: Sequence[int]


@dataclass(frozen=True, slots=True)
class FileReport:
    """One data file.

    Attributes:
        state: ``current`` (new batches go there), ``used``, ``spare`` (ready for use) or ``free``
            (dead, waits to be used again).
        length: bytes; live_bytes: bytes of the records of messages that something refers to.
        references: list entries and rows of the acknowledged log that do.
        holders: who; empty from :func:`inspect`.
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
        """Part of the file that is alive, 0 to 1."""
        return self.live_bytes / self.length if self.length else 0.0


def inspect(directory: Path) -> list[FileReport]:
    """All data files of the journal in *directory*, in the journal's order.

    Raises: StoreIOError when there is no journal, or when it changes too fast to be read;
        CorruptRecordError.
    """
    with look(directory) as seen:
        return _reports(seen)


def why(directory: Path, name: str) -> FileReport:
    """What keeps the data file called *name* (a path is fine: its last part counts).

    Raises: as :func:`inspect`; StoreIOError also when there is no such file.
    """
    wanted = Path(name).name
    with look(directory) as seen:
        reports = _reports(seen)
        ours = Path(seen.replay.storage.describe(wanted)).name  # under whatever name it lies there
        found = next((report for report in reports if report.name in (wanted, ours)), None)
        if found is None:
            known = ", ".join(report.name for report in reports)
            raise StoreIOError(f"{directory} has no data file {wanted}; it has: {known or 'none'}")
        return FileReport(
            found.name,
            found.file_id,
            found.state,
            found.length,
            found.live_bytes,
            found.references,
            [*_list_holders(seen, found.file_id), *_log_holders(seen, found.file_id)],
        )


def file_reports(seen: Look) -> list[FileReport]:
    """All data files of a journal that is being looked at, without what keeps them."""
    return _reports(seen)


def _reports(seen: Look) -> list[FileReport]:
    replay = seen.replay
    reports: list[FileReport] = []
    for file in replay.files:
        use = replay.index.files.get(file.file_id)
        reports.append(
            FileReport(
                Path(replay.storage.describe(file.name)).name,
                file.file_id,
                "current" if file is replay.tail else "used",
                file.length,
                use.live_bytes if use else 0,
                use.references if use else 0,
            )
        )
    for file in replay.spares:
        state = "current" if file is replay.tail else "spare"
        name = Path(replay.storage.describe(file.name)).name
        reports.append(FileReport(name, file.file_id, state, file.length, 0, 0))
    for name, length in seen.free:
        shown = Path(replay.storage.describe(name)).name
        reports.append(FileReport(shown, int(name[8:18]), "free", length, 0, 0))
    return reports


def _list_holders(seen: Look, file_id: int) -> list[Holder]:
    index = seen.replay.index
    destinations = {list_id: name for name, list_id in index.destinations.items()}
    holders: list[Holder] = []
    for list_id, pending in sorted(index.lists.items()):
        found = sorted(entry for piece in pending.pieces_in(file_id) for entry in piece)
        if not found:
            continue
        kind, destination, client_id, name = "unknown list", "", "", ""
        subscription = index.subscriptions.get(list_id)
        if subscription is not None:
            kind = "durable subscription" if subscription.durable else "subscription"
            destination, client_id = subscription.filter, subscription.client_id
            name = subscription.name
        elif (branch := index.branch_of_list(list_id)) is not None:
            # Nobody but its transaction manager or an operator can free the file.
            kind, client_id, name = "prepared branch", branch.client_id, str(branch.branch_id)
        elif list_id in destinations:
            kind, destination = "queue", destinations[list_id]
        holders.append(
            Holder(
                kind,
                destination,
                client_id,
                name,
                list_id,
                len(found),
                sum(place >> 32 & 0xFFFF_FFFF for _, place in found),
                [sequence for sequence, _ in found[:SEQUENCES_MAX]],
            )
        )
        holders += _locking(index, list_id, destination, dict(found))
    return holders


def _locking(
    index: Index, list_id: int, destination: str, found: Mapping[int, int]
) -> Sequence[Holder]:
    """Prepared branches that lock messages of the list, which nobody can consume meanwhile.

    Args: found: places by sequence.
    """
    holders: list[Holder] = []
    for branch in index.branches.values():
        locked = {
            number for i in branch.locked if i.pending_list == list_id for number in i.sequences
        }
        here = sorted(locked & found.keys())
        if here:
            live_bytes = sum(found[sequence] >> 32 & 0xFFFF_FFFF for sequence in here)
            who = ("prepared branch", destination, branch.client_id, str(branch.branch_id))
            holders.append(Holder(*who, list_id, len(here), live_bytes, here[:SEQUENCES_MAX]))
    return holders


def _log_holders(seen: Look, file_id: int) -> list[Holder]:
    log = seen.replay.index.log
    rows: list[int] = []
    live_bytes = 0
    for block in log.blocks():
        if not block.may_speak_of(file_id):
            continue
        for number, place in enumerate(block.locations):
            row = block.first + number
            if row > log.released and place >> FILE_SHIFT == file_id:
                rows.append(row)
                live_bytes += place >> 32 & 0xFFFF_FFFF
    if not rows:
        return []
    return [Holder("acknowledged", "", "", "", 0, len(rows), live_bytes, rows[:SEQUENCES_MAX])]


def describe(report: FileReport) -> str:
    """*report* of :func:`why` for a person: one line for the file, one for each holder."""
    share = f"{100 * report.live_share:.1f} %"
    head = f"{report.name}: {report.state}, {report.live_bytes} of {report.length} bytes live"
    lines = [f"{head} ({share})"]
    for holder in report.holders:
        sequences = ", ".join(map(str, holder.sequences))
        more = ", …" if holder.messages > len(holder.sequences) else ""
        if holder.kind == "acknowledged":
            who = "acknowledged log: no sink has released rows"
        else:
            who = " ".join(
                part
                for part in (
                    holder.kind,
                    holder.destination,
                    holder.client_id and f"client {holder.client_id}",
                    holder.subscription and f"name {holder.subscription}",
                    f"(list {holder.pending_list}): messages",
                )
                if part
            )
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
