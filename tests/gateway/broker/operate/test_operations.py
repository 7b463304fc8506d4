"""The operator's contract on a broker: what is seen, done, refused, and what a crash leaves of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, run
from operated import ME, Guard, ask, bodies, filled
from turns import counting_turns

from tidegate.broker.operate import paging
from tidegate.broker.operate.messages.over_messages import PAGE_COUNT
from tidegate.broker.operate.operations import Operations
from tidegate.broker.turn import walks
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    AccessError,
    Action,
    AuditKind,
    Discard,
    DiscardReason,
    FlowControlError,
    Move,
    RequestError,
    StoreFullError,
)
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
    ResumeDestination,
    ShowDestination,
    ShowOverview,
    Side,
    perform,
)

A, B = "queue://a", "queue://b"


async def consumed(broker: Broker, destination: str) -> list[bytes]:
    """What a consumer gets, which acknowledges."""
    client = await broker.client()
    client.acknowledge_at_once()
    client.subscribe(destination, prefetch_count=10)
    await broker.settle()
    found = client.bodies()
    client.connection.disconnect(graceful=True)
    await broker.settle()
    return found


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
            await broker.settle()
            request = ListDestinations(sort=DestinationSort.CONSUMERS, with_totals=True)
            async with counting_turns() as turns:
                answer = await Operations(broker.core).list_destinations(ME, request)
            # Grouped, counted, and shown.
            assert turns.count >= 2 * (300 // walks.STEP_LISTS) + 300 - 1
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
            client = await broker.client()
            client.subscribe(A)
            await broker.settle()
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
            client = await broker.client()
            client.subscribe("queue://>")
            await broker.settle()
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


# --- pausing ------------------------------------------------------------------------------------


def test_paused_producers_are_refused_and_everything_else_goes_on() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 1)
            client = await broker.client()
            await ask(broker, PauseDestination(A, (Side.PRODUCERS,)))
            assert (await ask(broker, ShowDestination(A))).row.producers_paused
            with pytest.raises(FlowControlError, match="paused its producers"):
                client.send(A, "1")
            with pytest.raises(FlowControlError):
                client.connection.check_publish(A)
            client.connection.begin("t")
            with pytest.raises(FlowControlError):
                client.send(A, "1", transaction="t")
            client.send(B, "1", transaction="t")
            client.connection.commit("t", "committed")
            await broker.settle()
            assert client.confirmations == ["committed"]
            assert await consumed(broker, A) == bodies(0)
            await ask(broker, ResumeDestination(A))
            client.send(A, "1")
            await broker.settle()
            assert broker.store.pending(A) == [b"1"]
            assert not broker.core.publisher.detours

    run(main())


def test_a_commit_to_a_paused_queue_is_refused_and_can_be_made_when_it_is_resumed() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            client = await broker.client()
            client.connection.begin("t")
            client.send(A, "0", transaction="t")
            await ask(broker, PauseDestination(A, (Side.PRODUCERS,)))
            with pytest.raises(FlowControlError):
                client.connection.commit("t")
            await ask(broker, ResumeDestination(A))
            client.connection.commit("t")
            await broker.settle()
            assert broker.store.pending(A) == bodies(0)

    run(main())


def test_a_topic_takes_nothing_while_its_producers_are_paused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            await ask(broker, PauseDestination("topic://t", (Side.PRODUCERS,)))
            with pytest.raises(FlowControlError):
                client.send("topic://t", "0")
            page = await ask(broker, ListDestinations())
            assert [row.destination for row in page.rows] == ["topic://t"]
            await ask(broker, ResumeDestination("topic://t", (Side.PRODUCERS,)))
            client.send("topic://t", "0")
            for bad in ("topic://t.>", "topic://$SYS.x", "t"):
                with pytest.raises(RequestError):
                    await ask(broker, PauseDestination(bad, (Side.PRODUCERS,)))
            with pytest.raises(RequestError, match="queues only"):
                await ask(broker, PauseDestination("topic://t"))

    run(main())


@pytest.mark.parametrize("side", Side)
def test_a_queue_is_paused_after_a_restart_until_it_is_resumed_and_stays_its_owners(
    side: Side,
) -> None:
    async def main() -> None:
        async with Broker() as broker:
            maker = await broker.client()
            maker.send(A, "0")
            await broker.settle()
            await ask(broker, PauseDestination(A, (side,)))
            for _ in range(2):
                await broker.kill()
                row = (await ask(broker, ShowDestination(A))).row
                assert row.producers_paused is (side is Side.PRODUCERS)
                assert row.consumers_paused is (side is Side.CONSUMERS)
                client = await broker.client()
                if row.producers_paused:
                    with pytest.raises(FlowControlError, match="paused its producers"):
                        client.send(A, "1")
                client.subscribe(A)
                await broker.settle()
                assert client.bodies() == ([] if row.consumers_paused else bodies(0))
            await ask(broker, ResumeDestination(A, (side,)))
            client.ack_all()
            await broker.settle()
            await broker.kill()
            row = (await ask(broker, ShowDestination(A))).row
            assert (row.producers_paused, row.consumers_paused, row.pending) == (False, False, 0)
            assert not broker.core.publisher.detours
            assert broker.contents.destinations[A].owner == "anonymous"

    run(main())


def test_a_paused_topic_is_in_the_store_as_long_as_it_is_paused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, PauseDestination("topic://t", (Side.PRODUCERS,)))
            await broker.kill()
            client = await broker.client()
            with pytest.raises(FlowControlError):
                client.send("topic://t", "0")
            await ask(broker, ResumeDestination("topic://t", (Side.PRODUCERS,)))
            assert broker.contents.destinations == {}
            await broker.kill()
            client = await broker.client()
            client.send("topic://t", "0")
            await broker.settle()

    run(main())


def test_a_queue_that_is_made_anew_is_not_paused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            await ask(broker, PauseDestination(A))
            await ask(broker, DeleteDestination(A))
            await ask(broker, CreateDestination(A))
            for _ in range(2):
                row = (await ask(broker, ShowDestination(A))).row
                assert (row.producers_paused, row.consumers_paused) == (False, False)
                await broker.kill()

    run(main())


def test_a_pause_begins_while_the_store_has_no_room_and_is_stored_when_it_has() -> None:
    """Or what fills the disk could not be stopped."""

    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            broker.store.refuse(100)
            asking = asyncio.ensure_future(
                Operations(broker.core).pause_destination(
                    ME, PauseDestination(A, (Side.PRODUCERS,))
                )
            )
            await asyncio.sleep(0)
            client = await broker.client()
            with pytest.raises(FlowControlError, match="paused its producers"):
                client.send(A, "1")
            assert "stored when it has" in (await asking).note
            broker.store.refuse(0)
            await broker.settle()
            await broker.kill()
            assert (await ask(broker, ShowDestination(A))).row.producers_paused

    run(main())


@pytest.mark.parametrize("selector", ["", "n >= 0"])
def test_paused_consumers_get_nothing_and_keep_what_they_have(selector: str) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            client = await broker.client()
            client.subscribe(A, prefetch_count=2, selector=selector)
            await broker.settle()
            await ask(broker, PauseDestination(A, (Side.CONSUMERS,)))
            client.ack_all()
            await filled(broker, 2)
            assert client.bodies() == bodies(0, 1)
            second = await broker.client()
            second.subscribe(A, selector=selector)
            await broker.settle()
            assert second.bodies() == []
            await ask(broker, ResumeDestination(A, (Side.CONSUMERS,)))
            for _ in range(3):
                client.ack_all()
                await broker.settle()
            assert sorted(client.bodies() + second.bodies()) == sorted(bodies(0, 1, 2, 0, 1))
            second.ack_all()
            await broker.settle()

    run(main())


# --- messages -----------------------------------------------------------------------------------


def test_purge_leaves_what_is_in_flight_and_what_comes_later() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 2 * PAGE_COUNT + 10)
            client = await broker.client()
            client.subscribe(A, prefetch_count=5)
            await broker.settle()
            done = await ask(broker, PurgeDestination(A))
            assert (done.count, done.is_complete) == (2 * PAGE_COUNT + 5, True)
            assert broker.store.pending(A) == bodies(0, 1, 2, 3, 4)
            discards = broker.store.operations(Discard)
            assert {item.reason for item in discards} == {DiscardReason.PURGED}
            client.ack_all()
            await filled(broker, 1)
            assert client.bodies() == bodies(0, 1, 2, 3, 4, 0)
            client.ack_all()
            await broker.settle()

    run(main())


@pytest.mark.parametrize("cursor", ["store", "vm", "file"])
def test_purge_with_a_selector_and_a_number_takes_just_those(cursor: str) -> None:
    async def main() -> None:
        # So little memory that most of it is only in the store, or spooled.
        policy = DestinationPolicy(
            ">", cursor=cursor, memory_limit=2000 if cursor != "vm" else 1 << 20
        )
        async with Broker(policy) as broker:
            await filled(broker, 30)
            done = await ask(broker, PurgeDestination(A, "n >= 10", count_max=15))
            assert done.count == 15
            done = await ask(broker, PurgeDestination(A, "n = 3 or n = 26 or n = 12"))
            assert done.count == 2
            kept = [n for n in range(30) if (n < 10 or n >= 25) and n not in (3, 26)]
            assert broker.store.pending(A) == bodies(*kept)
            assert broker.queue("a").cursor.size == len(kept)
            assert await consumed(broker, A) == bodies(*kept)

    run(main())


@pytest.mark.parametrize("cursor", ["store", "vm", "file"])
def test_move_keeps_headers_and_order_and_no_message_is_in_two_queues(cursor: str) -> None:
    async def main() -> None:
        policy = DestinationPolicy(
            ">", cursor=cursor, memory_limit=2000 if cursor != "vm" else 1 << 20
        )
        async with Broker(policy) as broker:
            await filled(broker, 20)
            await ask(broker, CreateDestination(B))
            done = await ask(broker, MoveMessages(A, B, "n < 15", count_max=10))
            assert (done.count, done.is_complete) == (10, True)
            assert broker.store.pending(A) == bodies(*range(10, 20))
            assert broker.store.pending(B) == bodies(*range(10))
            moved = broker.store.operations(Move)
            assert [dict(item.message.headers)["n"] for item in moved[:2]] == ["0", "1"]
            assert moved[0].message.destination == B
            assert await consumed(broker, B) == bodies(*range(10))
            assert await consumed(broker, A) == bodies(*range(10, 20))

    run(main())


def test_moved_messages_are_delivered_to_a_consumer_that_waits_with_new_sequences() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            client = await broker.client()
            client.subscribe(B)
            await ask(broker, MoveMessages(A, B))
            assert client.bodies() == bodies(0, 1, 2)
            assert client.counts() == [0, 0, 0]
            assert client.sequences() == sorted(client.sequences())
            client.ack_all()
            await broker.settle()
            assert broker.store.pending(B) == []

    run(main())


def test_copies_stay_in_both_queues() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 4)
            await ask(broker, CreateDestination(B))
            assert (await ask(broker, CopyMessages(A, B, "n <> 2"))).count == 3
            assert await consumed(broker, A) == bodies(0, 1, 2, 3)
            assert await consumed(broker, B) == bodies(0, 1, 3)

    run(main())


def test_a_move_into_a_store_without_room_leaves_everything_where_it_is() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            await ask(broker, CreateDestination(B))
            broker.store.refuse(1)
            with pytest.raises(StoreFullError):
                await ask(broker, MoveMessages(A, B))
            assert broker.store.pending(A) == bodies(0, 1, 2)
            assert broker.store.pending(B) == []
            assert await consumed(broker, A) == bodies(0, 1, 2)

    run(main())


def test_a_page_that_is_older_than_what_it_shows_gives_nothing_twice() -> None:
    """A message that a consumer with a selector has had and acknowledged while the page was read."""

    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            await ask(broker, CreateDestination(B))
            client = await broker.client()
            client.subscribe(A, selector="n = 2")
            await broker.settle()
            assert client.bodies() == bodies(2)
            inner, read = broker.store.page_in, asyncio.Event()

            async def slow(*arguments: Any) -> Any:
                page = await inner(*arguments)
                if not read.is_set():
                    read.set()
                    client.ack_all()
                    for _ in range(20):
                        await asyncio.sleep(0)
                return page

            broker.store.page_in = slow  # type: ignore[method-assign]  # slow for once
            assert (await ask(broker, MoveMessages(A, B))).count == 2
            assert broker.store.pending(B) == bodies(0, 1)
            assert broker.queue("a").cursor.size == 0

    run(main())


def test_a_consumer_with_a_selector_is_not_given_what_was_purged_after_it_was_found() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 6)
            client = await broker.client()
            client.subscribe(A, selector="n >= 0", prefetch_count=2)
            await broker.settle()
            assert (await ask(broker, PurgeDestination(A, "n = 3"))).count == 1
            for _ in range(4):
                client.ack_all()
                await broker.settle()
            assert client.bodies() == bodies(0, 1, 2, 4, 5)

    run(main())


def test_a_limited_queue_counts_what_is_purged_and_moved_and_takes_no_more_than_it_may() -> None:
    async def main() -> None:
        policies = (
            DestinationPolicy("queue://a", bytes_max=1 << 20),
            DestinationPolicy("queue://b", messages_max=300),
        )
        async with Broker(*policies) as broker:
            await filled(broker, 500)
            row = (await ask(broker, ShowDestination(A))).row
            assert row.body_bytes == sum(len(str(number)) for number in range(500))
            await ask(broker, CreateDestination(B))
            done = await ask(broker, MoveMessages(A, B))
            assert (done.count, done.is_complete) == (300, False)
            with pytest.raises(FlowControlError, match="is full"):
                await ask(broker, MoveMessages(A, B, after=done.after, through=done.through))
            assert broker.store.pending(B) == bodies(*range(300))
            assert broker.store.pending(A) == bodies(*range(300, 500))
            assert (await ask(broker, PurgeDestination(A, count_max=199))).count == 199
            row = (await ask(broker, ShowDestination(A))).row
            assert (row.pending, row.body_bytes) == (1, 3)

    run(main())


@pytest.mark.parametrize("limit", [{"messages_max": 5}, {"bytes_max": 5}])
@pytest.mark.parametrize("request_type", [MoveMessages, CopyMessages])
def test_what_is_moved_or_copied_drops_nothing_from_a_queue_at_its_limit(
    limit: dict[str, Any], request_type: type[MoveMessages | CopyMessages]
) -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(B, overflow="drop_oldest", **limit)) as broker:
            await filled(broker, 8)
            client = await broker.client()
            client.send(B, "x")
            client.send(B, "y")
            client.subscribe(B, prefetch_count=1)  # what is in flight is in the queue, too
            await broker.settle()
            done = await ask(broker, request_type(A, B))
            assert (done.count, done.is_complete) == (3, False)
            with pytest.raises(FlowControlError, match="is full"):
                await ask(broker, request_type(A, B, after=done.after, through=done.through))
            assert broker.store.pending(B) == [b"x", b"y", *bodies(*range(3))]
            moved = 3 if request_type is MoveMessages else 0
            assert broker.store.pending(A) == bodies(*range(moved, 8))
            assert broker.core.flow.dropped == 0

    run(main())


def test_a_publish_beside_a_move_sees_what_the_move_takes_of_the_limit() -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(B, messages_max=5, overflow="refuse")) as broker:
            await filled(broker, 5)
            client = await broker.client()
            client.send(B, "x")
            await broker.settle()
            broker.store.hold()
            move = asyncio.create_task(
                perform(Operations(broker.core), ME, MoveMessages(A, B, count_max=4))
            )
            for _ in range(50):
                await asyncio.sleep(0)
            client.send(A, "y")  # whatever is to be durable
            broker.store.release()
            while not broker.core.writer.is_adding(broker.queue("b")):
                await asyncio.sleep(0)
            with pytest.raises(FlowControlError):
                client.send(B, "z")
            await move
            await broker.settle()
            assert broker.store.pending(B) == [b"x", *bodies(*range(4))]

    run(main())


def test_a_queue_whose_producers_wait_for_its_limit_is_shown_as_full() -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(A, messages_max=3, overflow="slow")) as broker:
            await filled(broker, 2)
            assert not (await ask(broker, ShowDestination(A))).row.is_full
            await filled(broker, 1)
            assert (await ask(broker, ShowDestination(A))).row.is_full
            await ask(broker, PurgeDestination(A))
            assert not (await ask(broker, ShowDestination(A))).row.is_full

    run(main())


def test_two_operations_on_one_queue_do_not_mix() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            operations = Operations(broker.core)
            first = asyncio.create_task(operations.purge_destination(ME, PurgeDestination(A)))
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="another operation"):
                await operations.purge_destination(ME, PurgeDestination(A))
            assert (await first).count == 3
            assert (await ask(broker, PurgeDestination(A))).count == 0

    run(main())


@pytest.mark.parametrize(
    ("move", "problem"),
    [
        (MoveMessages(A, A), "the same queue"),
        (MoveMessages(A, "queue://none"), "there is no queue"),
        (MoveMessages("queue://none", A), "there is no queue"),
        (MoveMessages(A, "topic://t"), "is no queue"),
        (MoveMessages(A, B, "n = "), "selector"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(move: MoveMessages, problem: str) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 1)
            await ask(broker, CreateDestination(B))
            with pytest.raises(RequestError, match=problem):
                await ask(broker, move)
            assert broker.store.pending(A) == bodies(0)

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
        client = await broker.client()
        client.subscribe(A)
        await broker.settle()
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
