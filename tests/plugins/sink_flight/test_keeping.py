"""Rows are kept for as long as they shall be, and not for much longer."""

from tidegate_sink_flight._keeping import Keeping


def test_without_keep_everything_may_go() -> None:
    keeping = Keeping(0)
    keeping.look(0, 100)
    assert keeping.through(0, 100) == 100


def test_a_row_goes_when_it_was_there_for_that_long() -> None:
    keeping = Keeping(100)
    for now in range(0, 351, 5):  # ten rows a second
        keeping.look(now, now * 10)
        through = keeping.through(now, now * 10)
        assert through <= max(0, (now - 100) * 10), "never earlier"
        assert through >= (now - 110) * 10, "and not much later"


def test_an_idle_log_goes_in_the_end() -> None:
    keeping = Keeping(100)
    keeping.look(0, 50)
    assert keeping.through(99, 50) == 0
    keeping.look(1000, 50)
    assert keeping.through(1000, 50) == 50


def test_memory_is_bounded_however_often_it_looks() -> None:
    keeping = Keeping(100)
    for now in range(100_000):
        keeping.look(now / 10, now)
    assert len(keeping._seen) <= 102
