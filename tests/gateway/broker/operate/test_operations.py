"""The operator's contract on a broker: what is seen, made and ended, and who may do what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker
from operated import ME, Guard, ask, bodies, consumed, filled
from turns import counting_turns
from virtual_loop import run

from tidegate.broker.operate import paging
from tidegate.broker.operate.operations import Operations
from tidegate.broker.tally import tally
from tidegate.broker.turn import walks
from tidegate.config import DestinationPolicy
from tidegate.spi import MESSAGE_OVERHEAD_BYTES, AccessError, Action, AuditKind, RequestError
from tidegate.spi.operate import (
    FEEDS_MAX,
    CopyMessages,
    CreateDestination,
    DeleteDestination,
    DestinationKind,
    DestinationSort,
    ListDestinations,
    MoveMessages,
    PauseDestination,
    PurgeDestination,
    ShowDestination,
    ShowOverview,
)

A, B = "queue://a", "queue://b"


# --- seeing -------------------------------------------------------------------------------------


def test_destinations_are_listed_in_pages_by_name_and_by_what_is_pending() -> None:
    async def main() -> None:
        async with Broker() as broker:
            for number in range(5):
                await filled(broker, number, f"queue://q{number}") if number else None
            client = await broker.client(client_id="c")
            client.subscribe("topic://t.>", durable_name="d")
            await broker.settle()
            page = await ask(broker, ListDestinations(limit=3))
            assert [row.destination for row in page.rows] == [f"queue://q{n}" for n in (1, 2, 3)]
            page = await ask(broker, ListDestinations(limit=3, after=page.next))
            assert [row.destination for row in page.rows] == ["queue://q4", "topic://t.>"]
            assert page.next == ""
            assert page.rows[1].kind is DestinationKind.TOPIC
            assert (page.rows[1].consumers, page.rows[1].subscriptions) == (1, 1)
            request = ListDestinations(match="queue://*", sort=DestinationSort.PENDING, limit=2)
            page = await ask(broker, request)
            assert [(row.destination, row.pending) for row in page.rows] == [
                ("queue://q4", 4),
                ("queue://q3", 3),
            ]
            page = await ask(
                broker, ListDestinations(sort=DestinationSort.PENDING, after=page.next, match=">")
            )
            assert [row.pending for row in page.rows] == [2, 1, 0]
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


def test_one_destination_is_shown_with_what_is_in_flight_its_oldest_message_and_its_policy() -> (
    None
):
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 5, received_at=77)
            client = await broker.client()
            client.subscribe(A, prefetch_count=2)
            await broker.settle()
            found = await ask(broker, ShowDestination(A))
            row = found.row
            assert (row.pending, row.in_flight, row.consumers) == (3, 2, 1)
            assert found.oldest_at == 77
            assert found.policy["match"] == ">"
            with pytest.raises(RequestError, match="no queue 'queue://none'"):
                await ask(broker, ShowDestination("queue://none"))

    run(main())


def test_a_list_of_many_is_made_in_slices_that_others_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "SLICE_S", -1.0)  # each step takes longer

    async def main() -> None:
        async with Broker() as broker:
            for number in range(1000):
                broker.core.destinations.queue_list(f"queue://q{number:04}")
            await broker.settle()
            async with counting_turns() as turns:
                answer = await Operations(broker.core).list_destinations(
                    ME, ListDestinations(sort=DestinationSort.CONSUMERS, limit=10)
                )
            assert len(answer.rows) == 10
            assert turns.count >= 1000 // walks.STEP_LISTS - 1

    run(main())


def test_between_two_slices_of_a_list_the_loop_has_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "SLICE_S", -1.0)
    monkeypatch.setattr(paging, "REST_S", 0.001)

    async def main() -> None:
        async with Broker() as broker:
            for number in range(1000):
                broker.core.destinations.queue_list(f"queue://q{number:04}")
            await broker.settle()
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await Operations(broker.core).list_destinations(ME, ListDestinations(limit=10))
            assert loop.time() - begin >= (1000 // walks.STEP_LISTS - 1) * paging.REST_S

    run(main())


def test_the_lists_of_one_topic_are_gone_over_in_slices_that_others_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "SLICE_S", -1.0)  # each step takes longer

    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            for number in range(300):
                client.subscribe("topic://t", f"s{number}")
            await broker.settle(looks=False)
            request = ListDestinations(sort=DestinationSort.CONSUMERS, with_totals=True)
            async with counting_turns() as turns:
                answer = await Operations(broker.core).list_destinations(ME, request)
            # Read, and shown.
            assert turns.count >= 300 // tally.READ_AT_ONCE + 300 - 1
            async with counting_turns() as turns:
                details = await ask(broker, ShowDestination("topic://t"))
            assert turns.count >= 300 - 1
            assert answer.rows == (details.row,)
            assert (details.row.consumers, details.row.subscriptions) == (300, 300)
            assert answer.totals is not None
            assert (answer.totals.destinations, answer.totals.consumers) == (1, 300)

    run(main())


# --- making and ending --------------------------------------------------------------------------


def test_a_queue_is_made_and_deleted_and_is_gone_after_a_restart() -> None:
    async def main() -> None:
        async with Broker() as broker:
            assert (await ask(broker, CreateDestination(A))).count == 1
            assert (await ask(broker, CreateDestination(A))).count == 0
            await broker.kill()
            assert A in broker.core.destinations.queues
            await ask(broker, DeleteDestination(A))
            assert A not in broker.core.destinations.queues
            await broker.kill()
            assert A not in broker.core.destinations.queues
            for bad in ("topic://t", "queue://a.>", "queue://", "a", "queue://$temporary.x"):
                with pytest.raises(RequestError):
                    await ask(broker, CreateDestination(bad))

    run(main())


def test_a_queue_with_messages_or_consumers_is_only_deleted_when_that_is_said() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            client = await broker.client()
            client.subscribe(A, prefetch_count=1)
            await broker.settle()
            with pytest.raises(RequestError, match="1 consumers"):
                await ask(broker, DeleteDestination(A, with_messages=True))
            with pytest.raises(RequestError, match="not empty"):
                await ask(broker, DeleteDestination(A, with_consumers=True))
            assert client.ended is None
            done = await ask(broker, DeleteDestination(A, with_messages=True, with_consumers=True))
            assert done.count == 3
            assert "deleted by an operator" in str(client.ended)
            assert broker.contents.destinations == {}
            assert broker.contents.lists == {}
            await filled(broker, 1)
            assert await consumed(broker, A) == bodies(0)

    run(main())


def test_what_a_transaction_holds_keeps_a_queue_from_being_empty() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 1)
            client = await broker.consumer(A)
            client.connection.begin("t")
            client.connection.acknowledge("s", client.sequences(), None, "t")
            client.connection.unsubscribe("s")
            await broker.settle()
            assert broker.queue("a").cursor.size == 0
            with pytest.raises(RequestError, match="not empty"):
                await ask(broker, DeleteDestination(A))
            await ask(broker, DeleteDestination(A, with_messages=True))
            client.connection.commit("t", "done")
            await broker.settle()
            assert client.confirmations == ["done"]

    run(main())


def test_who_consumes_through_a_filter_loses_the_queue_and_what_it_acknowledges_then_changes_nothing() -> (
    None
):
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 2)
            client = await broker.consumer("queue://>")
            assert client.bodies() == bodies(0, 1)
            await ask(broker, DeleteDestination(A, with_messages=True, with_consumers=True))
            assert client.ended is None
            client.ack_all(token="acked")
            await broker.settle()
            assert client.confirmations == ["acked"]
            await filled(broker, 1)
            assert client.bodies() == bodies(0, 1, 0)
            client.ack_all()
            await broker.settle()

    run(main())


# --- who may ------------------------------------------------------------------------------------


#: What changes nothing, and of which no auditor is told.
SEEING = (ShowOverview, ListDestinations, ShowDestination)


@pytest.mark.parametrize(
    ("request_", "action"),
    [
        (ShowOverview(), Action.ADMIN),
        (ListDestinations(), Action.ADMIN),
        (ShowDestination(A), Action.ADMIN),
        (PauseDestination(A), Action.ADMIN),
        (CreateDestination(B), Action.CREATE),
        (DeleteDestination(A), Action.DELETE),
        (PurgeDestination(A), Action.DELETE),
        (MoveMessages(A, B), Action.CONSUME),
        (CopyMessages(A, B), Action.BROWSE),
    ],
)
def test_each_request_needs_its_right_and_both_ends_are_audited(
    request_: Any, action: Action
) -> None:
    async def main() -> None:
        every = {Action.ADMIN, Action.CREATE, Action.DELETE, Action.CONSUME, Action.BROWSE}
        refusing = Guard(*(every - {action}))
        async with Broker(extensions=[refusing]) as broker:
            await filled(broker, 0)
            with pytest.raises(AccessError):
                await ask(broker, request_)
            (refused,) = [e for e in refusing.events if e.kind is AuditKind.REFUSED]
            assert (refused.identity, refused.action) == (ME, action)
        allowing = Guard(*every)
        async with Broker(extensions=[allowing]) as broker:
            client = await broker.client()
            client.send(A, "0")
            if not isinstance(request_, CreateDestination):
                client.send(B, "0")
            await broker.settle()
            if isinstance(request_, DeleteDestination):
                await ask(broker, PurgeDestination(A))
                allowing.events.clear()
            await ask(broker, request_)
            told = [e for e in allowing.events if e.kind is AuditKind.OPERATED]
            seeing = isinstance(request_, SEEING)
            assert [(e.identity, bool(e.detail)) for e in told] == ([] if seeing else [(ME, True)])

    run(main())


# ------------------------------------------------------------------------------- where from


async def test_a_queue_says_whether_it_is_fed_from_memory_or_pages_since_when_and_why() -> None:
    limit = 5 * (MESSAGE_OVERHEAD_BYTES + 10)
    async with Broker(DestinationPolicy(match=">", memory_limit=limit, page_count=3)) as broker:
        await filled(broker, 2)
        (feed,) = (await ask(broker, ShowDestination(A))).feeds
        assert (feed.subscription, feed.is_paging, feed.why, feed.turns) == ("", False, "start", 0)
        assert (feed.direct_messages, feed.direct_bytes > 2) == (2, True)
        broker.core.step_us += 1_000_000
        before = broker.core.now()
        await filled(broker, 20)
        (feed,) = (await ask(broker, ShowDestination(A))).feeds
        assert (feed.is_paging, feed.why) == (True, "limit")
        assert before <= feed.since <= broker.core.now()
        assert broker.core.destinations.feeds.paging == 1
        broker.core.step_us += 1_000_000
        later = broker.core.now()
        await broker.consumer(A)
        (feed,) = (await ask(broker, ShowDestination(A))).feeds
        assert (feed.is_paging, feed.why) == (False, "drained")
        assert later <= feed.since <= broker.core.now()
        assert feed.turns == 2
        assert feed.direct_messages + feed.paged_messages == 22
        assert feed.paged_messages > 0
        assert broker.core.destinations.feeds.paging == 0


async def test_of_a_topics_lists_those_that_page_come_first_and_not_all_are_shown() -> None:
    topic = "topic://t"
    async with Broker(DestinationPolicy(match=">", memory_limit=1, page_count=3)) as broker:
        for number in range(FEEDS_MAX + 5):
            client = await broker.client("stomp", f"c{number}")
            client.subscribe(topic, durable_name="s")
            if number:
                client.connection.disconnect(graceful=True)
            else:
                client.on_deliver = lambda key, _, client=client: client.ack_all(key)
            await broker.settle()
        await filled(broker, 4, topic)
        feeds = (await ask(broker, ShowDestination(topic))).feeds
        assert len(feeds) == FEEDS_MAX
        assert all(feed.is_paging for feed in feeds)
        assert "c0 s" not in [feed.subscription for feed in feeds]
        assert feeds[0].subscription == "c1 s"
        assert broker.core.destinations.feeds.paging == FEEDS_MAX + 4
