"""Long walks take turns with everybody else, and look again at what changed between their steps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.turn import flow, walks
from tidegate.broker.turn.walks import STEP_LISTS, Walks
from tidegate.spi import RemoveSubscription, StoredMessage

QUEUES = 3 * STEP_LISTS + 5


@pytest.fixture
def one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds that the slice is over."""
    now = itertools.count()
    for module in (walks, flow):
        monkeypatch.setattr(module, "perf_counter", lambda: next(now))


def walk(log: list[str], name: str, steps: int) -> Iterator[None]:
    for _ in range(steps):
        log.append(name)
        yield


@pytest.mark.usefixtures("one_step_a_slice")
async def test_walks_take_turns_one_step_of_one_of_them_in_a_turn() -> None:
    log: list[str] = []
    some = Walks()
    some.begin(walk(log, "a", 3))
    some.begin(walk(log, "b", 3))
    assert log == ["a", "b"]
    for wanted in ("a", "b", "a", "b"):
        await asyncio.sleep(0)
        assert log[-1] == wanted
    assert len(log) == 6


async def test_what_is_soon_done_is_done_at_once() -> None:
    log: list[str] = []
    Walks().begin(walk(log, "a", 1))
    assert log == ["a"]


@pytest.mark.usefixtures("one_step_a_slice")
async def test_a_walk_that_fails_stops_no_other(logged_errors: list[str]) -> None:
    logged_errors.append("a walk over many lists failed")

    def fails() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    log: list[str] = []
    some = Walks()
    some.begin(fails())
    some.begin(walk(log, "b", 3))
    for _ in range(9):
        await asyncio.sleep(0)
    assert log == ["b"] * 3


@pytest.mark.usefixtures("one_step_a_slice")
async def test_a_stop_finishes_what_is_under_way() -> None:
    log: list[str] = []
    some = Walks()
    some.begin(walk(log, "a", 5))
    some.finish()
    assert log == ["a"] * 5


async def test_a_walk_waits_for_a_large_turn_and_a_stop_does_not() -> None:
    log: list[str] = []

    def waits() -> Iterator[bool]:
        for _ in range(3):
            log.append("a")
            yield True

    some = Walks()
    some.begin(waits())
    for count in (1, 2):
        for _ in range(9):
            await asyncio.sleep(0)
        assert len(log) == count
        some.turn_written()
    some.finish()
    assert log == ["a"] * 3


@pytest.mark.usefixtures("one_step_a_slice")
async def test_a_wildcard_over_many_queues_is_made_and_ended_bit_by_bit() -> None:
    async with Broker() as broker:
        producer, consumer = await broker.client(), await broker.client()
        for number in range(QUEUES):
            producer.send(f"queue://many.{number}", str(number))
        await broker.settle()
        consumer.subscribe("queue://many.*", "all", prefetch_count=2 * QUEUES)
        served = consumer.connection.consumers["all"]
        assert 0 < len(served.lists) < QUEUES
        producer.send("queue://many.new", "new")  # in the middle of it
        await broker.settle()
        assert len(served.lists) == QUEUES + 1
        assert sorted(consumer.bodies("all")) == sorted(
            [b"new", *(b"%d" % number for number in range(QUEUES))]
        )
        consumer.connection.unsubscribe("all")
        assert len(served.lists) == QUEUES + 1
        await asyncio.sleep(0)
        assert 0 < len(served.lists) < QUEUES
        producer.send("queue://many.1", "later")  # nobody is given it any more
        await broker.settle()
        assert not served.lists
        assert len(consumer.bodies("all")) == QUEUES + 1
        assert not any(item.consumers for item in broker.core.destinations.queues.values())
        assert (
            sum(item.cursor.size for item in broker.core.destinations.queues.values()) == QUEUES + 2
        )


@pytest.mark.usefixtures("one_step_a_slice")
async def test_a_wildcard_consumer_that_was_full_is_given_what_waits_in_any_queue() -> None:
    async with Broker() as broker:
        producer, consumer = await broker.client(), await broker.client()
        for number in range(QUEUES):
            producer.send(f"queue://many.{number}", str(number))
        consumer.subscribe("queue://many.*", "all", prefetch_count=2)
        for _ in range(QUEUES):
            await broker.settle()
            if len(consumer.bodies("all")) == QUEUES:
                break
            consumer.ack_all("all")
        assert sorted(consumer.bodies("all"), key=int) == [b"%d" % n for n in range(QUEUES)]


@pytest.mark.usefixtures("one_step_a_slice")
async def test_the_subscriptions_of_a_connection_that_ends_are_removed_bit_by_bit() -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(100):
            client.subscribe(f"topic://t.{number}", str(number))
        await broker.settle()
        assert len(broker.contents.subscriptions) == 100
        client.connection.disconnect(graceful=True)
        removed = [item.pending_list for item in broker.contents.subscriptions.values()]
        await broker.settle()
        assert len(removed) == 100
        assert broker.contents.subscriptions == {}
        assert broker.core.destinations.route("topic://t.99").stored == ()


async def with_messages_in_flight(broker: Broker, lists: int, each: int) -> Client:
    """A client of many subscriptions to one topic that has acknowledged nothing."""
    client, producer = await broker.client(), await broker.client()
    for number in range(lists):
        client.subscribe("topic://t", str(number), prefetch_count=2 * each)
    await broker.settle()
    for number in range(each):
        producer.send("topic://t", str(number))
    await broker.settle()
    assert len(client.bodies("0")) == each
    return client


async def test_what_was_in_flight_of_lists_that_end_does_not_come_back_to_them_first() -> None:
    """A connection with a thousand subscriptions and a thousand messages each took half a second for that."""
    async with Broker() as broker:
        client, producer = await with_messages_in_flight(broker, 3, 5), await broker.client()
        client.subscribe("queue://q", "q")
        producer.send("queue://q", "kept")
        await broker.settle()
        client.connection.disconnect(graceful=True)
        returned = broker.core.writer.turn.returned
        assert [item.destination for item in returned] == ["queue://q"]
        await broker.settle()
        assert not broker.contents.subscriptions
        assert broker.store.pending("queue://q") == [b"kept"]


async def test_what_many_subscriptions_had_in_flight_of_one_queue_comes_back_to_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list sorts it in: one subscription after the other took a minute, nobody being served, for
    nine hundred subscriptions with 300 messages each."""
    async with Broker() as broker:
        client, producer = await broker.client(), await broker.client()
        for number in range(5):
            client.subscribe("queue://q", str(number), prefetch_count=4)
        for number in range(20):
            producer.send("queue://q", f"{number:02}")
        await broker.settle()
        times: list[int] = []
        cursor_type = type(broker.queue("q").cursor)
        put_back = cursor_type.put_back

        def counted(self: Any, messages: Sequence[StoredMessage]) -> None:
            times.append(len(messages))
            put_back(self, messages)

        monkeypatch.setattr(cursor_type, "put_back", counted)
        client.connection.disconnect(graceful=True)
        assert times == [20]
        other = await broker.client()
        other.subscribe("queue://q", "other")
        await broker.settle()
        assert other.bodies("other") == [b"%02d" % number for number in range(20)]
        assert set(other.counts("other")) == {1}


@pytest.mark.parametrize("ends", ["with the connection", "by itself"])
async def test_subscriptions_that_end_with_many_messages_fill_the_turn_the_sooner(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "SLICE_S", 1000.0)
    monkeypatch.setattr(flow, "TURN_WORK_MAX", 2000)
    async with Broker() as broker:
        client = await with_messages_in_flight(broker, 60, 100)
        if ends == "by itself":
            for number in range(60):
                while client.is_paused:  # it is not read
                    await asyncio.sleep(0)
                client.connection.unsubscribe(str(number))
        else:
            client.connection.disconnect(graceful=True)
        await broker.settle()
        ended = [
            sum(isinstance(item, RemoveSubscription) for item in batch)
            for batch in broker.store.batches
        ]
        assert sum(ended) == 60
        assert max(ended) <= 16


async def test_many_walks_that_begin_together_have_one_slice_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = itertools.count()
    monkeypatch.setattr(walks, "perf_counter", lambda: next(now))
    monkeypatch.setattr(walks, "SLICE_S", 5)
    log: list[str] = []
    some = Walks()
    for number in range(10):
        some.begin(walk(log, f"w{number}", 9))
    # The first one has all of the slice, and each of the others the step that makes a short one whole.
    assert [log.count(f"w{number}") for number in range(10)] == [5, *[1] * 9]
    await asyncio.sleep(0)  # another turn, another slice
    before = len(log)
    some.begin(walk(log, "later", 9))
    assert log[before:] == ["later"] * 5
    some.finish()
    assert len(log) == 11 * 9


async def test_what_is_not_urgent_is_begun_in_a_later_turn() -> None:
    log: list[str] = []
    some = Walks()
    some.begin(walk(log, "a", 1), is_urgent=False)
    assert not log
    await asyncio.sleep(0)
    assert log == ["a"]


async def test_fifty_wildcard_subscriptions_that_end_together_are_a_step_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = itertools.count()
    async with Broker() as broker:
        producer, consumer = await broker.client(), await broker.client()
        for number in range(QUEUES):
            producer.send(f"queue://many.{number}", str(number))
        for number in range(50):
            consumer.subscribe("queue://many.*", str(number), prefetch_count=1)
        served = list(consumer.connection.consumers.values())
        await broker.settle()
        assert {len(item.lists) for item in served} == {QUEUES}
        monkeypatch.setattr(walks, "perf_counter", lambda: next(now))
        monkeypatch.setattr(walks, "SLICE_S", QUEUES)
        consumer.connection.disconnect(graceful=False)
        assert {len(item.lists) for item in served} == {QUEUES}  # none of it at once
        await broker.settle()
        assert not any(item.lists for item in served)
