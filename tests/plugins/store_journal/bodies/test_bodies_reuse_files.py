"""Which file a body takes over, and when they are given back."""

from __future__ import annotations

from tidegate_store_journal.bodies.kept import FreeFiles


def test_a_body_gets_the_smallest_file_that_is_at_most_half_empty() -> None:
    free = FreeFiles(1000)
    for name, length in (("c", 200), ("a", 50), ("b", 100)):
        assert free.give(name, length)
    assert free.bytes == 350
    assert free.take(40) == ("a", 50)
    assert free.take(40) is None
    assert free.take(100) == ("b", 100)
    assert free.take(101) == ("c", 200)
    assert (free.bytes, free.take(1)) == (0, None)


def test_the_room_is_bounded_and_not_for_one_file_alone() -> None:
    free = FreeFiles(1000)
    assert not free.give("large", 251)
    assert [free.give(str(number), 250) for number in range(5)] == [True] * 4 + [False]
    assert free.bytes == 1000
    assert len(free.give_up()) == 4
    assert (free.bytes, free.give_up()) == (0, [])


def test_files_are_given_up_when_nobody_wanted_one_for_a_while() -> None:
    free = FreeFiles(1000)
    free.give("a", 100)
    assert free.give_up_if_idle() == []
    free.take(7)
    assert free.give_up_if_idle() == []
    assert free.give_up_if_idle() == ["a"]
    assert free.give_up_if_idle() == []
