"""Free room of a record file: never given out twice, always joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate_store_journal.split.space import Space


def test_what_is_not_used_is_free() -> None:
    space = Space(100, [(10, 5), (20, 80)])
    assert (space.free, space.length, space.tail) == (15, 100, 0)
    assert space.take(10) == 0
    assert space.take(6) is None
    assert space.take(5) == 15
    assert space.take(1) is None


def test_neighbours_are_joined() -> None:
    space = Space(30, [(0, 30)])
    for start in (0, 20, 10):
        space.give_back(start, 10)
    assert space.take(30) == 0


def test_growing_makes_room_at_the_end() -> None:
    space = Space(10, [(0, 5)])
    assert space.tail == 5
    space.grow(10)
    assert (space.tail, space.free) == (15, 15)
    assert space.take(15) == 5
    assert space.tail == 0


def test_overlapping_extents_do_no_harm() -> None:
    space = Space(10, [(0, 6), (4, 2), (2, 1)])
    assert space.free == 4
    assert space.take(4) == 6


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=200))
def test_no_block_is_ever_given_out_twice(steps: list[tuple[bool, int]]) -> None:
    space = Space()
    used: dict[int, int] = {}
    for is_taken, size in steps:
        if is_taken or not used:
            start = space.take(size)
            if start is None:
                space.grow(size + 3)
                start = space.take(size)
            assert start is not None
            assert start + size <= space.length
            for other, length in used.items():
                assert start + size <= other or other + length <= start
            used[start] = size
        else:
            start = list(used)[size % len(used)]
            space.give_back(start, used.pop(start))
    assert space.free == space.length - sum(used.values())
    for start, size in used.items():
        space.give_back(start, size)
    assert not space.length or space.take(space.length) == 0
