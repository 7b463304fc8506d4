"""Events: what is kept of them, what a reader is told, and who waits for them."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from virtual_loop import run

from tidegate._logging import JsonFormatter
from tidegate.broker.events import BURST, HISTORY_MAX, KEPT_BYTES_MAX, KEPT_MAX, Events
from tidegate.spi import AuditKind
from tidegate.spi.events import EVENTS, Event, EventKind, Severity, log_only
from tidegate.spi.operate import EVENT_WAIT_MAX_S, ListEvents

_log = logging.getLogger("tidegate.test")
START: int = 1_700_000_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        self.now += 10
        return self.now


@pytest.fixture
def events() -> Events:
    return Events(Clock())


def tell(events: Events, event: Event, count: int) -> None:
    """So many, none of them more than a second allows."""
    for number in range(count):
        events.tell(event, _log, "client=%r number=%d", f"c{number}", number)
        events.look()


def test_every_name_has_one_meaning_and_audit_s_names_are_the_same() -> None:
    assert list(EVENTS) == list(Event)
    assert {meaning.kind for meaning in EVENTS.values()} == set(EventKind)
    audited = {kind.value for kind in AuditKind} - {AuditKind.LOGIN.value}
    assert audited < {event.value for event in Event}


def test_an_event_says_what_its_line_of_the_log_says(
    events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate.test")
    events.tell(Event.CLIENT_CONNECTED, _log, 'client=%r port=%d came "in"', 'a "b"\n', 7)
    (row,) = events.page(ListEvents()).rows
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["text"]) == (row.event.value, row.text)
    assert {key: line[key] for key in row.about} == {"client": 'a "b"\n', "port": 7}
    assert row.about == {"client": 'a "b"\\n', "port": 7}
    assert "\n" not in row.text
    assert (row.kind, row.severity, row.count) == (EventKind.CLIENT, Severity.INFO, 1)
    assert row.sequence == START + 11
    assert row.at == START + 20


def test_the_level_of_the_log_decides_nothing(
    events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "tidegate.test")
    events.tell(Event.CLIENT_CONNECTED, _log, "client=%r", "a")
    assert not caplog.records
    assert len(events.page(ListEvents()).rows) == 1


def test_sequences_are_dense_and_pages_are_complete(events: Events) -> None:
    for number in range(30):
        event = (Event.CLIENT_CONNECTED, Event.STORE_FULL, Event.SINK_LATE)[number % 3]
        events.tell(event, _log, "number=%d", number)
    seen: list[int] = []
    after = 0
    while True:
        page = events.page(ListEvents(after, limit=7))
        assert not page.missed
        if not page.rows:
            break
        seen += [row.sequence for row in page.rows]
        after = page.next
    assert seen == list(range(events.last - 29, events.last + 1))
    assert after == events.last


def test_a_page_has_what_was_asked_for(events: Events) -> None:
    events.tell(Event.CLIENT_CONNECTED, _log, "one")
    events.tell(Event.STORE_FULL, _log, "two")
    events.tell(Event.STORE_ROOM, _log, "three")
    since = events.page(ListEvents()).rows[1].at

    def texts(request: ListEvents) -> list[str]:
        return [row.text for row in events.page(request).rows]

    assert texts(ListEvents(kinds=(EventKind.STORE,))) == ["two", "three"]
    assert texts(ListEvents(kinds=(EventKind.STORE, EventKind.STORE))) == ["two", "three"]
    assert texts(ListEvents(severity=Severity.WARNING)) == ["two", "three"]
    assert texts(ListEvents(severity=Severity.ERROR)) == ["two"]
    assert texts(ListEvents(since=since)) == ["two", "three"]
    assert texts(ListEvents(newest=True, limit=2)) == ["two", "three"]
    assert texts(ListEvents(newest=True, limit=1, kinds=(EventKind.CLIENT,))) == ["one"]
    # Who wants what does not come knows all the same how far it has read.
    assert events.page(ListEvents(kinds=(EventKind.SINK,))).next == events.last


def test_a_kind_pushes_out_no_other_one_and_a_reader_is_told_how_many_it_missed(
    events: Events,
) -> None:
    events.tell(Event.STORE_FULL, _log, "it is full")
    begin = events.last
    tell(events, Event.CLIENT_CONNECTED, KEPT_MAX + 300)
    assert [row.text for row in events.page(ListEvents(limit=1)).rows] == ["it is full"]
    page = events.page(ListEvents(begin, limit=1000))
    assert (len(page.rows), page.missed, page.next) == (KEPT_MAX, 300, events.last)
    assert events.page(ListEvents(begin + 300)).missed == 0
    assert events.page(ListEvents(begin + 299)).missed == 1
    assert events.page(ListEvents(begin, kinds=(EventKind.STORE,))).missed == 0
    assert events.page(ListEvents(0)).missed == 0  # who begins has missed nothing


def test_over_all_pages_each_event_is_told_once_or_missed_once(events: Events) -> None:
    events.tell(Event.STORE_FULL, _log, "first")
    begin = events.last - 1
    for number in range(2 * KEPT_MAX):
        tell(events, Event.CLIENT_CONNECTED, 1)
        if number % 100 == 0:
            tell(events, Event.SINK_LATE, 1)
    total, after, told = events.last - begin, begin, 0
    while after < events.last:
        page = events.page(ListEvents(after, limit=13)) if after else events.page(ListEvents())
        told += len(page.rows) + page.missed
        after = page.next
    assert told == total


def test_what_is_kept_is_bounded_in_bytes(events: Events) -> None:
    for number in range(400):
        text = " ".join(f"f{index}=%s" for index in range(10)) + f" {'x' * 1000} %d"
        events.tell(Event.SINK_FAILED, _log, text, *["漢" * 500] * 10, number)
        events.look()
    page = events.page(ListEvents(limit=1000))
    assert 10 < len(page.rows) < 400
    assert events.size_bytes <= KEPT_BYTES_MAX
    assert all(len(row.text) <= 1000 for row in page.rows)
    assert all(len(str(value)) <= 200 for row in page.rows for value in row.about.values())


def test_how_many_were_missed_is_known_for_long_and_bounded_behind_that(events: Events) -> None:
    begin = events.last
    for _ in range(100):
        events._remember(0)  # pyright: ignore[reportPrivateUsage]
    assert len(events._history) == 100  # pyright: ignore[reportPrivateUsage]
    tell(events, Event.CLIENT_CONNECTED, 1)
    for _ in range(2 * HISTORY_MAX):
        events._remember(0)  # pyright: ignore[reportPrivateUsage]
    assert len(events._history) <= 2 * HISTORY_MAX  # pyright: ignore[reportPrivateUsage]
    assert begin < events.last


def test_a_storm_is_told_as_a_few_and_one_for_the_rest(events: Events) -> None:
    for number in range(10_000):
        events.tell(Event.CLIENT_CONNECTED, _log, "client=%r", f"c{number}")
    events.tell(Event.STORE_FULL, _log, "it is full")
    events.look()
    rows = events.page(ListEvents(limit=1000)).rows
    connected = [row for row in rows if row.event is Event.CLIENT_CONNECTED]
    assert len(connected) == BURST + 1
    assert sum(row.count for row in connected) == 10_000
    assert connected[-1].about == {"count": 10_000 - BURST}
    assert events.snapshot()["events.client-connected.count"] == 10_000
    events.tell(Event.CLIENT_CONNECTED, _log, "client=%r", "later")
    assert events.page(ListEvents(newest=True, limit=1)).rows[0].text == "client=later"


def test_dead_letters_of_a_second_are_one_event_for_each_destination(events: Events) -> None:
    for _ in range(500):
        events.dead_lettered("queue://a", "queue://DLQ")
        events.dead_lettered("queue://b", "queue://DLQ")
    assert not events.page(ListEvents()).rows
    events.look()
    rows = events.page(ListEvents()).rows
    assert [(row.about["destination"], row.count) for row in rows] == [
        ("queue://a", 500),
        ("queue://b", 500),
    ]
    assert events.snapshot()["events.messages-dead-lettered.count"] == 1000
    for number in range(1000):
        events.dead_lettered(f"queue://{number}", "queue://DLQ")
    events.look()
    rows = events.page(ListEvents(rows[-1].sequence)).rows
    assert len(rows) <= 51
    assert sum(row.count for row in rows) == 1000


def test_a_reader_of_a_gateway_that_ran_before_is_told_so(events: Events) -> None:
    tell(events, Event.CLIENT_CONNECTED, 3)
    for after in (5, START - 1_000_000, events.last + 1):
        page = events.page(ListEvents(after))
        assert page.is_restarted
        assert len(page.rows) == 3
    assert not events.page(ListEvents(events.last)).is_restarted
    assert not events.page(ListEvents(0)).is_restarted


def test_who_waits_is_woken_by_what_it_wants_and_by_nothing_else() -> None:
    async def main() -> None:
        events, loop = Events(Clock()), asyncio.get_running_loop()
        wants = ListEvents(kinds=(EventKind.STORE,), wait_s=EVENT_WAIT_MAX_S)
        waiting = asyncio.create_task(events.wanted(wants))
        await asyncio.sleep(1)
        events.tell(Event.CLIENT_CONNECTED, _log, "one")
        await asyncio.sleep(1)
        assert not waiting.done()
        events.tell(Event.STORE_FULL, _log, "two")
        page = await waiting
        assert [row.text for row in page.rows] == ["two"]
        assert loop.time() < EVENT_WAIT_MAX_S
        empty = await events.wanted(ListEvents(page.next, wait_s=5))
        assert (empty.rows, empty.next) == ((), events.last)
        gone = asyncio.create_task(events.wanted(ListEvents(page.next, wait_s=5)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        events.tell(Event.STORE_ROOM, _log, "three")
        assert len((await events.wanted(ListEvents(page.next, wait_s=5))).rows) == 1

    run(main())


def test_where_nobody_keeps_events_they_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidegate.test")
    log_only(Event.STORE_READ_ONLY, _log, "error=%r", "x", error=OSError("y"))
    (record,) = caplog.records
    assert (record.levelname, vars(record)["event"]) == ("CRITICAL", "store-read-only")
    assert record.exc_info is not None
