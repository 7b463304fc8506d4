"""Which references keep which file: counting along gives what counting anew gives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import ack, add, message

from tidegate.spi import (
    Discard,
    DiscardReason,
    Move,
    Operation,
    RemoveSubscription,
)
from tidegate_store_journal.index.changes import FILES
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.index.references import FileUse
from tidegate_store_journal.log.format import FILE_SHIFT
from tidegate_store_journal.space.compact import Found, encode_copies
from tidegate_store_journal.write.encode import encode_batch


class Loaded:
    """An index with its own batch counter; every batch goes into the file it names."""

    def __init__(self, *, keep: bool) -> None:
        self.index = Index(keep_acknowledged=keep)
        self.offset = 4096

    def write(self, *operations: Operation, file_id: int = 1) -> None:
        encoded = encode_batch(list(operations), file_id, self.offset, self.index)
        self.offset += len(encoded.payload)
        encoded.effects.batch = self.index.batch + 1
        self.index.apply(encoded.effects)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "share", "ack", "ack", "discard", "move", "drop", "release", "copy"]
        ),
        st.integers(0, 10),
        st.integers(1, 4),
    ),
    max_size=60,
)


def apply_step(loaded: Loaded, step: str, number: int, file_id: int) -> None:
    index = loaded.index
    next_sequence = index.last_sequence + 1
    list_id = number % 3 + 1
    known = [sequence for sequence, _ in index.list_of(list_id).entries()]
    if step == "add":
        loaded.write(add(next_sequence, list_id, size=10 + number), file_id=file_id)
    elif step == "share":
        loaded.write(add(next_sequence, 1, 2, 3, size=10 + number), file_id=file_id)
    elif step == "release":
        index.release(index.log.released + number)
    elif step == "copy":
        copy(loaded, number % 4 + 1, file_id)
    elif step == "drop":
        loaded.write(RemoveSubscription(list_id), file_id=file_id)
    elif known:
        chosen = known[: number + 1]
        if step == "ack":
            loaded.write(ack(*chosen, pending_list=list_id), file_id=file_id)
        elif step == "discard":
            loaded.write(Discard(list_id, tuple(chosen), DiscardReason.EXPIRED), file_id=file_id)
        else:
            target = Move(list_id, chosen[0], 4, next_sequence, message(next_sequence))
            loaded.write(target, file_id=file_id)


def copy(loaded: Loaded, source: int, target: int) -> None:
    """As compaction does, all that lives in a file but every third message."""
    index = loaded.index
    index.settle()
    found: dict[int, Found] = {}
    for list_id, pending in index.lists.items():
        for sequence, place in pending.entries():
            if place >> FILE_SHIFT == source:
                found.setdefault(sequence, Found(sequence, place)).lists.append(list_id)
    for block in index.log.blocks():
        for number, sequence in enumerate(block.sequences):
            place = index.log.location_of(block.first + number)
            if place is not None and place >> FILE_SHIFT == source:
                rows = found.setdefault(sequence, Found(sequence, place)).rows
                rows.append(block.first + number)
    chosen = [(item, b"x" * item.sequence) for item in found.values() if item.sequence % 3]
    encoded = encode_copies(chosen, target, loaded.offset, index) if source != target else None
    if encoded is not None:
        assert len(encoded.effects.copies) == len(chosen)
        loaded.offset += len(encoded.payload)
        encoded.effects.batch = index.batch + 1
        index.apply(encoded.effects)
        for item, _ in chosen:
            use = index.files[source]
            assert all(index.lists[list_id].get(item.sequence) for list_id in item.lists)
            assert use.references >= 0


def numbers(index: Index) -> tuple[int, int, dict[int, tuple[int, int]]]:
    files = {
        file_id: (use.references, use.live_bytes)
        for file_id, use in index.files.items()
        if use.references or use.live_bytes
    }
    return index.pending_messages, index.acknowledged_bytes, files


@settings(deadline=None)
@given(STEPS, st.booleans())
def test_counting_along_gives_what_counting_anew_gives(
    steps: list[tuple[str, int, int]], keep: bool
) -> None:
    loaded = Loaded(keep=keep)
    index = loaded.index
    for step, number, file_id in steps:
        apply_step(loaded, step, number, file_id)
    counted = numbers(index)
    assert index.recount(list(index.log.blocks()), index.log.last, index.log.released) == 0
    assert numbers(index) == counted


def test_a_file_knows_which_files_its_acknowledgements_speak_of() -> None:
    loaded = Loaded(keep=False)
    index = loaded.index
    loaded.write(add(1), add(2), file_id=1)
    loaded.write(add(3), file_id=2)
    loaded.write(add(4), ack(4), file_id=3)
    assert index.files.get(3, FileUse()).speaks_of == set()
    loaded.write(ack(1, 3), file_id=3)
    assert index.files[3].speaks_of == {1, 2}
    changes = index.take_changes()
    assert changes.rows[FILES] == {(3,): [1, 2]}
    assert index.take_changes().rows[FILES] == {}


def test_bytes_count_for_the_log_only_when_no_list_holds_the_message() -> None:
    loaded = Loaded(keep=True)
    index = loaded.index
    loaded.write(add(1, 1, 2, size=100))
    loaded.write(ack(1, pending_list=1))
    assert (index.pending_messages, index.acknowledged_bytes) == (1, 0)
    loaded.write(ack(1, pending_list=2))
    record = sum(use.live_bytes for use in index.files.values())
    assert record > 100
    assert (index.pending_messages, index.acknowledged_bytes) == (0, record)
    index.release(1)
    assert index.acknowledged_bytes == record
    index.release(2)
    assert index.acknowledged_bytes == 0
    assert index.files[1].references == 0
