"""What the extension makes of what it is told: which spans, of whose, and what it remembers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Discard,
    DiscardReason,
    Identity,
    Message,
    Move,
    Outcome,
    RecordDelivery,
    RemoveDestination,
    SinkCommit,
    SinkHealth,
    SinkProgress,
    SinkState,
    StoredMessage,
)
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_traces._extension import Traces
from tidegate_traces._options import TracesOptions

SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")
LIST = 7


class Kept:
    """In the place of the way to a collector."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.room = 1000

    def put(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def counts(self) -> dict[str, int]:
        return {}


class World:
    """The broker, as far as an observer can tell."""

    def __init__(self, **options: Any) -> None:
        values: dict[str, Any] = {"sample_ratio": 1.0, **options}
        self.traces = Traces(TracesOptions(**values))
        self.kept = Kept()
        self.traces._outlet = self.kept  # type: ignore[assignment]
        self._sequence = self._row = 0

    def publish(self, *messages: Message, problem: str = "") -> list[StoredMessage]:
        """A turn with these messages."""
        found: list[StoredMessage] = []
        for message in messages:
            self._sequence += 1
            found.append(StoredMessage.of(self._sequence, message))
        wanted = self.traces.observe_publishing(found)
        followed: list[StoredMessage] = []
        for at, stored in enumerate(found):
            if at in wanted:
                given = msgspec.structs.replace(stored.message, headers=wanted[at])
                found[at] = StoredMessage.of(stored.sequence, given)
                followed.append(found[at])
        if followed:
            self.traces.observe_published(followed, problem)
        return found

    def deliver(self, *messages: StoredMessage, pending_list: int = LIST) -> None:
        who = Identity("ann", frozenset(), "c", "127.0.0.1", "stomp")
        self.traces.observe_delivering(who, "s", messages, lambda _: pending_list)

    def written(self, *operations: Any, rows: int = 0) -> None:
        """These are durable, and made so many rows of the log."""
        first, self._row = self._row + 1, self._row + rows
        self.traces.observe_written(operations, range(first, self._row + 1))

    def told(self, operation: str) -> list[tuple[str, bool]]:
        """Outcomes of these spans, and whether they are errors."""
        return [
            (
                str((span.attributes or {}).get("tidegate.outcome", "")),
                span.status.status_code is StatusCode.ERROR,
            )
            for span in self.kept.spans
            if span.name.startswith(operation)
        ]


def queued(body: bytes = b"x", **more: Any) -> Message:
    return Message("queue://a", body, **more)


class Purses:
    """The accounts of principals. Attributes: held: bytes; limit: of each."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.held: dict[str, int] = {}
        self.limit = limit

    def hold(self, principal: str, size: int) -> bool:
        now = self.held.get(principal, 0) + size
        if size > 0 and now > self.limit:
            return False
        assert now >= 0
        self.held[principal] = now
        return True


def test_what_is_remembered_is_counted_for_its_owner_until_it_is_forgotten() -> None:
    world, purses = World(), Purses()
    world.traces.observer_starts(purses.hold)
    (stored,) = world.publish(queued(owner="ben"))
    waiting = purses.held["ben"]
    assert 500 < waiting < 2000
    world.deliver(stored)
    assert 1000 < purses.held["ann"] < 3000
    world.written(Acknowledge(LIST, (stored.sequence,)), rows=1)
    row = purses.held["ben"]  # its row waits for a sink's commit, the message for nothing any more
    assert purses.held["ann"] == 0
    assert 1000 < row < 2000
    health = SinkHealth(SinkState.RUNNING, 1, 1, target="/t")
    world.traces.observe_carried([SinkProgress("lake", health, 0, lambda _: "/t")])
    assert purses.held == {"ann": 0, "ben": 0}
    assert world.told("commit")


def test_a_long_name_counts() -> None:
    world, purses = World(), Purses()
    world.traces.observer_starts(purses.hold)
    world.publish(queued(owner="ben"), Message("queue://" + "n" * 9000, b"", owner="eve"))
    assert purses.held["ben"] + 3 * 240 < purses.held["eve"] < purses.held["ben"] + 3 * 256


def test_who_has_no_room_is_not_remembered_and_others_are() -> None:
    world, purses = World(), Purses(limit=1500)
    world.traces.observer_starts(purses.hold)
    found = world.publish(*(queued(owner=who) for who in ("ben", "ben", "ben", "eve")))
    assert world.traces.observer_counts()["traces.forgotten"] == 1
    purses.limit = 1 << 20
    world.deliver(*found)  # all of them are told of all the same: their headers say what they are
    purses.limit = 1500
    world.written(Acknowledge(LIST, tuple(stored.sequence for stored in found)), rows=4)
    counts = world.traces.observer_counts()
    assert (counts["traces.rows"], counts["traces.rows_forgotten"]) == (2, 2)
    assert world.told("settle") == [("acknowledged", False)] * 4
    assert purses.held["ben"] <= 1500


def test_a_delivery_to_somebody_without_room_is_told_at_once() -> None:
    world, purses = World(), Purses(limit=0)
    world.traces.observer_starts(purses.hold)
    world.deliver(*world.publish(queued()))
    assert world.told("process") == [("unknown", False)]
    assert world.traces.observer_counts()["traces.open"] == 0
    assert not any(purses.held.values())


def test_nothing_is_traced_before_it_starts_or_after_it_stopped() -> None:
    traces = Traces(TracesOptions(sample_ratio=1.0))
    assert traces.observe_publishing([StoredMessage.of(1, queued())]) == {}
    assert traces.observer_counts()["traces.sent"] == 0


def test_without_a_ratio_only_those_with_a_context_are() -> None:
    world = World(sample_ratio=0.0)
    plain, others, traced = world.publish(
        queued(), queued(headers=(("a", "b"),)), queued(headers=(SAMPLED,))
    )
    assert not plain.message.headers
    assert others.message.headers == (("a", "b"),)
    assert traced.message.headers[0][1].startswith(f"00-{'a' * 32}-")
    assert len(world.kept.spans) == 1


@pytest.mark.parametrize("headers", [(), (("a", "b"),)])
def test_the_ratio_counts_messages_with_headers_and_without(headers: Any) -> None:
    world = World(sample_ratio=0.1, rate_max=1_000_000)
    for _ in range(400):
        world.publish(*[queued(headers=headers)] * 10, queued(), queued(headers=(("x", "y"),)))
    assert 350 < len(world.kept.spans) < 620  # 480 of 4800


def test_what_nobody_publishes_begins_no_trace() -> None:
    world = World()
    world.publish(queued(retained=True), Message("topic://$SYS.broker.uptime", b"1"))
    assert not world.kept.spans


def test_above_the_rate_messages_pass_as_they_came() -> None:
    world = World(rate_max=2)
    found = world.publish(*[queued(headers=(SAMPLED,))] * 5)
    assert [stored.message.headers == (SAMPLED,) for stored in found] == [False] * 2 + [True] * 3
    assert world.traces.observer_counts()["traces.capped"] == 3
    world.deliver(*found)  # those that were not traced are not here either
    assert world.traces.observer_counts()["traces.open"] == 2


def test_a_message_that_was_not_stored_is_an_error() -> None:
    world = World()
    world.publish(queued(), problem="no room")
    (span,) = world.kept.spans
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no room")


def test_what_is_moved_is_not_published_again() -> None:
    world = World()
    (stored,) = world.publish(queued())
    assert world.traces.observe_publishing([StoredMessage.of(99, stored.message)]) == {}


@pytest.mark.parametrize(
    ("operation", "outcome", "is_error"),
    [
        (Acknowledge(LIST, (1,)), "acknowledged", False),
        (Acknowledge(LIST, (1,), outcome=Outcome.REJECTED, reason="why"), "rejected", True),
        (Acknowledge(LIST, (1,), outcome=Outcome.EXPIRED), "expired", True),
        (Discard(LIST, (1,), DiscardReason.DROPPED), "dropped", True),
        (Discard(LIST, (1,), DiscardReason.PURGED), "purged", True),
        (
            Move(LIST, 1, 8, 2, queued(headers=(("dead-letter-reason", "why"),))),
            "dead-lettered",
            True,
        ),
        (Move(LIST, 1, 8, 2, queued()), "moved", False),
    ],
)
def test_how_it_ends(operation: Any, outcome: str, is_error: bool) -> None:
    world = World()
    (stored,) = world.publish(queued())
    world.deliver(stored)
    world.written(AddMessage(5, queued(), (LIST,)), operation)
    assert world.told("process") == [(outcome, is_error)]
    assert world.told("settle") == [(outcome, is_error)]
    assert world.traces.observer_counts()["traces.open"] == 0


def test_a_list_that_is_gone_takes_its_deliveries_with_it() -> None:
    world = World()
    world.deliver(*world.publish(queued(), queued()))
    world.written(RemoveDestination("queue://a", LIST))
    assert world.told("process") == [("removed", False)] * 2


def test_the_same_number_in_another_list_is_another_delivery() -> None:
    world = World()
    (stored,) = world.publish(Message("topic://a", b"x"))
    world.deliver(stored, pending_list=8)
    world.deliver(stored, pending_list=9)
    world.written(Acknowledge(8, (stored.sequence,)))
    assert world.traces.observer_counts()["traces.open"] == 1
    assert world.told("settle") == [("acknowledged", False)]


def test_one_that_came_back_and_is_out_again_before_that_is_written() -> None:
    world = World()
    (stored,) = world.publish(queued())
    world.deliver(stored)
    world.deliver(StoredMessage(stored.sequence, stored.message, stored.size, 1))
    world.written(RecordDelivery(LIST, (stored.sequence,), (1,)))
    assert world.told("process") == [("returned", True)]
    assert world.traces.observer_counts()["traces.open"] == 1
    world.written(RecordDelivery(LIST, (stored.sequence,), (2,)))
    assert world.told("process") == [("returned", True)] * 2


def test_a_delivery_is_known_by_its_headers_alone() -> None:
    before, after = World(service_name="s"), World(service_name="s")
    (stored,) = before.publish(queued())
    after.deliver(stored)
    after.written(Acknowledge(LIST, (stored.sequence,)))
    assert after.told("settle") == [("acknowledged", False)]
    other = World(service_name="else")
    other.deliver(stored)
    assert not other.kept.spans
    assert other.traces.observer_counts()["traces.open"] == 0


def test_what_is_remembered_has_a_limit() -> None:
    world = World(open_max=100, rate_max=10_000)
    found = world.publish(*[queued()] * 150)
    assert world.traces.observer_counts()["traces.forgotten"] == 50
    world.deliver(*found)
    assert world.traces.observer_counts()["traces.open"] == 100
    assert world.told("process") == [("unknown", False)] * 50
    assert world.traces.observer_counts()["traces.forgotten"] == 100


def test_what_has_left_its_queue_is_forgotten() -> None:
    world = World()
    queued_, topical = world.publish(queued(), Message("topic://a", b"x"))
    for pending_list, stored in ((7, queued_), (8, topical), (9, topical)):
        world.deliver(stored, pending_list=pending_list)
    world.written(Acknowledge(7, (1,)), Acknowledge(8, (2,)))
    assert len(world.traces._waiting) == 1
    expired = Acknowledge(10, (2,), outcome=Outcome.EXPIRED)  # for a third subscriber
    world.written(expired)
    assert world.told("settle")[-1] == ("expired", True)


def test_names_of_clients_are_cut_and_temporary_ones_are_one() -> None:
    world = World()
    world.publish(
        Message("topic://" + "n" * 5000, b"x", client_id="c" * 5000),
        Message("queue://$temporary.1.2.3", b"x"),
    )
    long, temporary = world.kept.spans
    assert all(len(str(value)) <= 256 for value in (long.attributes or {}).values())
    assert len(long.name) < 300
    assert temporary.name == "send (temporary)"


def carried(mark: int, commit: SinkCommit | None = None) -> SinkProgress:
    """A sink whose table has rows up to *mark*."""
    health = SinkHealth(SinkState.RUNNING, mark, mark, target="/lake/t", last_commit=commit)
    return SinkProgress("lake", health, 0, lambda _: "/lake/t")


def test_a_row_in_a_table_is_a_span_below_settle() -> None:
    world = World()
    first, second = world.publish(queued(), queued())
    world.deliver(first, second)
    others = Acknowledge(99, (500, 501))  # of messages that nobody traces
    world.written(AddMessage(5, queued(), (LIST,)), others, Acknowledge(LIST, (1, 2)), rows=4)
    settled = [span for span in world.kept.spans if span.name == "settle a"]
    commit = SinkCommit(at=2 * 10**15, rows=3, version=7, after=0, through=3)
    world.traces.observe_carried([carried(3, commit)])
    (span,) = [span for span in world.kept.spans if span.name == "commit a"]
    attributes = span.attributes or {}
    assert span.parent == settled[0].context
    assert [link.context for link in span.links] == [settled[0].links[0].context]
    assert (span.start_time, span.end_time) == (settled[0].start_time, 2 * 10**18)
    assert attributes["tidegate.ack_seq"] == 3
    assert (attributes["tidegate.sink"], attributes["tidegate.table"]) == ("lake", "/lake/t")
    assert attributes["tidegate.table.version"] == 7
    assert attributes["messaging.operation.name"] == "commit"
    assert attributes["messaging.message.id"] == "1"
    assert world.traces.observer_counts()["traces.rows"] == 1
    world.traces.observe_carried([carried(4)])
    last = world.kept.spans[-1]
    assert (last.attributes or {})["tidegate.ack_seq"] == 4
    assert "tidegate.table.version" not in (last.attributes or {})
    assert world.traces.observer_counts()["traces.rows"] == 0


def test_a_dead_letter_with_a_row_has_the_row_of_what_it_was() -> None:
    world = World()
    (stored,) = world.publish(queued())
    world.deliver(stored)
    letter = queued(headers=(("dead-letter-reason", "why"),))
    row = Acknowledge(LIST, (1,), outcome=Outcome.DEAD_LETTERED)
    world.written(Move(LIST, 1, 8, 2, letter), Move(LIST, 1, 8, 2, letter, row), rows=1)
    assert world.traces.observer_counts()["traces.rows"] == 0  # the first of them has none
    (stored,) = world.publish(queued())
    world.deliver(stored)
    row = Acknowledge(LIST, (stored.sequence,), outcome=Outcome.DEAD_LETTERED)
    world.written(Move(LIST, stored.sequence, 8, 9, letter, row), rows=1)
    world.traces.observe_carried([carried(2)])
    assert [span.name for span in world.kept.spans if span.name.startswith("commit")] == [
        "commit a"
    ]


def test_without_a_sink_that_commits_no_row_is_waited_for() -> None:
    world = World()
    world.deliver(*world.publish(queued()))
    world.written(Acknowledge(LIST, (1,)))
    assert world.told("settle") == [("acknowledged", False)]
    assert world.traces.observer_counts()["traces.rows"] == 0


def test_what_may_not_be_stored_has_no_row_where_rows_are_missing() -> None:
    world = World()
    world.deliver(*world.publish(queued(), queued(persistent=False)))
    world.written(Acknowledge(LIST, (1, 2)), rows=1)
    assert world.traces.observer_counts()["traces.rows"] == 1
    world.deliver(*world.publish(queued(persistent=False)))
    world.written(Acknowledge(LIST, (3,)), rows=1)
    assert world.traces.observer_counts()["traces.rows"] == 2
    world.traces.observe_carried([carried(2)])
    found = [span.attributes or {} for span in world.kept.spans if span.name == "commit a"]
    assert [item["messaging.message.id"] for item in found] == ["1", "3"]


def test_rows_that_wait_have_a_limit_and_a_destination_of_some_length() -> None:
    world = World(rows_max=100, rate_max=1000)
    found = world.publish(*[queued()] * 150, Message("queue://" + "n" * 5000, b""))
    world.deliver(*found)
    world.written(Acknowledge(LIST, tuple(range(1, 152))), rows=151)
    counts = world.traces.observer_counts()
    assert (counts["traces.rows"], counts["traces.rows_forgotten"]) == (100, 50)


async def test_spans_of_rows_leave_room_for_those_that_cannot_wait() -> None:
    world = World(rate_max=1000)
    world.deliver(*world.publish(*[queued()] * 100))
    world.written(Acknowledge(LIST, tuple(range(1, 101))), rows=100)
    world.kept.room = 0
    world.traces.observe_carried([carried(100)])
    assert not world.told("commit")
    world.kept.room = 7
    while len(world.told("commit")) < 100:
        before = len(world.told("commit"))
        await asyncio.sleep(0.001)
        assert len(world.told("commit")) - before in (0, 2, 7)
    assert world.traces.observer_counts()["traces.rows"] == 0


async def test_a_gateway_counts_and_stops_without_a_collector() -> None:
    config = '[broker]\npersistent = false\n[[extensions]]\nplugin = "traces"\n'
    async with EmbeddedGateway(config + 'endpoint = "http://127.0.0.1:9/v1/traces"\n') as gateway:
        counts = gateway.gateway.broker.client_counts()
        assert counts["traces.waiting"] == counts["traces.dropped"] == 0
