"""A pending list against a plain dictionary."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_store_journal.index import pending as _pending
from tidegate_store_journal.index import pieces as _pieces
from tidegate_store_journal.index.pending import PendingList
from tidegate_store_journal.index.pieces import Piece
from tidegate_store_journal.log.format import location

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("pop"), st.integers(0, 200)),
        st.tuples(st.just("page"), st.integers(0, 200)),
        st.tuples(st.just("pop all"), st.integers(0, 200)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("relocate"), st.integers(0, 200)),
        st.tuples(st.just("in file"), st.integers(1, 9)),
    ),
    max_size=40,
)


def place(sequence: int) -> int:
    return location(sequence % 7 + 1, 4096 + sequence, 50, sequence)


def pop(pending: PendingList, sequence: int) -> int | None:
    value = pending.fresh.pop(sequence, None)
    return pending.pop_sealed((sequence,))[0] if value is None else value


def check_page(pending: PendingList, model: dict[int, int], after: int) -> None:
    behind = [(sequence, value) for sequence, value in model.items() if sequence > after]
    assert pending.page(after, 7, 1 << 40) == behind[:7]
    bodies = 0
    expected = 0
    for sequence, _ in behind:
        bodies += sequence
        if expected and bodies > 90:
            break
        expected += 1
    assert pending.page(after, 1000, 90) == behind[:expected]


def check_stored(
    pending: PendingList, stored: dict[int, Piece], model: dict[int, int], known: int
) -> None:
    """A checkpoint: after it the pieces in the metadata store are the list."""
    before = sum(piece.count for piece in stored.values())
    told, added, removed = pending.take_changes(known)
    for key, piece in told.items():
        if piece is None:
            del stored[key]  # it was there
        else:
            stored[key] = Piece.decode(piece.encode())
            stored[key].key = key
    assert sum(piece.count for piece in stored.values()) == before + added - removed
    assert pending.stored() == len(pending)
    pending.pack()
    loaded = PendingList()
    for key in sorted(stored):
        loaded.restore_piece(stored[key])
    assert list(loaded.entries()) == list(model.items())
    assert loaded.body_bytes() == sum(model)
    usages = list(loaded.usages())
    assert sum(usage.body_bytes for usage in usages) == sum(model)
    assert sum(count for usage in usages for count, _ in usage.files.values()) == len(model)


@settings(deadline=None)
@given(STEPS)
def test_a_list_holds_what_a_dictionary_holds(steps: list[tuple[str, int]]) -> None:
    entries = _pending.PIECE_ENTRIES
    _pending.PIECE_ENTRIES = 6  # type: ignore[misc]  # so that a few entries fill many pieces
    try:
        pending, model, stored = PendingList(), dict[int, int](), dict[int, Piece]()
        last = known = 0
        for step, value in steps:
            if step == "add":
                for sequence in range(last + 1, last + value + 1, 2):
                    model[sequence] = pending.fresh[sequence] = place(sequence)
                    last = sequence
            elif step == "seal":
                pending.seal()
            elif step == "pop":
                assert (value in pending) == (value in model)
                assert pop(pending, value) == model.pop(value, None)
            elif step == "relocate":
                new = location(value % 9 + 1, 9000 + value, 50, value)
                assert pending.get(value) == model.get(value)
                assert pending.relocate(value, new) == model.get(value)
                if value in model:
                    model[value] = new
            elif step == "in file":
                inside = sorted(entry for piece in pending.pieces_in(value) for entry in piece)
                assert pending.sequences_in(value) == [sequence for sequence, _ in inside]
                assert inside == [item for item in model.items() if item[1] >> 100 == value]
            elif step == "page":
                check_page(pending, model, value)
            elif step == "pop all":
                pending.seal()
                wanted = [*range(value, value + 9, 2), *range(value, value + 3)]
                assert pending.pop_sealed(wanted) == [model.pop(item, None) for item in wanted]
            else:
                check_stored(pending, stored, model, known)
                known = last
            assert len(pending) == len(model)
        assert list(pending.entries()) == list(model.items())
        assert list(pending.entries(5)) == [item for item in model.items() if item[0] > 5]
        assert pending.body_bytes() == sum(model)
        assert sum(usage.body_bytes for usage in pending.usages()) == sum(model)
    finally:
        _pending.PIECE_ENTRIES = entries  # type: ignore[misc]


def test_a_large_fresh_part_is_sealed_by_a_page_behind_the_beginning() -> None:
    pending = PendingList()
    pending.fresh = {sequence: place(sequence) for sequence in range(1, 10_001)}
    assert [sequence for sequence, _ in pending.page(9_000, 3, 1 << 40)] == [9001, 9002, 9003]
    assert pending.last_sealed == 10_000
    assert not pending.fresh


def test_sealed_entries_are_the_list_again() -> None:
    sequences = range(1, 10_000, 3)
    pending = PendingList()
    pending.fresh = {sequence: place(sequence) for sequence in sequences}
    pending.seal()
    assert len(pending) == len(sequences)
    assert list(pending.entries()) == [(sequence, place(sequence)) for sequence in sequences]
    assert pop(pending, 4) == place(4)
    assert pop(pending, 5) is None


def sealed(count: int) -> PendingList:
    pending = PendingList()
    pending.fresh = {sequence: place(sequence) for sequence in range(1, count + 1)}
    pending.seal()
    return pending


def held_bytes(pending: PendingList) -> int:
    return sum(part.itemsize * len(part) for piece in pending._pieces for part in piece.arrays)


def test_an_entry_takes_less_than_thirty_bytes_once_sealed() -> None:
    pending = sealed(8192)
    assert held_bytes(pending) / len(pending) < 30


def test_one_message_that_stays_does_not_keep_the_arrays_of_its_neighbours() -> None:
    pending = sealed(10_240)
    stay = list(range(500, 10_240, 1000))
    gone = [sequence for sequence in range(1, 10_241) if sequence not in stay]
    assert None not in pending.pop_sealed(gone)
    assert [sequence for sequence, _ in pending.entries()] == stay
    assert held_bytes(pending) < 10 * 100 * 24


def firsts(told: Mapping[int, Piece | None]) -> dict[int, int | None]:
    """The first sequence of each piece, by key."""
    return {key: None if piece is None else piece.arrays[0][0] for key, piece in told.items()}


def test_consuming_in_order_costs_a_checkpoint_one_piece_and_the_keys_of_those_that_are_gone() -> (
    None
):
    pending = sealed(10_240)
    told, added, removed = pending.take_changes(0)
    assert firsts(told) == {key: key for key in range(1, 10_240, 1024)}
    assert (added, removed) == (10_240, 0)
    pending.pop_sealed(range(1, 5001))
    told, added, removed = pending.take_changes(10_240)
    assert firsts(told) == {**dict.fromkeys((1, 1025, 2049, 3073)), 4097: 5001}
    assert (added, removed) == (0, 5000)
    assert pending.take_changes(10_240) == ({}, 0, 0)


def test_what_was_never_stored_is_not_taken_out_of_the_metadata_store() -> None:
    pending = sealed(3000)
    pending.pop_sealed(range(1, 3001))
    assert pending.take_changes(0) == ({}, 0, 0)


def test_with_an_empty_metadata_store_everything_is_told_again() -> None:
    pending = sealed(3000)
    pending.take_changes(0)
    pending.pop_sealed(range(1, 1500))
    pending.mark_everything_changed()
    told, added, removed = pending.take_changes(0)
    assert firsts(told) == {1025: 1500, 2049: 2049}
    assert (added, removed) == (1501, 0)


def test_entries_that_belong_in_between_take_old_pieces_out_of_the_metadata_store() -> None:
    pending = sealed(3000)
    pending.take_changes(0)
    pending.pop_sealed([*range(1, 1025), *range(1030, 3001)])
    pending.merge({7: place(7), 1027: place(1027)})
    told, added, removed = pending.take_changes(3000)
    assert firsts(told) == {7: 7, 1: None, 1025: None, 2049: None}
    assert [item for item, _ in pending.entries()] == [7, *range(1025, 1030)]
    assert removed - added == 3000 - 6


def test_bodies_are_summed_up_without_unpacking_or_going_through_what_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every start asks every list, and to each of a thousand there came something since the checkpoint."""

    def gone_through(_entries: object) -> None:
        raise AssertionError("an entry at a time")

    pending = PendingList()
    pending.fresh = {sequence: place(sequence) for sequence in range(1, 100)}
    pending.seal()
    (piece,) = (Piece.decode(told.encode()) for told in pending.take_changes(0)[0].values() if told)
    loaded = PendingList()
    loaded.restore_piece(piece)
    loaded.fresh = {sequence: place(sequence) for sequence in range(100, 200)}
    with monkeypatch.context() as patch:
        patch.setattr(_pieces, "usage_of", gone_through)
        patch.setattr(_pieces, "unpack", gone_through)
        assert loaded.body_bytes() == sum(range(1, 200))
    loaded.seal()
    monkeypatch.setattr(_pieces, "usage_of", gone_through)
    assert loaded.body_bytes() == sum(range(1, 200))
