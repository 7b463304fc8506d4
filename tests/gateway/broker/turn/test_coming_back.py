"""What a client that ends had in flight comes back in slices: in order, all of it, nothing twice."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from broker_harness import Broker, Client
from turns import counting_turns

from tidegate.broker.operate.changing import content
from tidegate.broker.turn import coming_back, flow, walks
from tidegate.broker.turn.coming_back import STEP_MESSAGES
from tidegate.spi import RecordDelivery

QUEUE = "queue://q"
#: Four steps.
COUNT = 3 * STEP_MESSAGES + 5


@pytest.fixture(autouse=True)
def one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds that the slice is over."""
    now = itertools.count()
    for module in (walks, flow):
        monkeypatch.setattr(module, "perf_counter", lambda: next(now))


def publish(producer: Client, count: int, destination: str = QUEUE, first: int = 0) -> None:
    for number in range(first, first + count):
        producer.send(destination, str(number))


async def taken(broker: Broker, count: int = COUNT, **more: Any) -> Client:
    """A client that has so many in flight."""
    client = await broker.client()
    client.subscribe(QUEUE, prefetch_count=count, **more)
    publish(client, count)
    await broker.settle()
    assert len(client.connection.consumers["s"].in_flight) == count
    return client


async def end(client: Client, broker: Broker, left: int) -> None:
    """End it, and see that so many are not back at once."""
    client.connection.disconnect(graceful=False)
    assert broker.core.flow.coming_back.is_under_way
    assert broker.core.flow.coming_back.of(broker.queue("q")) == left


def numbers(client: Client) -> list[int]:
    return [int(body) for body in client.bodies()]


async def test_others_have_their_turn_while_it_comes_back() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        async with counting_turns() as turns:
            await end(client, broker, COUNT - STEP_MESSAGES)
            while broker.core.flow.coming_back.is_under_way:
                await asyncio.sleep(0)
        assert turns.count >= COUNT // STEP_MESSAGES - 1
        assert broker.queue("q").cursor.size == COUNT
        assert not broker.queue("q").returning


@pytest.mark.parametrize("selector", ["", "priority >= 0"])
async def test_nobody_is_given_a_later_message_before_all_of_it_is_back(selector: str) -> None:
    async with Broker() as broker:
        other = await broker.client()
        client = await taken(broker)
        other.subscribe(QUEUE, selector=selector, prefetch_count=2 * COUNT)
        await broker.settle()
        await end(client, broker, COUNT - STEP_MESSAGES)
        other.send(QUEUE, str(COUNT))  # in the middle of it
        while broker.queue("q").returning:
            assert not other.deliveries
            await asyncio.sleep(0)
        await broker.settle()
        assert numbers(other) == list(range(COUNT + 1))
        assert other.counts() == [1] * COUNT + [0]
        other.ack_all()
        await broker.settle()
        assert not broker.store.pending(QUEUE)


async def test_a_client_that_is_back_at_once_gets_all_of_it_in_order() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        client.connection.acknowledge("s", client.sequences()[:10])  # is still under way
        await end(client, broker, COUNT - 10 - STEP_MESSAGES)
        again = await broker.client()
        again.subscribe(QUEUE, prefetch_count=COUNT)
        await broker.settle()
        assert numbers(again) == list(range(10, COUNT))
        assert again.counts() == [1] * (COUNT - 10)


@pytest.mark.parametrize("apart", [0, 1, 2, 9])
async def test_what_several_had_is_in_one_order_again(apart: int) -> None:
    async with Broker() as broker:
        clients = [await broker.client() for _ in range(3)]
        for client in clients:
            client.subscribe(QUEUE, prefetch_count=COUNT)
        publish(clients[0], 3 * COUNT)
        await broker.settle()
        assert [len(client.deliveries) for client in clients] == [COUNT] * 3
        for client in clients:
            client.connection.disconnect(graceful=False)
            for _ in range(apart):
                await asyncio.sleep(0)
        last = await broker.client()
        last.subscribe(QUEUE, prefetch_count=3 * COUNT)
        await broker.settle()
        assert numbers(last) == list(range(3 * COUNT))


async def test_what_was_in_flight_of_many_queues_is_in_each_again() -> None:
    async with Broker() as broker:
        client, other = await broker.client(), await broker.client()
        client.subscribe("queue://*", prefetch_count=3 * COUNT)
        for number in range(COUNT):
            for name in "abc":
                other.send(f"queue://{name}", str(number))
        await broker.settle()
        assert len(client.deliveries) == 3 * COUNT
        client.connection.disconnect(graceful=False)
        assert broker.queue("a").returning == 1
        for name in "abc":
            other.subscribe(f"queue://{name}", name, prefetch_count=COUNT)
        await broker.settle()
        for name in "abc":
            assert [int(body) for body in other.bodies(name)] == list(range(COUNT))


async def test_unsubscribing_gives_back_in_slices_too() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        client.connection.unsubscribe("s")
        assert broker.queue("q").returning
        client.subscribe(QUEUE, "again", prefetch_count=COUNT)
        await broker.settle()
        assert [int(body) for body in client.bodies("again")] == list(range(COUNT))


async def test_what_vanishes_with_a_subscription_is_let_go_of_in_slices() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.subscribe("topic://t", prefetch_count=COUNT)
        publish(client, COUNT, "topic://t")
        await broker.settle()
        in_flight = client.connection.consumers["s"].in_flight
        assert len(in_flight) == COUNT
        client.connection.disconnect(graceful=False)
        assert len(in_flight) == COUNT - STEP_MESSAGES
        await broker.settle()
        assert not in_flight
        assert not broker.contents.subscriptions


async def test_a_kill_in_the_middle_loses_nothing() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        await end(client, broker, COUNT - STEP_MESSAGES)
        await asyncio.sleep(0)
        await broker.kill()
        again = await broker.client()
        again.subscribe(QUEUE, prefetch_count=COUNT)
        await broker.settle()
        assert numbers(again) == list(range(COUNT))


async def test_a_stop_in_the_middle_finishes_it() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        await end(client, broker, COUNT - STEP_MESSAGES)
        await broker.core.end_connections()
        assert not broker.core.flow.coming_back.is_under_way
        counted = [op.sequences for op in broker.store.operations(RecordDelivery)]
        assert sorted(itertools.chain(*counted)) == sorted(client.sequences())


async def test_a_queue_that_is_deleted_meanwhile_gets_nothing_back() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        await end(client, broker, COUNT - STEP_MESSAGES)
        broker.core.destinations.remove_queue(QUEUE, "a test")
        other = await broker.client()
        other.subscribe(QUEUE, prefetch_count=COUNT)
        other.send(QUEUE, "new")
        await broker.settle()
        assert other.bodies() == [b"new"]
        assert not broker.core.flow.coming_back.is_under_way


async def test_what_is_on_its_way_counts_for_a_limit_that_comes_meanwhile() -> None:
    async with Broker() as broker:
        client = await taken(broker)
        queue = broker.queue("q")
        assert content(broker.core, queue) == COUNT
        await end(client, broker, COUNT - STEP_MESSAGES)
        assert content(broker.core, queue) == COUNT
        await broker.settle()
        assert content(broker.core, queue) == COUNT


async def test_no_turn_of_the_store_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "TURN_WORK_MAX", STEP_MESSAGES)
    async with Broker() as broker:
        client = await taken(broker)
        client.connection.disconnect(graceful=False)
        await broker.settle()
        sizes = [len(op.sequences) for op in broker.store.operations(RecordDelivery)]
        assert sum(sizes) == COUNT
        assert max(sizes) <= 2 * STEP_MESSAGES


async def test_a_cursor_that_fails_does_not_hold_its_queue(
    monkeypatch: pytest.MonkeyPatch, logged_errors: list[str]
) -> None:
    logged_errors.append("giving back what was in flight failed")
    async with Broker() as broker:
        client = await taken(broker)
        give_back, steps = broker.core.writer.give_back, iter([False, True, False, False])

        def fails(entries: Any) -> None:
            if next(steps):
                raise ZeroDivisionError
            give_back(entries)

        monkeypatch.setattr(broker.core.writer, "give_back", fails)
        client.connection.disconnect(graceful=False)
        await broker.settle()
        assert broker.queue("q").cursor.size == COUNT - STEP_MESSAGES
        assert not broker.queue("q").returning


@pytest.mark.parametrize("seed", range(20))
async def test_in_any_order_of_what_clients_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is acknowledged once, or is given to the last client, in order."""
    monkeypatch.setattr(coming_back, "STEP_MESSAGES", 3)
    chance = random.Random(seed)
    async with Broker() as broker:
        producer, sent = await broker.client(), 0
        clients: list[Client] = []
        acknowledged: list[int] = []
        for _ in range(60):
            act = chance.choice(["send", "join", "leave", "acknowledge", "turn", "turn"])
            if act == "send":
                publish(producer, 10, first=sent)
                sent += 10
            elif act == "join":
                client = await broker.client()
                selector = chance.choice(["", "priority >= 0"])
                client.subscribe(QUEUE, prefetch_count=25, selector=selector)
                clients.append(client)
            elif act == "leave" and clients:
                clients.pop(chance.randrange(len(clients))).connection.disconnect(graceful=False)
            elif act == "acknowledge" and clients:
                acknowledged += _acknowledge(chance.choice(clients), chance.randrange(9))
            else:
                await asyncio.sleep(0)
        for client in clients:
            client.connection.disconnect(graceful=False)
        last = await broker.client()
        last.subscribe(QUEUE, prefetch_count=10_000)
        await broker.settle()
        assert numbers(last) == sorted(numbers(last))
        assert sorted([*acknowledged, *numbers(last)]) == list(range(sent))


def _acknowledge(client: Client, count: int) -> list[int]:
    in_flight = client.connection.consumers["s"].in_flight
    found = [entry[0] for entry in list(in_flight.values())[:count]]
    client.connection.acknowledge("s", [item.sequence for item in found])
    return [int(item.message.body) for item in found]
