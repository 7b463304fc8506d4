"""Where a journal is damaged: every data file read front to back, nothing changed.

A *damage* is a stretch of a data file that is not what was written there, although later batches say
that it had been on stable storage. (What was never confirmed is a torn tail: see ``Replay.end``.)
Everything here blocks. docs/journal-format.md section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import BATCH_HEADER_BYTES, DATA_OFFSET, FormatError
from tidegate_store_journal.log.records import decode_acknowledge
from tidegate_store_journal.log.walk import BATCH_BYTES_MIN, Batch, Gap, walk


@dataclass(slots=True)
class Damage:
    """One damaged stretch of a data file.

    Attributes:
        file: where; begin, end: offsets.
        first_batch, last_batch: numbers of the batches that were there.
        last_sequence, last_ack, last_list: counters behind the last of them, as far as known.
        sequence_from, sequence_to: messages that were added there have sequences between these two.
        is_end_known: *end* is exact.
    """

    file: DataFile
    begin: int
    end: int
    first_batch: int
    last_batch: int
    last_sequence: int
    last_ack: int
    last_list: int
    sequence_from: int = 0
    sequence_to: int = 0
    is_end_known: bool = True

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.begin


@dataclass(slots=True)
class _Walked:
    """One file: damages between two batches, and the gap (if any) where they end."""

    file: DataFile
    first: int = 0
    last: _format.BatchHeader | None = None
    end: int = DATA_OFFSET
    synced: int = 0
    gap: Gap | None = None
    damages: list[Damage] = field(default_factory=list[Damage])


def survey(files: Sequence[DataFile], known_batch: int) -> tuple[list[Damage], list[DataFile]]:
    """Walk *files*, which may be in any order.

    Args: known_batch: the highest batch that a checkpoint or the bindings call synced; 0: none.
    Returns: damages in the journal's order; files without any batch that can be read although bytes
        are where one should be. Raises: OSError.
    """
    walks = [_walked(file) for file in files]
    empty = [item.file for item in walks if not item.first and item.gap is not None]
    walks = sorted((item for item in walks if item.first), key=lambda item: item.first)
    synced = max([known_batch, *(item.synced for item in walks)])
    damages: list[Damage] = []
    last_batch = 0
    for number, item in enumerate(walks):
        is_last = number == len(walks) - 1
        if item.damages and item.damages[0].first_batch == 0:
            _number_the_first(item.damages[0], last_batch)
        until = known_batch if is_last else walks[number + 1].first - 1
        found = [*item.damages, *_at_the_end(item, max(until, synced if is_last else 0))]
        damages += [one for one in found if not is_last or one.first_batch <= synced]
        last_batch = max(item.last.batch if item.last else 0, *(d.last_batch for d in found), 0)
    return damages, empty


def _walked(file: DataFile) -> _Walked:
    found = _Walked(file)
    for item in walk(file):
        if isinstance(item, Gap):
            found.gap = item
            found.synced = max(found.synced, item.synced)
            continue
        header = item.header
        if found.gap is not None:
            damage = _between(file, found.last, found.gap, item)
            found.first = found.first or damage.first_batch or header.batch
            found.damages.append(damage)
        found.first = found.first or header.batch
        found.synced = max(found.synced, header.synced)
        found.last, found.end, found.gap = header, item.next, None
    return found


def _between(
    file: DataFile, last: _format.BatchHeader | None, gap: Gap, following: Batch
) -> Damage:
    own = gap.header
    first = last.batch + 1 if last is not None else (own.batch if own is not None else 0)
    return Damage(
        file,
        gap.begin,
        gap.end,
        first,
        following.header.batch - 1,
        last_sequence=last.last_sequence if last else 0,
        last_ack=_acks_before(following),
        last_list=last.last_list if last else 0,
        sequence_from=last.last_sequence + 1 if last else 0,
        sequence_to=following.header.last_sequence,
    )


def _number_the_first(damage: Damage, last_batch: int) -> None:
    """A file begins with a damage: its first batch is the one behind the file before, if it fits."""
    first = last_batch + 1
    fits = (damage.last_batch - first + 1) * BATCH_BYTES_MIN <= damage.length
    damage.first_batch = first if first <= damage.last_batch and fits else damage.last_batch


def _at_the_end(item: _Walked, until: int) -> list[Damage]:
    """What is damaged behind the last whole batch of a file, when batches up to *until* were there."""
    file, begin, last, gap = item.file, item.end, item.last, item.gap
    assert last is not None
    if last.batch >= until or gap is None:
        return []  # it ends here in order; what is missing was in another file
    own = gap.header
    own_end = begin + BATCH_HEADER_BYTES + (own.payload_bytes if own is not None else 0)
    end = min(file.length, max(gap.end, own_end, begin + BATCH_BYTES_MIN))
    if end - begin < BATCH_BYTES_MIN:
        return []
    # How many batches were lost here is not known when files are missing behind.
    most = last.batch + max(1, (end - begin) // BATCH_BYTES_MIN)
    counters = gap.newest or last
    return [
        Damage(
            file,
            begin,
            end,
            last.batch + 1,
            min(until, most),
            last_sequence=counters.last_sequence,
            last_ack=counters.last_ack,
            last_list=counters.last_list,
            sequence_from=last.last_sequence + 1,
            sequence_to=gap.newest.last_sequence if gap.newest is not None else 0,
            is_end_known=gap.is_end_known,
        )
    ]


def _acks_before(batch: Batch) -> int:
    """The last row of the acknowledged log before *batch*."""
    try:
        for record in _format.iterate_records(batch.payload, batch.header.record_count):
            if record.type == _format.ACKNOWLEDGE:
                first = decode_acknowledge(record)[1]
                if first:
                    return first - 1
    except FormatError:
        pass  # written by a newer version: recovery says so
    return batch.header.last_ack
