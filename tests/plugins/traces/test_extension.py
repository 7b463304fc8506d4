"""What the extension makes of what it is told: which spans, of whose, and what it remembers."""

from __future__ import annotations

from typing import Any

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
        self._sequence = 0

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
                given = Message(stored.message.destination, stored.message.body, wanted[at])
                found[at] = StoredMessage.of(stored.sequence, given)
                followed.append(found[at])
        if followed:
            self.traces.observe_published(followed, problem)
        return found

    def deliver(self, *messages: StoredMessage, pending_list: int = LIST) -> None:
        who = Identity("ann", frozenset(), "c", "127.0.0.1", "stomp")
        self.traces.observe_delivering(who, "s", messages, lambda _: pending_list)

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
    world.traces.observe_written([AddMessage(5, queued(), (LIST,)), operation])
    assert world.told("process") == [(outcome, is_error)]
    assert world.told("settle") == [(outcome, is_error)]
    assert world.traces.observer_counts()["traces.open"] == 0


def test_a_list_that_is_gone_takes_its_deliveries_with_it() -> None:
    world = World()
    world.deliver(*world.publish(queued(), queued()))
    world.traces.observe_written([RemoveDestination("queue://a", LIST)])
    assert world.told("process") == [("removed", False)] * 2


def test_the_same_number_in_another_list_is_another_delivery() -> None:
    world = World()
    (stored,) = world.publish(Message("topic://a", b"x"))
    world.deliver(stored, pending_list=8)
    world.deliver(stored, pending_list=9)
    world.traces.observe_written([Acknowledge(8, (stored.sequence,))])
    assert world.traces.observer_counts()["traces.open"] == 1
    assert world.told("settle") == [("acknowledged", False)]


def test_one_that_came_back_and_is_out_again_before_that_is_written() -> None:
    world = World()
    (stored,) = world.publish(queued())
    world.deliver(stored)
    world.deliver(StoredMessage(stored.sequence, stored.message, stored.size, 1))
    world.traces.observe_written([RecordDelivery(LIST, (stored.sequence,), (1,))])
    assert world.told("process") == [("returned", True)]
    assert world.traces.observer_counts()["traces.open"] == 1
    world.traces.observe_written([RecordDelivery(LIST, (stored.sequence,), (2,))])
    assert world.told("process") == [("returned", True)] * 2


def test_a_delivery_is_known_by_its_headers_alone() -> None:
    before, after = World(service_name="s"), World(service_name="s")
    (stored,) = before.publish(queued())
    after.deliver(stored)
    after.traces.observe_written([Acknowledge(LIST, (stored.sequence,))])
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
    world.traces.observe_written([Acknowledge(7, (1,)), Acknowledge(8, (2,))])
    assert len(world.traces._waiting) == 1
    expired = Acknowledge(10, (2,), outcome=Outcome.EXPIRED)  # for a third subscriber
    world.traces.observe_written([expired])
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


async def test_a_gateway_counts_and_stops_without_a_collector() -> None:
    config = '[broker]\npersistent = false\n[[extensions]]\nplugin = "traces"\n'
    async with EmbeddedGateway(config + 'endpoint = "http://127.0.0.1:9/v1/traces"\n') as gateway:
        counts = gateway.gateway.broker.client_counts()
        assert counts["traces.waiting"] == counts["traces.dropped"] == 0
