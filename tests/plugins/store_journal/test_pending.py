"""A pending list against a plain dictionary."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_store_journal import _pending
from tidegate_store_journal._format import location
from tidegate_store_journal._pending import PendingList, iterate_arrays

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("pop"), st.integers(0, 200)),
        st.tuples(st.just("page"), st.integers(0, 200)),
        st.tuples(st.just("since"), st.integers(0, 200)),
        st.tuples(st.just("relocate"), st.integers(0, 200)),
        st.tuples(st.just("in file"), st.integers(1, 9)),
    ),
    max_size=40,
)


def place(sequence: int) -> int:
    return location(sequence % 7 + 1, 4096 + sequence, 50, sequence)


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


@settings(deadline=None)
@given(STEPS)
def test_a_list_holds_what_a_dictionary_holds(steps: list[tuple[str, int]]) -> None:
    small = _pending.CHUNK_ENTRIES
    _pending.CHUNK_ENTRIES = 4  # type: ignore[misc]  # so that a few entries fill many chunks
    try:
        pending, model = PendingList(), dict[int, int]()
        last = 0
        for step, value in steps:
            if step == "add":
                for sequence in range(last + 1, last + value + 1, 2):
                    model[sequence] = pending.fresh[sequence] = place(sequence)
                    last = sequence
            elif step == "seal":
                pending.seal()
            elif step == "pop":
                assert (value in pending) == (value in model)
                assert pending.pop(value) == model.pop(value, None)
            elif step == "relocate":
                new = location(value % 9 + 1, 9000 + value, 50, value)
                assert pending.get(value) == model.get(value)
                assert pending.relocate(value, new) == model.get(value)
                if value in model:
                    model[value] = new
            elif step == "in file":
                inside = sorted(entry for piece in pending.pieces_in(value) for entry in piece)
                assert inside == [item for item in model.items() if item[1] >> 100 == value]
            elif step == "page":
                check_page(pending, model, value)
            else:
                pending.seal()
                found = [
                    (sequence, low | high << 64)
                    for arrays in pending.since(value)
                    for sequence, low, high in iterate_arrays(*arrays)
                ]
                assert found == [item for item in model.items() if item[0] > value]
            assert len(pending) == len(model)
        assert list(pending.entries()) == list(model.items())
        assert list(pending.entries(5, 30)) == [
            item for item in model.items() if 5 <= item[0] <= 30
        ]
        assert pending.body_bytes() == sum(model)
    finally:
        _pending.CHUNK_ENTRIES = small  # type: ignore[misc]


def test_a_large_fresh_part_is_sealed_by_a_page_behind_the_beginning() -> None:
    pending = PendingList()
    pending.fresh = {sequence: place(sequence) for sequence in range(1, 10_001)}
    assert [sequence for sequence, _ in pending.page(9_000, 3, 1 << 40)] == [9001, 9002, 9003]
    assert pending.last_sealed == 10_000
    assert not pending.fresh


def test_restored_arrays_are_the_list_again() -> None:
    sequences = array("Q", range(1, 10_000, 3))
    locations = array("Q")
    for sequence in sequences:
        locations.frombytes(place(sequence).to_bytes(16, "little"))
    pending = PendingList()
    pending.restore(sequences, locations)
    assert len(pending) == len(sequences)
    assert list(pending.entries()) == [(sequence, place(sequence)) for sequence in sequences]
    assert pending.pop(4) == place(4)
    assert pending.pop(5) is None


def test_an_entry_takes_less_than_thirty_bytes_once_sealed() -> None:
    pending = PendingList()
    pending.fresh = {sequence: place(sequence) for sequence in range(1, 8193)}
    pending.seal()
    held = sum(part.itemsize * len(part) for arrays in pending.since(0) for part in arrays)
    assert held / len(pending) < 30
