"""Where a journal is damaged, and how damage is taken out: docs/journal-format.md section 9.

A *damage* is a stretch of a data file that is not what was written there, although later batches say
that it was on stable storage. (What was never confirmed is a torn tail.) Policy *quarantine*
copies it aside and makes it void: a *void* batch stands where it begins and says where the journal
resumes, so that later readers find it whole. Everything here blocks, while nothing
else uses the store.

Crash story: the copies are synced before anything is made void. A crash in between leaves a stretch
that is still damaged, and the next start does it again; an existing copy is never
overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, read_data_file, using
from tidegate_store_journal.log.format import (
    BATCH_HEADER_BYTES,
    DATA_OFFSET,
    END_MARK,
    BatchHeader,
    FormatError,
)
from tidegate_store_journal.log.storage import Storage, copy_range, fresh_name
from tidegate_store_journal.log.walk import BATCH_BYTES_MIN, Batch, Gap, walk
from tidegate_store_journal.start.losses import LossReport, Lost, find_lost
from tidegate_store_journal.start.replay import ADVICE


@dataclass(slots=True)
class Damage:
    """One damaged stretch of a data file.

    Attributes:
        file: where; begin, end: offsets.
        first_batch, last_batch: numbers of the batches that were there.
        counters: of the last of them, as far as known.
        sequences: those of messages added there are among these; None: not known.
        is_end_known: *end* is exact.
    """

    file: DataFile
    begin: int
    end: int
    first_batch: int
    last_batch: int
    counters: BatchHeader | None = None
    sequences: range | None = None
    is_end_known: bool = True

    @property
    def extent(self) -> str:
        """For operators."""
        batches = f"batch {self.first_batch}"
        if self.last_batch > self.first_batch:
            batches = f"batches {self.first_batch} to {self.last_batch}"
        return f"{self.end - self.begin} bytes at offset {self.begin} ({batches})"


class Walked:
    """One file, read front to back: see :func:`survey`.

    Attributes: first: number of the first batch, 0: none; last: header of the last one; end: where it
        ends; gap: what is there, if anything. synced: the highest batch that a header calls synced.
        damages: between two batches.
    """

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self.first = self.synced = 0
        self.last: BatchHeader | None = None
        self.end = DATA_OFFSET
        self.gap: Gap | None = None
        self.damages: list[Damage] = []
        for item in walk(file):
            if isinstance(item, Gap):
                self.gap = item
                self.synced = max(self.synced, item.synced)
                continue
            header = item.header
            if self.gap is not None:
                self._add(self.gap, header)
            self.first = self.first or header.batch
            self.synced = max(self.synced, header.synced)
            self.last, self.end, self.gap = header, item.next, None
            self.visit(item)

    def visit(self, batch: Batch) -> None:
        """For subclasses that want to see every batch."""

    def _add(self, gap: Gap, behind: BatchHeader) -> None:
        last, sequences = self.last, None
        first = gap.header.batch if gap.header is not None else 0
        if last is not None:
            first = last.batch + 1
            sequences = range(last.last_sequence + 1, behind.last_sequence + 1)
        self.first = self.first or first
        damage = Damage(self.file, gap.begin, gap.end, first, behind.batch - 1, last, sequences)
        self.damages.append(damage)

    def at_the_end(self, until: int) -> list[Damage]:
        """Damage after the last whole batch, when batches up to *until* were there."""
        last, gap, begin = self.last, self.gap, self.end
        assert last is not None
        if last.batch >= until or gap is None:
            return []  # it ends here properly; what is missing was in another file
        own_end = begin + BATCH_HEADER_BYTES + (gap.header.payload_bytes if gap.header else 0)
        end = min(self.file.length, max(gap.end, own_end, begin + BATCH_BYTES_MIN))
        if end - begin < BATCH_BYTES_MIN:
            return []
        # How many batches were lost here is unknown when later files are missing.
        most = last.batch + max(1, (end - begin) // BATCH_BYTES_MIN)
        newest = gap.newest
        sequences = newest and range(last.last_sequence + 1, newest.last_sequence + 1)
        return [
            Damage(
                self.file,
                begin,
                end,
                last.batch + 1,
                min(until, most),
                newest or last,
                sequences,
                gap.is_end_known,
            )
        ]


def survey(walks: Sequence[Walked], known_batch: int) -> tuple[list[Damage], list[DataFile]]:
    """Damage in files that were walked, in any order.

    Args: known_batch: the highest batch that a checkpoint or the bindings call synced; 0: none.
    Returns: damages in the journal's order; files without any readable batch although bytes
        are where one should be. Raises: OSError.
    """
    empty = [item.file for item in walks if not item.first and item.gap is not None]
    walks = sorted((item for item in walks if item.first), key=lambda item: item.first)
    synced = max([known_batch, *(item.synced for item in walks)])
    damages: list[Damage] = []
    last_batch = 0
    for number, item in enumerate(walks):
        if item.damages and item.damages[0].first_batch == 0:
            _number_the_first(item.damages[0], last_batch)
        if number < len(walks) - 1:
            found = [*item.damages, *item.at_the_end(walks[number + 1].first - 1)]
            damages += found
        else:
            found = [*item.damages, *item.at_the_end(synced)]
            damages += [one for one in found if one.first_batch <= synced]
        last_batch = max(item.last.batch if item.last else 0, *(d.last_batch for d in found), 0)
    return damages, empty


def _number_the_first(damage: Damage, last_batch: int) -> None:
    """A file begins with damage: its first batch follows the previous file's last, if that fits."""
    first = last_batch + 1
    fits = (damage.last_batch - first + 1) * BATCH_BYTES_MIN <= damage.end - damage.begin
    damage.first_batch = first if first <= damage.last_batch and fits else damage.last_batch


@dataclass(slots=True)
class Quarantine:
    """What was taken out of a journal at this start.

    Attributes: stretches: by file; gone: files that were moved aside whole.
    """

    storage: Storage
    report: LossReport
    refuses: bool
    stretches: dict[int, list[range]] = field(default_factory=dict[int, list[range]])
    gone: set[int] = field(default_factory=set[int])

    def run(self, known_batch: int) -> bool:
        """Look for damage everywhere and take it out. Returns: whether any was found.

        Args: known_batch: see :func:`survey`.
        Raises: CorruptRecordError: the policy is to refuse, and nothing was changed; OSError.
        """
        walks: list[Walked] = []
        broken: list[tuple[str, str]] = []
        for name in sorted(filter(_format.DATA_NAME.fullmatch, self.storage.list())):
            try:
                walks.append(Walked(read_data_file(self.storage, name)))
            except FormatError as error:
                broken.append((name, str(error)))
        damages, empty = survey(walks, known_batch)
        # The newest file may only be torn.
        newest = max((item.file.file_id for item in walks), default=0)
        why = "no batch in it is whole"
        broken += [(file.name, why) for file in empty if file.file_id != newest]
        if self.refuses:
            if damages:
                self._refuse(damages)
            return False
        for damage in damages:
            self._keep_copy(damage)
        if damages:
            self.storage.sync_directory()
        self.report.write()
        for damage in damages:
            _make_void(damage)
            stretches = self.stretches.setdefault(damage.file.file_id, [])
            stretches.append(range(damage.begin, damage.end))
        for name, problem in broken:
            self._move_aside(name, problem)
        self.report.write()
        return bool(damages or broken)

    def lost(self, index: Index) -> Lost:
        """Messages pending in stretches that were taken out."""

        def is_lost(_sequence: int, place: int) -> bool:
            file_id, offset, _, _ = _format.location_parts(place)
            return any(offset in stretch for stretch in self.stretches[file_id])

        return find_lost(index, "they were in a damaged part", self.stretches, is_lost)

    def _refuse(self, damages: Sequence[Damage]) -> None:
        places = [f"{one.file.name}, {one.extent}" for one in damages]
        raise CorruptRecordError(
            f"damaged: {'; '.join(places)}. Nothing was changed. {ADVICE}",
            location=self.storage.describe(""),
        )

    def _move_aside(self, name: str, problem: str) -> None:
        target = fresh_name(self.storage, f"{name}.damaged")
        self.storage.rename(name, target)
        self.storage.sync_directory()
        self.gone.add(_format.file_id_of(name))
        self.report.add(
            f"{self.storage.describe(name)}: {problem}, so nothing in it can be read. The whole "
            f"file is now {target}."
        )

    def _keep_copy(self, damage: Damage) -> None:
        name = damage.file.name
        target = f"{name}.{damage.begin}.damaged"
        lost = "Lost: all messages that were added there"
        if damage.sequences is None:
            lost += "; how many is not known."
        elif damage.sequences:
            lost += f"; their sequences are among {damage.sequences[0]} to {damage.sequences[-1]}."
        else:
            lost = "No message was added there."
        self.report.add(
            f"{self.storage.describe(name)}: {damage.extent} were damaged and were taken out; "
            f"they are kept in {target}.",
            lost,
            "Lost too: acknowledgements, drops and moves of other messages in there, so those may "
            "be delivered again; and changes to subscriptions, sessions and retained messages.",
        )
        if target in self.storage.list():
            return  # from an interrupted start: the file may be half replaced now
        temporary = f"{target}.tmp"
        copy_range(self.storage, name, damage.begin, damage.end, temporary)
        self.storage.rename(temporary, target)


def _make_void(damage: Damage) -> None:
    file, counters = damage.file, damage.counters
    begin, behind = damage.begin, damage.begin + BATCH_BYTES_MIN
    # Where the end is unknown, the file ends here: the journal goes on in another one.
    until = damage.end if damage.is_end_known else behind
    payload = _format.encode_record(_format.VOID, b"", sequence=until)
    header = _format.encode_batch_header(
        file.seed,
        (payload,),
        damage.last_batch,
        damage.first_batch - 1,
        counters.last_sequence if counters else 0,
        counters.last_ack if counters else 0,
        counters.last_list if counters else 0,
        1,
    )
    data = header + payload
    if file.reused and not damage.is_end_known:
        data += END_MARK[: file.length - behind]
    with using(file) as handle:
        handle.pwritev([data], begin)
        handle.datasync()
