"""An operator at work among consumers of all kinds: each message is consumed or purged, once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from broker_harness import Broker, Client
from virtual_loop import run

from tidegate.broker.operate.operations import Operations
from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.config import DestinationPolicy
from tidegate.spi import Discard, FlowControlError, Identity, RequestError, StoreFullError
from tidegate.spi.operate import (
    CreateDestination,
    MoveMessages,
    PauseDestination,
    PurgeDestination,
    ResumeDestination,
    Side,
    perform,
)

ME = Identity("local:me", frozenset(), "", "", "operator")
QUEUES = ("queue://a", "queue://b")
SELECTORS = ("", "", "n > 20", "kind = 'x'", "kind = 'y' AND n < 50")
STEPS = 120


class Story:
    """One run. Attributes: acknowledged: how often each body was; asked: operations under way."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.operations = Operations(broker.core)
        self.clients: list[Client] = []
        self.acknowledged: Counter[bytes] = Counter()
        self.asked: list[asyncio.Task[Any]] = []
        self.published = 0

    async def begin(self) -> None:
        for queue in QUEUES:
            await perform(self.operations, ME, CreateDestination(queue))
        self.producer = await self.broker.client()

    def publish(self) -> None:
        for _ in range(self.chance.randrange(1, 12)):
            headers = (("n", str(self.published)), ("kind", self.chance.choice("xy")))
            queue = self.chance.choice(QUEUES)
            self.producer.send(queue, str(self.published), "sent", headers=headers)
            self.published += 1

    async def consume(self) -> None:
        client = await self.broker.client()
        client.subscribe(
            self.chance.choice((*QUEUES, "queue://>")),
            selector=self.chance.choice(SELECTORS),
            prefetch_count=self.chance.randrange(1, 9),
        )
        self.clients.append(client)

    def acknowledge(self) -> None:
        if self.clients:
            client = self.chance.choice(self.clients)
            consumer = client.connection.consumers["s"]
            held = list(consumer.in_flight)
            some = held[: self.chance.randrange(len(held) + 1)]
            bodies = [consumer.in_flight[sequence][0].message.body for sequence in some]
            if some and self.chance.random() < 0.2:
                client.connection.reject("s", some)
            elif some:
                client.connection.acknowledge("s", some)
                self.acknowledged.update(bodies)

    def leave(self) -> None:
        if self.clients:
            self.clients.pop().connection.disconnect(graceful=True)

    def operate(self) -> None:
        source, target = self.chance.sample(QUEUES, 2)
        selector, count = self.chance.choice(SELECTORS), self.chance.choice((0, 0, 3))
        request = self.chance.choice(
            (
                *[MoveMessages(source, target, selector, count)] * 4,
                PurgeDestination(source, selector, 3),
                PauseDestination(source, (Side.CONSUMERS,)),
                ResumeDestination(source),
            )
        )
        self.asked.append(asyncio.ensure_future(perform(self.operations, ME, request)))

    def be_full(self) -> None:
        self.broker.store.refuse(1)

    async def end(self) -> None:
        """Everybody goes on, and everything that is left is taken."""
        self.broker.store.refuse(0)
        for result in await asyncio.gather(*self.asked, return_exceptions=True):
            if isinstance(result, BaseException):
                assert isinstance(result, RequestError | FlowControlError | StoreFullError), result
        for queue in QUEUES:
            await perform(self.operations, ME, ResumeDestination(queue))
        while self.clients:
            self.leave()
        await self.broker.settle()
        for queue in QUEUES:
            client = await self.broker.client()
            client.acknowledge_at_once()
            client.subscribe(queue, prefetch_count=50)
            await self.broker.settle()
            self.acknowledged.update(client.bodies())
            assert self.broker.queue(queue.removeprefix("queue://")).cursor.size == 0
            assert self.broker.store.pending(queue) == []


@pytest.mark.parametrize("cursor", ["store", "vm", "file"])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_nothing_comes_twice(cursor: str, seed: int) -> None:
    async def main() -> None:
        policy = DestinationPolicy(
            ">",
            cursor=cursor,
            memory_limit=1 << 20 if cursor == "vm" else 4000,
            page_count=7,
            max_deliveries=0,
        )
        async with Broker(policy) as broker:
            story = Story(broker, seed)
            await story.begin()
            acts = (
                *[story.publish] * 5,
                *[story.acknowledge] * 6,
                *[story.operate] * 3,
                *[story.consume] * 2,
                story.leave,
                story.be_full,
            )
            for _ in range(STEPS):
                act = story.chance.choice(acts)
                try:
                    found = act()
                    if found is not None:
                        await found
                except StoreFullError:
                    await asyncio.sleep(2 * FULL_BACK_OFF_S)
                for _ in range(story.chance.randrange(4)):
                    await asyncio.sleep(0)
            await broker.settle()
            await story.end()
            purged = sum(len(item.sequences) for item in broker.store.operations(Discard))
            refused = len(story.producer.failures)
            assert max(story.acknowledged.values(), default=1) == 1
            assert len(story.acknowledged) + purged + refused == story.published
            assert story.acknowledged

    run(main())
