"""A part of the messages is picked, and at most so many a second."""

from __future__ import annotations

import random

import pytest

from tidegate_traces._sampling import Gaps, RateCap


@pytest.mark.parametrize("ratio", [0.5, 0.1, 0.01])
def test_as_many_are_picked_as_the_ratio_says(ratio: float) -> None:
    gaps = Gaps(ratio, random.Random(1).random)
    picked = total = 0
    while picked < 5000:
        total += int(gaps.left) + 1
        picked += 1
        gaps.next()
    assert picked / total == pytest.approx(ratio, rel=0.1)


def test_none_and_all() -> None:
    none, every = Gaps(0.0), Gaps(1.0)
    none.next()
    every.next()
    assert not none.left < 10**12
    assert every.left == 0


def test_a_second_has_so_many_and_no_more() -> None:
    now = 0.0
    cap = RateCap(10, lambda: now)
    assert sum(cap.takes() for _ in range(25)) == 10
    now = 0.5
    assert sum(cap.takes() for _ in range(25)) == 5
    now = 100.0
    assert sum(cap.takes() for _ in range(25)) == 10
