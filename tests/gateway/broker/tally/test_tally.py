"""What all destinations come to is the same as a walk over all lists says; the harness compares whenever it is at rest."""

from __future__ import annotations

import random

import pytest
from broker_harness import Broker, Client
from operated import ask, ask_now
from tallied import check_tally

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.operate import paging
from tidegate.broker.tally import tally as module
from tidegate.broker.tally.counting import InFlight
from tidegate.broker.turn import walks
from tidegate.config import DestinationPolicy
from tidegate.spi.operate import (
    DestinationSort,
    ListDestinations,
    PauseDestination,
    PurgeDestination,
    ResumeDestination,
    Side,
)

QUEUES = [f"queue://q.{number}" for number in range(6)]
TOPICS = [f"topic://t.{number}" for number in range(3)]
POLICIES = (
    DestinationPolicy("queue://q.0", messages_max=5, overflow="drop_oldest"),
    DestinationPolicy("queue://q.1", messages_max=3, overflow="slow"),
    DestinationPolicy("queue://q.2", max_deliveries=1, dead_letter="dead"),
    DestinationPolicy("queue://q.3", memory_limit=1500, page_count=2),
    DestinationPolicy("queue://q.4", cursor="file", memory_limit=1500, page_count=2),
    DestinationPolicy("topic://t.0", subscriber_cursor="vm", memory_limit=1500),
    DestinationPolicy("topic://t.1", memory_messages=2),
)


async def read(broker: Broker) -> int:
    """Look, and tell how many lists were read for it."""
    tally, count = broker.core.tally, 0
    original = tally._read

    def counted(pending_list: PendingList, in_flight: InFlight) -> None:
        nonlocal count
        count += 1
        original(pending_list, in_flight)

    tally._read = counted
    try:
        await ask_now(broker, ListDestinations(sort=DestinationSort.PENDING, limit=3))
    finally:
        tally._read = original
    return count


async def test_a_look_reads_what_has_changed_since_the_one_before_and_nothing_else() -> None:
    async with Broker() as broker:
        producer = await broker.client()
        for queue in QUEUES:
            producer.send(queue, "x")
        await broker.settle()
        assert await read(broker) == 0, "the harness has looked"
        producer.send(QUEUES[0], "x")
        producer.send(QUEUES[3], "x")
        await broker.settle(looks=False)
        assert await read(broker) == 2
        assert await read(broker) == 0
        producer.subscribe(QUEUES[3], prefetch_count=1)
        await broker.settle(looks=False)
        assert await read(broker) == 1
        assert await read(broker) == 1, "what is in flight may be acknowledged at any time"
        producer.ack_all()
        producer.connection.unsubscribe("s")
        await broker.settle(looks=False)
        assert await read(broker) == 1
        assert await read(broker) == 0


class Story:
    """Clients and operators at work."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker, self.chance = broker, random.Random(seed)
        self.clients: list[Client] = []
        self.names = 0

    def any(self) -> Client:
        return self.chance.choice(self.clients)

    async def come(self) -> None:
        self.names += 1
        self.clients.append(await self.broker.client(client_id=f"c{self.names}"))

    async def leave(self) -> None:
        if len(self.clients) > 1:
            client = self.any()
            self.clients.remove(client)
            client.connection.disconnect(graceful=True)

    async def send(self) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            size = self.chance.randrange(600)
            self.any().send(self.chance.choice(QUEUES + TOPICS), "x" * size)

    async def subscribe(self) -> None:
        client, key = self.any(), f"s{self.chance.randrange(3)}"
        if key in client.connection.consumers:
            client.connection.unsubscribe(key)
            return
        destination = self.chance.choice([*QUEUES, *TOPICS, "queue://q.>", "topic://t.>"])
        is_topic = destination.startswith("topic")
        client.subscribe(
            destination,
            key,
            acknowledge=self.chance.random() < 0.7,
            prefetch_count=self.chance.randrange(1, 5),
            durable_name=key if is_topic and self.chance.random() < 0.5 else "",
            selector="" if is_topic else self.chance.choice(("", "", "n = 1")),
        )

    async def answer(self) -> None:
        client = self.any()
        for key, consumer in list(client.connection.consumers.items()):
            held = list(consumer.in_flight)[: self.chance.randrange(4)]
            if held and self.chance.random() < 0.3:
                client.connection.reject(key, held)
            elif held:
                client.connection.acknowledge(key, held)

    async def transact(self) -> None:
        client = self.any()
        for key, consumer in list(client.connection.consumers.items()):
            held = list(consumer.in_flight)[:2]
            if held:
                client.connection.begin("t")
                client.connection.acknowledge(key, held, transaction="t")
                await self.broker.settle()
                if self.chance.random() < 0.5:
                    client.connection.commit("t")
                else:
                    client.connection.abort("t")
                return

    async def operate(self) -> None:
        queue = self.chance.choice(QUEUES)
        if queue in self.broker.core.destinations.queues:
            pause = PauseDestination(queue, (Side.CONSUMERS,))
            others = ResumeDestination(queue), PurgeDestination(queue)
            await ask(self.broker, self.chance.choice((pause, *others)))


@pytest.mark.parametrize("seed", range(12))
async def test_it_is_what_a_walk_over_all_lists_says_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 1)
    monkeypatch.setattr(walks, "STEP_LISTS", 1)
    monkeypatch.setattr(paging, "SLICE_S", -1.0)
    async with Broker(*POLICIES) as broker:
        story = Story(broker, seed)
        await story.come()
        steps = [story.send] * 6 + [story.answer] * 4 + [story.subscribe] * 4
        steps += [story.come, story.leave, story.transact, story.operate]
        for _ in range(80):
            await story.chance.choice(steps)()
            if story.chance.random() < 0.3:
                await ask_now(broker, ListDestinations(with_totals=True))  # in the middle of things
            await broker.settle()  # which compares
        for queue in QUEUES:
            if queue in broker.core.destinations.queues:
                await ask(broker, ResumeDestination(queue))
        for client in story.clients:
            client.connection.disconnect(graceful=True)
        await broker.settle()
        check_tally(broker.core)
