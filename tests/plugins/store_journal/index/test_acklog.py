"""The acknowledged log: dense, paged, released in order."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_store_journal.index.acklog import AckBlock, AckLog, decode_block
from tidegate_store_journal.log.format import FormatError, location


def block(first: int, count: int, acked_at: int = 0) -> AckBlock:
    rows = range(first, first + count)
    return AckBlock(
        first,
        1,
        acked_at or first,
        "c",
        "s",
        "p",
        tuple(1000 + row for row in rows),
        [location(1, 4096 + row, 10, row) for row in rows],
        tuple(2000 + row for row in rows),
    )


def page(log: AckLog, after: int, limit: int, bytes_max: int, last: int | None = None) -> list[int]:
    """The numbers of the rows of a page."""
    parts = log.parts(after, limit, bytes_max, log.last if last is None else last)
    return [row for part in parts for row, _, _ in part.rows()]


def told(log: AckLog) -> dict[int, list[int] | None]:
    """What a checkpoint is told: the locations of the rows of each block."""
    return {
        first: None if item is None else list(item.locations)
        for first, item in log.take_unstored().items()
    }


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 6), max_size=12),
    st.lists(st.integers(0, 80), max_size=5),
    st.booleans(),
)
def test_rows_come_in_order_until_they_are_released(
    sizes: list[int], releases: list[int], packed: bool
) -> None:
    log = AckLog()
    for size in sizes:
        made = block(log.last + 1, size)
        log.append(decode_block(made.encode()) if packed else made)
    total = sum(sizes)
    assert log.last == total
    released = 0
    for through in releases:
        freed = [row for rows, _ in log.release(through) for row in rows]
        end = max(released, min(through, total))
        assert freed == [1000 + row for row in range(released + 1, end + 1)]
        released = end
        assert log.released == released
        parts = log.parts(released, 1000, 1 << 40, log.last)
        numbers = range(released + 1, total + 1)
        assert [row for part in parts for row in part.rows()] == [
            (row, 1000 + row, location(1, 4096 + row, 10, row)) for row in numbers
        ]
        assert [at for part in parts for at in part.delivered_at] == [2000 + n for n in numbers]
        assert log.oldest_at == (parts[0].acked_at if parts else 0)


def test_a_page_keeps_its_limits_but_is_never_empty_when_there_is_a_row() -> None:
    log = AckLog()
    log.append(block(1, 10))
    assert page(log, 0, 4, 1 << 40) == [1, 2, 3, 4]
    assert page(log, 3, 100, 9) == [4, 5]  # bodies of 4 and 5 bytes
    assert page(log, 7, 100, 1) == [8]
    assert page(log, 10, 100, 1) == []


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(1, 20),
    st.integers(1, 200),
    st.integers(0, 50),
)
def test_a_page_of_many_blocks_is_what_fits(
    sizes: list[int], after: int, limit: int, bytes_max: int, last: int
) -> None:
    log = AckLog()
    for size in sizes:
        log.append(block(log.last + 1, size))
    behind = range(after + 1, min(last, log.last) + 1)[:limit]
    sizes = list(accumulate(behind))  # the body of each row has as many bytes as its number
    assert page(log, after, limit, bytes_max, last) == [
        row
        for row, size in zip(behind, sizes, strict=True)
        if size <= bytes_max or size == sizes[0]
    ]


def test_a_block_comes_back_from_its_bytes() -> None:
    wanted = block(5, 3)
    found = decode_block(wanted.encode())
    assert (found.first, found.last, found.count) == (5, 7, 3)
    assert (found.pending_list, found.acked_at) == (1, 5)
    assert (found.client_id, found.subscription, found.protocol) == ("c", "s", "p")
    assert tuple(found.sequences) == (1005, 1006, 1007)
    assert list(found.locations) == list(block(5, 3).locations)
    assert tuple(found.delivered_at) == (2005, 2006, 2007)
    with pytest.raises(FormatError):
        decode_block(b"\xc1")


def test_missing_delivery_times_are_zero() -> None:
    bare = AckBlock(1, 1, 0, "", "", "", (7,), [location(1, 4096, 1, 1)], ())
    assert tuple(bare.delivered_at) == (0,)
    assert tuple(decode_block(bare.encode()).delivered_at) == (0,)


def test_only_what_is_neither_stored_nor_released_goes_into_a_checkpoint() -> None:
    log = AckLog()
    log.append(block(1, 2))
    log.append(block(3, 2))
    list(log.release(2))
    assert list(told(log)) == [3]  # block 1 was never stored
    log.append(block(5, 1))
    list(log.release(4))
    assert told(log) == {3: None, 5: [location(1, 4101, 10, 5)]}
    assert told(log) == {}


def test_a_gap_found_at_start_moves_the_mark_behind_it() -> None:
    log = AckLog()
    assert log.restore([block(1, 2), block(6, 2)], 7, 0) == 3
    assert log.released == 5
    assert page(log, 5, 10, 1 << 40) == [6, 7]
    whole = AckLog()
    assert whole.restore([block(3, 2), block(1, 2)], 4, 1) == 0
    assert page(whole, 1, 10, 1 << 40) == [2, 3, 4]
    empty = AckLog()
    assert empty.restore([], 4, 4) == 0
    assert (empty.last, empty.released) == (4, 4)


def test_relocated_rows_are_found_at_their_new_place_and_stored_again() -> None:
    log = AckLog()
    for _ in range(3):
        log.append(block(log.last + 1, 4))
    put = list(log.take_unstored().values())
    assert len(put) == 3
    old = put[1]
    assert old is not None
    old.encode()
    places = [location(9, 4096 + row, 10, row) for row in (5, 6, 7)]
    moved = old.part(0, 3).located(places)
    before = [location(1, 4096 + row, 10, row) for row in (5, 6, 7)]
    assert log.relocate(moved) == list(zip((1005, 1006, 1007), before, strict=True))
    assert [log.location_of(row) for row in (5, 6, 7)] == places
    assert log.location_of(8) == location(1, 4096 + 8, 10, 8)
    assert old.locations[0] == before[0]  # a checkpoint may still be encoding it
    assert told(log) == {5: [*places, location(1, 4096 + 8, 10, 8)]}
    assert told(log) == {}


def test_released_rows_are_not_relocated() -> None:
    log = AckLog()
    log.append(block(1, 4))
    list(log.release(2))
    moved = block(1, 4).located([location(9, 4096 + row, 10, row) for row in (1, 2, 3, 4)])
    assert [sequence for sequence, _ in log.relocate(moved)] == [1003, 1004]
    assert [log.location_of(row) for row in (0, 1, 2, 5)] == [None] * 4
    assert log.location_of(3) == location(9, 4099, 10, 3)


def test_a_relocated_block_that_is_released_before_the_checkpoint_is_deleted_there() -> None:
    log = AckLog()
    log.append(block(1, 2))
    log.take_unstored()
    log.relocate(block(1, 2).located([location(9, 5000, 10, 1), location(9, 6000, 10, 2)]))
    list(log.release(2))
    assert told(log) == {1: None}


@pytest.mark.parametrize("packed", [True, False])
def test_rows_in_a_file_are_found_with_their_neighbours(packed: bool) -> None:
    log = AckLog()
    places = [location(file_id, 5000, 9, 1) for file_id in (7, 7, 8, 7, 8, 8, 7)]
    for made in (
        AckBlock(1, 1, 1, "", "", "", range(1, 7), places[:6], ()),
        AckBlock(7, 1, 1, "", "", "", (7,), places[6:], ()),
    ):
        log.append(decode_block(made.encode()) if packed else made)

    def found(file_id: int) -> list[tuple[int, int]]:
        return [(part.first, part.last) for parts in log.parts_in(file_id) for part in parts]

    assert found(7) == [(1, 2), (4, 4), (7, 7)]
    assert (found(6), found(9)) == ([], [])
    list(log.release(1))
    assert found(7) == [(2, 2), (4, 4), (7, 7)]
    list(log.release(5))
    assert found(8) == [(6, 6)]
    (part,) = [part for parts in log.parts_in(8) for part in parts]
    assert list(part.rows()) == [(6, 6, places[5])]
