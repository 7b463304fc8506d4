"""Rows of traced messages on their way into tables: of several sinks, in portions, and at most so many."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.spi import HoldFor, Message, SinkCommit, SinkHealth, SinkProgress, SinkState
from tidegate_traces._context import made
from tidegate_traces._rows import Committed, Row, RowsOnTheirWay
from tidegate_traces._spans import described


def row(number: int, destination: str = "queue://a") -> Row:
    sent = described(Message(destination, b""), 1000 + number, made(1, number))
    return Row(number, sent, made(1, 500 + number), 0)


def everything(_: str) -> str:
    return "/lake/t"


def at(
    mark: int,
    commit: SinkCommit | None = None,
    *,
    name: str = "lake",
    released: int = 0,
    target_of: Callable[[str], str] = everything,
) -> SinkProgress:
    health = SinkHealth(SinkState.RUNNING, mark, mark, target="/lake/t", last_commit=commit)
    return SinkProgress(name, health, released, target_of)


def rows(*numbers: int, limit: int = 100, hold: HoldFor = lambda who, size: True) -> RowsOnTheirWay:
    made_ = RowsOnTheirWay(limit, hold)
    for number in numbers:
        made_.put(row(number))
    return made_


def told(found: list[Committed]) -> list[tuple[int, str, int]]:
    return [(item.row.number, item.sink, item.version) for item in found]


def test_a_row_is_told_once_with_the_commit_that_took_it() -> None:
    waiting = rows(3, 7, 8, 12)
    waiting.carried([at(0)])
    assert list(waiting.take(9)) == []
    waiting.carried([at(7, SinkCommit(at=5, rows=7, version=1, after=0, through=7))])
    waiting.carried([at(10, SinkCommit(at=6, rows=3, version=2, after=7, through=10))])
    found = list(waiting.take(9))
    assert told(found) == [(3, "lake", 1), (7, "lake", 1), (8, "lake", 2)]
    assert [item.at for item in found] == [5, 5, 6]
    assert (len(waiting), waiting.is_due) == (1, False)
    assert list(waiting.take(9)) == []


def test_a_commit_that_nobody_told_of_is_unknown() -> None:
    """The job died with it, and the next one read the mark; or only the last of two was seen."""
    waiting = rows(3, 7)
    waiting.carried([at(7, SinkCommit(at=5, rows=3, version=2, after=4, through=7))])
    found = list(waiting.take(9))
    assert told(found) == [(3, "lake", 0), (7, "lake", 2)]
    assert [item.at for item in found] == [0, 5]
    waiting.put(row(9))
    waiting.carried([at(9)])
    assert told(list(waiting.take(9))) == [(9, "lake", 0)]


def test_each_sink_has_its_own_and_the_last_one_lets_go() -> None:
    waiting = rows(1, 2)
    waiting.carried([at(2), at(1, name="sea")])
    assert told(list(waiting.take(9))) == [(1, "lake", 0), (2, "lake", 0), (1, "sea", 0)]
    assert len(waiting) == 1
    waiting.carried([at(2), at(2, name="sea")])
    assert told(list(waiting.take(9))) == [(2, "sea", 0)]
    assert len(waiting) == 0


def test_what_a_sink_does_not_take_has_no_table_and_another_table_no_version() -> None:
    waiting = rows()
    for number, name in enumerate(("queue://a", "queue://no", "queue://else"), 1):
        waiting.put(row(number, name))
    tables = {"queue://a": "/lake/t", "queue://no": "", "queue://else": "/lake/else"}
    commit = SinkCommit(at=5, rows=2, version=4, after=0, through=3)
    waiting.carried([at(3, commit, target_of=tables.__getitem__)])
    found = list(waiting.take(9))
    assert [(item.table, item.version) for item in found] == [("/lake/t", 4), ("/lake/else", 0)]
    assert len(waiting) == 0


def test_what_the_log_let_go_of_before_the_table_had_it_is_not_in_the_table() -> None:
    waiting = rows(1, 2, 3)
    waiting.carried([at(1, released=2)])
    assert told(list(waiting.take(9))) == [(1, "lake", 0)]
    assert len(waiting) == 1


def test_they_are_taken_in_portions() -> None:
    waiting = rows(*range(1, 6))
    waiting.carried([at(4), at(5, name="sea")])
    assert [len(list(waiting.take(2))) for _ in range(5)] == [2, 2, 2, 2, 1]
    assert (len(waiting), waiting.is_due) == (1, False)
    waiting.carried([at(5), at(5, name="sea")])
    assert list(waiting.take(0)) == []
    assert waiting.is_due
    assert told(list(waiting.take(1))) == [(5, "lake", 0)]


def test_the_oldest_make_room_for_every_sink() -> None:
    waiting = rows(*range(1, 6), limit=3)
    assert (len(waiting), waiting.forgotten) == (3, 2)
    waiting.carried([at(3), at(0, name="sea")])
    assert told(list(waiting.take(9))) == [(3, "lake", 0)]
    waiting.put(row(6))
    waiting.put(row(7))
    assert (len(waiting), waiting.forgotten) == (3, 4)
    waiting.carried([at(7), at(7, name="sea")])
    assert told(list(waiting.take(9))) == [
        (number, name, 0) for name in ("lake", "sea") for number in (5, 6, 7)
    ]


def test_what_sinks_say_while_nothing_is_taken_has_a_limit() -> None:
    waiting = rows(limit=300)
    for number in range(1, 301):
        waiting.put(row(number))
        commit = SinkCommit(at=number, rows=1, version=number, after=number - 1, through=number)
        waiting.carried([at(number, commit)])
    found = list(waiting.take(1000))
    assert [item.row.number for item in found] == list(range(1, 301))
    assert all(item.version in (0, item.row.number) for item in found)
    assert [item.version for item in found[:99]] == list(range(1, 100))
    assert not waiting.is_due
