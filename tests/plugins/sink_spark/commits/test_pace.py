"""When a commit is due: by age, by size, by the goal for the lag."""

import pytest

from tidegate_sink_spark.commits.pace import Pace
from tidegate_sink_spark.staging.storage import Waiting


def pace(**options: float) -> Pace:
    chosen = {"interval": 5.0, "rows": 1000, "size_bytes": 10_000, "lag_goal": 0.0} | options
    return Pace(
        interval=chosen["interval"],
        rows=int(chosen["rows"]),
        size_bytes=int(chosen["size_bytes"]),
        lag_goal=chosen["lag_goal"],
    )


def committed(at: float, took: float, **options: float) -> Pace:
    """A pace whose last commit began at *at*."""
    made = pace(**options)
    made.begin(at)
    made.end(at + took, moved=True)
    return made


def test_the_first_row_of_all_waits_for_nothing() -> None:
    assert pace().due_at(Waiting(100.0, 1, 1, 1)) == float("-inf")


def test_rows_are_gathered_for_the_interval_since_the_last_commit_began() -> None:
    assert committed(100.0, 1.0).due_at(Waiting(101.0, 1, 10, 10)) == 105.0


@pytest.mark.parametrize("waiting", [Waiting(101.0, 9, 1000, 10), Waiting(101.0, 9, 10, 10_000)])
def test_enough_rows_or_bytes_do_not_wait_for_it(waiting: Waiting) -> None:
    assert committed(100.0, 1.0).due_at(waiting) == pytest.approx(100.1)


def test_a_goal_brings_a_commit_forward_by_what_it_takes() -> None:
    made = committed(100.0, 0.5, lag_goal=3.0)
    assert made.due_at(Waiting(100.2, 1, 10, 10)) == pytest.approx(102.6)
    made.begin(102.6)
    made.end(104.6, moved=True)  # it took 2 s
    assert made.takes == 2.0
    assert made.due_at(Waiting(104.0, 1, 10, 10)) == pytest.approx(104.9)
    assert made.due_at(Waiting(106.0, 1, 10, 10)) == pytest.approx(106.9)


def test_a_goal_never_puts_a_commit_off() -> None:
    assert committed(100.0, 0.5, lag_goal=60.0).due_at(Waiting(100.2, 1, 1, 1)) == 105.0


def test_commits_are_never_closer_than_the_spacing() -> None:
    made = committed(100.0, 0.01, lag_goal=1.0, interval=0.1)
    assert made.due_at(Waiting(50.0, 1, 10, 10)) == pytest.approx(100.1)


def test_the_longest_of_the_last_commits_is_what_the_next_one_may_take() -> None:
    made = committed(0.0, 9.0)
    for turn in range(1, 9):
        made.begin(10.0 * turn)
        made.end(10.0 * turn + 1, moved=True)
    assert made.takes == 1.0


def test_a_look_that_found_nothing_to_commit_is_repeated_with_patience() -> None:
    made = committed(100.0, 0.5, lag_goal=1.0, interval=0.1)
    made.begin(101.0)
    made.end(101.01, moved=False)  # a staged file is missing
    assert made.due_at(Waiting(50.0, 5, 5000, 10)) == 102.0
    assert made.takes == 0.5
