"""When upkeep is due: no clock, and no chance but the one that is given."""

import pytest

from tidegate_sink_spark.upkeep.schedule import JITTER, VACUUM_EVERY, Schedule


def schedule(*chances: float, interval: float = 600.0) -> Schedule:
    left = list(chances)
    return Schedule(interval, now=1_000.0, chance=lambda: left.pop(0) if left else 0.5)


def test_nothing_is_due_until_the_table_changes() -> None:
    made = schedule()
    assert made.due_at is None
    made.committed()
    assert made.due_at == 1_600.0


def test_a_turn_takes_all_that_came_before_it() -> None:
    made = schedule()
    made.committed()
    made.begin(1_700.0)
    assert made.due_at is None
    made.committed()
    assert made.due_at == 2_300.0


def test_an_interval_of_zero_is_never() -> None:
    made = schedule(interval=0.0)
    made.committed()
    assert made.due_at is None


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 1 - JITTER), (0.5, 1.0), (1.0, 1 + JITTER)])
def test_each_interval_differs_by_up_to_a_tenth(chance: float, factor: float) -> None:
    made = schedule(chance, 1 - chance)
    made.committed()
    assert made.due_at == pytest.approx(1_000.0 + 600.0 * factor)
    made.begin(2_000.0)
    made.committed()
    assert made.due_at == pytest.approx(2_000.0 + 600.0 * (2 - factor))


def test_two_sinks_of_a_machine_drift_apart() -> None:
    both = [Schedule(600.0, now=0.0), Schedule(600.0, now=0.0)]
    for made in both:
        made.committed()
    assert both[0].due_at != both[1].due_at


def test_the_first_turn_vacuums_and_then_each_24th() -> None:
    made = schedule()
    assert [n for n in range(3 * VACUUM_EVERY) if made.begin(float(n))] == [0, 24, 48]


def test_a_turn_that_failed_is_still_to_be_done_with_its_vacuum() -> None:
    made = schedule()
    made.committed()
    assert made.begin(1_600.0)
    made.failed()
    assert made.due_at == 2_200.0
    assert made.begin(2_200.0)
    assert made.due_at is None
    assert not made.begin(2_900.0)
