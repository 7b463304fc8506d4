"""Messages that operators look at, publish and take back from dead-letter queues."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import CURSORS, Broker
from operated import ME, ask, bodies, filled
from virtual_loop import run

from tidegate.broker.operate.changing import change
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    AccessError,
    Action,
    AddMessage,
    AuditEvent,
    AuditKind,
    FlowControlError,
    Identity,
    RequestError,
    StoreFullError,
    Verdict,
)
from tidegate.spi.operate import (
    BrowseMessages,
    CountDeadLetters,
    CreateDestination,
    ListDestinations,
    PauseDestination,
    PublishMessage,
    RetryMessages,
)

A, B, DEAD = "queue://a", "queue://b", "queue://DLQ.shared"
LOOKS = (BrowseMessages, CountDeadLetters)


# --- looking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 5, 1000])
def test_every_message_is_on_one_page_in_its_order_and_stays(limit: int) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 10)
            seen: list[bytes] = []
            after = 0
            while True:
                page = await ask(broker, BrowseMessages(A, after=after, limit=limit))
                assert 0 < len(page.rows) <= limit
                seen += [row.body for row in page.rows]
                if not page.next:
                    break
                assert page.next > after
                after = page.next
            assert seen == broker.store.pending(A) == bodies(*range(10))

    run(main())


def test_a_row_says_all_of_a_message_and_the_beginning_of_its_body() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client(client_id="c")
            client.send(
                *(A, b"\xff" * 5000),
                headers=(("k", "1"), ("k", "2")),
                received_at=77,
                priority=7,
                content_type="text/x",
                correlation_data=b"\0",
                reply_to=B,
                protocol="stomp",
                client_id="c",
            )
            client.subscribe(A)
            await broker.settle()
            (row,) = (await ask(broker, BrowseMessages(A, body_bytes=10))).rows
            assert (row.body, row.size, row.problem) == (b"\xff" * 10, 5000, "")
            assert (row.headers, row.received_at, row.priority) == ((("k", "1"), ("k", "2")), 77, 7)
            assert (row.content_type, row.correlation_data, row.reply_to) == ("text/x", b"\0", B)
            assert (row.protocol, row.client_id, row.is_in_flight) == ("stomp", "c", True)
            client.connection.disconnect(graceful=True)
            await broker.settle()
            (row,) = (await ask(broker, BrowseMessages(A, body_bytes=0))).rows
            assert (row.body, row.is_in_flight, row.delivery_count) == (b"", False, 1)

    run(main())


def test_a_selector_chooses_what_is_shown_and_what_has_expired_is_not() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 300)
            page = await ask(broker, BrowseMessages(A, "n IN ('7', '250', '299')", limit=2))
            assert [row.body for row in page.rows] == bodies(7, 250)
            page = await ask(
                broker, BrowseMessages(A, "n IN ('7', '250', '299')", after=page.next, limit=2)
            )
            assert ([row.body for row in page.rows], page.next) == (bodies(299), 0)
            with pytest.raises(RequestError, match="selector"):
                await ask(broker, BrowseMessages(A, "n = "))
            with pytest.raises(RequestError, match="there is no queue"):
                await ask(broker, BrowseMessages(B))
            with pytest.raises(RequestError, match="is not a queue"):
                await ask(broker, BrowseMessages("topic://t"))
            await filled(broker, 1, B, expires_at=1)
            assert (await ask(broker, BrowseMessages(B))).rows == ()

    run(main())


def test_a_page_of_large_bodies_ends_early() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            for _ in range(5):
                client.send(A, b"x" * (600 << 10))
            await broker.settle()
            page = await ask(broker, BrowseMessages(A, body_bytes=1 << 20))
            assert len(page.rows) == 2
            page = await ask(broker, BrowseMessages(A, body_bytes=1 << 20, after=page.next))
            assert len(page.rows) == 2
            assert len((await ask(broker, BrowseMessages(A))).rows) == 5  # of their beginnings
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


# --- publishing ----------------------------------------------------------------------------------


def test_a_message_is_published_durably_to_queues_and_topics() -> None:
    async def main() -> None:
        async with Broker() as broker:
            request = PublishMessage(A, b"hello", (("k", "v"),), "text/plain", 7, True, 0, b"id", B)
            assert (await ask(broker, request)).count == 1
            (row,) = (await ask(broker, BrowseMessages(A))).rows
            assert (row.body, row.headers, row.priority) == (b"hello", (("k", "v"),), 7)
            assert (row.content_type, row.correlation_data, row.reply_to) == (
                "text/plain",
                b"id",
                B,
            )
            assert (row.protocol, row.client_id, row.expires_at) == ("operator", "", 0)
            client = await broker.consumer("topic://t")
            await ask(broker, PublishMessage("topic://t", b"x"))
            assert client.bodies() == [b"x"]
            client.connection.disconnect(graceful=True)
            await broker.settle()
            await broker.kill()
            assert broker.store.pending(A) == [b"hello"]

    run(main())


def test_what_stands_in_the_way_of_a_publish_is_said_and_nothing_has_happened() -> None:
    async def main() -> None:
        policies = [DestinationPolicy(match="queue://full", messages_max=1)]
        async with Broker(*policies) as broker:
            await ask(broker, PublishMessage("queue://full", b"0"))
            with pytest.raises(FlowControlError, match="full"):
                await ask(broker, PublishMessage("queue://full", b"1"))
            await ask(broker, CreateDestination(A))
            await ask(broker, PauseDestination(A))
            with pytest.raises(FlowControlError, match="paused"):
                await ask(broker, PublishMessage(A, b"0"))
            for destination in ("a", "queue://a.*", "queue://"):
                with pytest.raises(RequestError):
                    await ask(broker, PublishMessage(destination))
            with pytest.raises(AccessError):
                await ask(broker, PublishMessage("topic://$SYS.x"))
            broker.store.refuse(1, AddMessage)
            with pytest.raises(StoreFullError):
                await ask(broker, PublishMessage(B, b"0"))
            assert broker.store.pending(A) == []
            assert broker.store.pending("queue://full") == [b"0"]

    run(main())


# --- dead letters --------------------------------------------------------------------------------


POLICIES = [DestinationPolicy(match=">", max_deliveries=1, dead_letter="DLQ.shared")]


async def dead(broker: Broker, *destinations: str) -> None:
    """One dead letter of each, with the number as its body; topics by a durable subscription."""
    for number, destination in enumerate(destinations):
        client = await broker.client(client_id="c")
        if destination.startswith("topic://"):
            client.subscribe(destination, durable_name="d")
            await broker.settle()
        client.send(destination, str(number), headers=(("n", str(number)),))
        if not destination.startswith("topic://"):
            client.subscribe(destination)
        await broker.settle()
        client.connection.reject("s", client.sequences())
        await broker.settle()
        client.connection.disconnect(graceful=True)
        await broker.settle()


def test_dead_letters_go_back_to_where_they_come_from_as_they_were() -> None:
    async def main() -> None:
        async with Broker(*POLICIES) as broker:
            await dead(broker, A, A, B, "topic://t", A)
            assert broker.store.pending(DEAD) == bodies(0, 1, 2, 3, 4)
            found = await ask(broker, RetryMessages(DEAD))
            assert (found.count, found.is_complete) == (4, True)
            assert found.note.startswith("1 messages did not come from a queue")
            assert broker.store.pending(A) == bodies(0, 1, 4)
            assert broker.store.pending(B) == bodies(2)
            assert broker.store.pending(DEAD) == bodies(3)
            row = (await ask(broker, BrowseMessages(A))).rows[0]
            assert (row.headers, row.delivery_count) == ((("n", "0"),), 0)
            await broker.kill()
            assert broker.store.pending(A) == bodies(0, 1, 4)

    run(main())


def test_some_dead_letters_go_back_by_selector_by_number_and_by_sequence() -> None:
    async def main() -> None:
        async with Broker(*POLICIES) as broker:
            await dead(broker, A, B, A, A, A)
            assert (await ask(broker, RetryMessages(DEAD, "n = '3'"))).count == 1
            assert broker.store.pending(A) == bodies(3)
            assert (await ask(broker, RetryMessages(DEAD, count_max=2))).count == 2
            assert broker.store.pending(B) == bodies(1)
            assert broker.store.pending(DEAD) == bodies(2, 4)
            last = (await ask(broker, BrowseMessages(DEAD))).rows[1].sequence
            found = await ask(broker, RetryMessages(DEAD, after=last - 1, through=last))
            assert (found.count, found.is_complete) == (1, True)
            assert broker.store.pending(DEAD) == bodies(2)
            assert broker.store.pending(A) == bodies(3, 0, 4)

    run(main())


def test_a_dead_letter_whose_queue_is_gone_or_full_stays_and_those_before_it_went() -> None:
    async def main() -> None:
        limited = DestinationPolicy(
            match="queue://b", max_deliveries=1, dead_letter="DLQ.shared", messages_max=1
        )
        async with Broker(*POLICIES, limited) as broker:
            await dead(broker, A, B, B, A)
            found = await ask(broker, RetryMessages(DEAD))
            assert (found.count, found.is_complete) == (2, False)
            assert broker.store.pending(DEAD) == bodies(2, 3)
            with pytest.raises(FlowControlError, match="full"):
                await ask(broker, RetryMessages(DEAD, after=found.after, through=found.through))
            await filled(broker, 1, DEAD)  # says itself that it comes from nowhere
            forged = PublishMessage(DEAD, b"f", (("original-destination", "queue://gone"),))
            await ask(broker, forged)
            itself = PublishMessage(DEAD, b"f", (("original-destination", DEAD),))
            await ask(broker, itself)
            with pytest.raises(RequestError, match="there is no queue 'queue://gone'"):
                await ask(broker, RetryMessages(DEAD, "\"original-destination\" LIKE '%gone'"))
            with pytest.raises(RequestError, match="names this same queue as its origin"):
                await ask(broker, RetryMessages(DEAD, "\"original-destination\" LIKE '%DLQ%'"))
            assert len(broker.store.pending(DEAD)) == 5

    run(main())


def test_queues_of_dead_letters_are_found_by_the_policies() -> None:
    async def main() -> None:
        policies = [
            DestinationPolicy(match="queue://x", dead_letter="dead.{name}.end"),
            DestinationPolicy(match="queue://y", dead_letter="all"),
        ]
        async with Broker(*policies) as broker:
            made = ("DLQ.a", "DLQ.", "DLQ", "dead.x.end", "dead.x", "all", "all.not", "Orders.EU")
            for name in made:
                if name != "DLQ.":
                    await ask(broker, CreateDestination(f"queue://{name}"))
            client = await broker.consumer("topic://DLQ.a")
            page = await ask(broker, ListDestinations(dead_letters=True))
            assert [row.destination for row in page.rows] == [
                "queue://DLQ.a",
                "queue://all",
                "queue://dead.x.end",
            ]
            # As a reload does.
            changed = [DestinationPolicy(match="queue://x", dead_letter="Orders.EU")]
            change(broker.core, broker.core.config, [], changed, CURSORS)
            page = await ask(broker, ListDestinations(dead_letters=True))
            assert [row.destination for row in page.rows] == ["queue://DLQ.a", "queue://Orders.EU"]
            page = await ask(broker, ListDestinations(contains="S.eU"))
            assert [row.destination for row in page.rows] == ["queue://Orders.EU"]
            page = await ask(broker, ListDestinations(contains="dlq", match="topic://>"))
            assert [row.destination for row in page.rows] == ["topic://DLQ.a"]
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


# --- who may -------------------------------------------------------------------------------------


class Guard:
    """Refuses operators what it is told, and hears of everything."""

    def __init__(self, *refused: tuple[Action, str]) -> None:
        self.refused = refused
        self.events: list[AuditEvent] = []

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        is_refused = identity.protocol == "operator" and (action, destination) in self.refused
        return Verdict.DENY if is_refused else Verdict.ALLOW

    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (BrowseMessages(DEAD), (Action.ADMIN, "")),
        (BrowseMessages(DEAD), (Action.BROWSE, DEAD)),
        (CountDeadLetters(DEAD), (Action.ADMIN, "")),
        (CountDeadLetters(DEAD), (Action.BROWSE, DEAD)),
        (PublishMessage(A), (Action.ADMIN, "")),
        (PublishMessage(A), (Action.PUBLISH, A)),
        (PublishMessage("queue://new"), (Action.CREATE, "queue://new")),
        (RetryMessages(DEAD), (Action.ADMIN, "")),
        (RetryMessages(DEAD), (Action.CONSUME, DEAD)),
        (RetryMessages(DEAD), (Action.PUBLISH, A)),
    ],
)
def test_each_request_needs_its_rights_and_auditors_hear_of_what_changes_something(
    request_: Any, refused: tuple[Action, str]
) -> None:
    async def main() -> None:
        guard = Guard(refused)
        async with Broker(*POLICIES, extensions=[guard]) as broker:
            await dead(broker, A)
            guard.events.clear()
            with pytest.raises(AccessError):
                await ask(broker, request_)
            (told,) = [event for event in guard.events if event.kind is AuditKind.REFUSED]
            assert (told.identity, told.action) == (ME, refused[0])
            assert broker.store.pending(DEAD) == bodies(0)
            guard.refused = ()
            guard.events.clear()
            await ask(broker, request_)
            told_of = [event for event in guard.events if event.kind is AuditKind.OPERATED]
            assert len(told_of) == (0 if isinstance(request_, LOOKS) else 1)

    run(main())
