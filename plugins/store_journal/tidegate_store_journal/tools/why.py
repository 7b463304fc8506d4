"""What keeps a data file: which destination, which pending list, which messages.

Reads the checkpoint, and the data files behind it, without a lock and without writing a byte, so it
works beside a running gateway; what it says is how things stood when it was called. Everything here
blocks. This is what ``tidegate journal inspect`` and ``tidegate journal why FILE`` are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from tidegate.spi import StoreIOError
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log.format import FILE_SHIFT, MASK_32, file_id_of
from tidegate_store_journal.tools.lookon import Look, look

#: Sequences that a report names for each list; there can be millions.
SEQUENCES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a pending list is.

    Attributes:
        kind: ``queue``, ``durable subscription``, ``subscription``, ``prepared branch``,
            ``unknown list`` (its destination is gone), or ``acknowledged`` (rows that a sink has
            not released).
        destination: as in ``queue://orders``; a subscription's filter. "" for the messages that a
            branch sends; one with a destination locks messages of that list, which are counted for
            the list as well.
        client_id, subscription: of a subscription; of a branch, who prepared it and its id.
    """

    kind: str
    destination: str = ""
    client_id: str = ""
    subscription: str = ""


def owners(index: Index) -> Callable[[int], Owner]:
    """Says whose a list is."""
    queues = {list_id: name for name, list_id in index.destinations.items()}

    def owner_of(list_id: int) -> Owner:
        subscription = index.subscriptions.get(list_id)
        if subscription is not None:
            kind = "durable subscription" if subscription.durable else "subscription"
            return Owner(kind, subscription.filter, subscription.client_id, subscription.name)
        if list_id in queues:
            return Owner("queue", queues[list_id])
        branch = index.branch_of_list(list_id)
        if branch is not None:
            # Nobody but its transaction manager or an operator can free its messages.
            return Owner("prepared branch", "", branch.client_id, str(branch.branch_id))
        return Owner("unknown list")

    return owner_of


@dataclass(frozen=True, slots=True)
class Holder(Owner):
    """A pending list (or the acknowledged log) that keeps messages in a data file.

    Attributes:
        pending_list: its id; 0 for the log.
        messages: how many; live_bytes: bytes of their records (a message in several lists counts
            in each).
        sequences: the first SEQUENCES_MAX of them, in order; ack sequences for the log.
    """

    pending_list: int = 0
    messages: int = 0
    live_bytes: int = 0
    sequences: Sequence[int] = ()


def _holder(owner: Owner, pending_list: int, found: Mapping[int, int]) -> Holder:
    """*found*: places by sequence, in order."""
    return Holder(
        owner.kind,
        owner.destination,
        owner.client_id,
        owner.subscription,
        pending_list,
        len(found),
        sum(place >> 32 & MASK_32 for place in found.values()),
        list(islice(found, SEQUENCES_MAX)),
    )


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
        return file_reports(seen)


def why(directory: Path, name: str) -> FileReport:
    """What keeps the data file called *name* (a path is fine: its last part counts).

    Raises: as :func:`inspect`; StoreIOError also when there is no such file.
    """
    wanted = Path(name).name
    with look(directory) as seen:
        reports = file_reports(seen)
        ours = _shown(seen, wanted)  # under whatever name it lies there
        found = next((report for report in reports if report.name in (wanted, ours)), None)
        if found is None:
            known = ", ".join(report.name for report in reports)
            raise StoreIOError(f"{directory} has no data file {wanted}; it has: {known or 'none'}")
        index, file_id = seen.replay.index, found.file_id
        return replace(found, holders=[*_list_holders(index, file_id), *_rows(index, file_id)])


def _shown(seen: Look, name: str) -> str:
    return Path(seen.replay.storage.describe(name)).name


def file_reports(seen: Look) -> list[FileReport]:
    """All data files of a journal that is being looked at, without what keeps them."""
    replay = seen.replay
    reports: list[FileReport] = []
    for file in (*replay.files, *replay.spares):
        use = replay.index.files.get(file.file_id)
        live, references = (use.live_bytes, use.references) if use else (0, 0)
        state = "used" if file.first_batch else "spare"
        if file is replay.tail:
            state = "current"
        name = _shown(seen, file.name)
        reports.append(FileReport(name, file.file_id, state, file.length, live, references))
    for name, length in seen.free:
        reports.append(FileReport(_shown(seen, name), file_id_of(name), "free", length, 0, 0))
    return reports


def _list_holders(index: Index, file_id: int) -> Iterator[Holder]:
    owner_of = owners(index)
    for list_id, pending in sorted(index.lists.items()):
        found = dict(sorted(entry for piece in pending.pieces_in(file_id) for entry in piece))
        if not found:
            continue
        owner = owner_of(list_id)
        yield _holder(owner, list_id, found)
        # Prepared branches lock messages of the list, which nobody can consume meanwhile.
        for branch in index.branches.values():
            locked = {
                number for i in branch.locked if i.pending_list == list_id for number in i.sequences
            }
            here = {sequence: place for sequence, place in found.items() if sequence in locked}
            if here:
                who = (owner.destination, branch.client_id, str(branch.branch_id))
                yield _holder(Owner("prepared branch", *who), list_id, here)


def _rows(index: Index, file_id: int) -> Iterator[Holder]:
    log = index.log
    rows = {
        block.first + number: place
        for block in log.blocks()
        if block.may_speak_of(file_id)
        for number, place in enumerate(block.locations)
        if block.first + number > log.released and place >> FILE_SHIFT == file_id
    }
    if rows:
        yield _holder(Owner("acknowledged"), 0, rows)


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
