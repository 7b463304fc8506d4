"""A consumer that acknowledges nothing for long, or too little, is found, told, and by policy cut short or ended."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import FlowControlError, Identity, SlowConsumer
from tidegate.spi.operate import PauseDestination, ResumeDestination, Side, perform

QUEUE = "queue://q"
ME = Identity("local:me", frozenset(), "", "", "operator")


def policy(act: str = "tell") -> DestinationPolicy:
    return DestinationPolicy(match="q", slow_consumer_age=60, slow_consumer_act=act)


async def hanging(broker: Broker, **more: Any) -> tuple[Client, list[SlowConsumer]]:
    """A consumer with five messages, which it does not acknowledge."""
    told: list[SlowConsumer] = []
    broker.core.slow_consumers.announce = told.append
    sender, consumer = await broker.client(), await broker.client("stomp", "c")
    consumer.subscribe(QUEUE, **more)
    for number in range(5):
        sender.send(QUEUE, f"{number}")
    await broker.settle()
    return consumer, told


async def test_it_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidegate.broker.slow"):
        async with Broker(policy()) as broker:
            consumer, told = await hanging(broker)
            await asyncio.sleep(50)
            assert told == []
            await asyncio.sleep(200)
            counts = broker.core.client_counts()
            assert (counts["consumers.slow"], counts["consumers.slowed"]) == (1, 1)
            consumer.connection.acknowledge("s", consumer.sequences()[:1])
            await asyncio.sleep(20)
            assert broker.core.client_counts()["consumers.slow"] == 0
            assert consumer.ended is None
            common = (QUEUE, "s", "c", "anonymous", "tell", "slow_consumer_age")
            assert told == [
                SlowConsumer(*common, in_flight=5, is_over=False),
                SlowConsumer(*common, in_flight=4, is_over=True),
            ]
    texts = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.slow"]
    assert [text.split(":")[0].split(" ")[0] for text in texts] == ["consumer='s'"] * 2


async def test_its_prefetch_is_cut_until_it_acknowledges() -> None:
    async with Broker(policy("cut_prefetch")) as broker:
        consumer, _ = await hanging(broker, prefetch_count=10)
        await asyncio.sleep(100)
        other, sender = await broker.client(), await broker.client()
        other.subscribe(QUEUE)
        for number in range(5, 9):
            sender.send(QUEUE, f"{number}")
        await broker.settle()
        assert len(consumer.deliveries) == 5
        assert len(other.deliveries) == 4
        other.connection.disconnect(graceful=True)
        await broker.settle()
        consumer.connection.acknowledge("s", consumer.sequences()[:1])
        await asyncio.sleep(20)
        await broker.settle()
        assert len(consumer.deliveries) == 9


async def test_who_subscribes_again_is_cut_again_and_has_its_new_prefetch_afterwards() -> None:
    async with Broker(policy("cut_prefetch")) as broker:
        consumer, _ = await hanging(broker, prefetch_count=10)
        await asyncio.sleep(100)
        (served,) = consumer.connection.consumers.values()
        assert served.prefetch_count == 1
        served.prefetch_count = 20  # as a repeated SUBSCRIBE sets it
        await asyncio.sleep(20)
        assert served.prefetch_count == 1
        consumer.ack_all()
        await asyncio.sleep(20)
        assert served.prefetch_count == 20


async def test_it_is_disconnected_and_others_get_what_it_had() -> None:
    async with Broker(policy("disconnect")) as broker:
        consumer, told = await hanging(broker)
        other = await broker.client()
        other.subscribe(QUEUE)
        await asyncio.sleep(100)
        await broker.settle()
        assert isinstance(consumer.ended, FlowControlError)
        assert len(other.deliveries) == 5
        await asyncio.sleep(10)
        assert broker.core.client_counts()["consumers.slow"] == 0
        assert [(one.is_over, one.in_flight) for one in told] == [(False, 5), (True, 0)]


async def test_neither_a_clock_that_is_set_nor_one_who_works_steadily_nor_other_queues() -> None:
    async with Broker(policy("disconnect")) as broker:
        consumer, told = await hanging(broker)
        broker.core.step_us = 10**12
        for _ in range(4):
            await asyncio.sleep(45)
            consumer.connection.acknowledge(
                "s", list(consumer.connection.consumers["s"].in_flight)[:1]
            )
        sender, other = await broker.client(), await broker.client()
        other.subscribe("queue://other")
        sender.send("queue://other", "x")
        consumer.ack_all()
        await asyncio.sleep(1000)
        assert told == []
        assert consumer.ended is other.ended is None


# --- by rate: 2 a second, so 20 from one look to the next -------------------------------------------


def by_rate(act: str = "tell", **more: Any) -> DestinationPolicy:
    return DestinationPolicy(match="q", slow_consumer_rate=2, slow_consumer_act=act, **more)


async def piled_up(
    broker: Broker, count: int = 500, *, prefetch_count: int = 5, **more: Any
) -> tuple[Client, Client, list[SlowConsumer]]:
    """A sender, a consumer that may have a few at once of the *count* messages, and what is told."""
    told: list[SlowConsumer] = []
    broker.core.slow_consumers.announce = told.append
    sender, consumer = await broker.client(), await broker.client("stomp", "c")
    consumer.subscribe(QUEUE, prefetch_count=prefetch_count, **more)
    for number in range(count):
        sender.send(QUEUE, f"{number}")
    await broker.settle()
    return sender, consumer, told


def take(consumer: Client, count: int) -> None:
    """Acknowledge the first *count* of those in flight."""
    sequences = list(consumer.connection.consumers["s"].in_flight)[:count]
    consumer.connection.acknowledge("s", sequences)


async def work(consumer: Client, counts: Sequence[int]) -> None:
    """Acknowledge so many in each second."""
    for count in counts:
        take(consumer, count)
        await asyncio.sleep(1)


async def test_by_rate_it_is_told_once_and_when_it_is_quick_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "tidegate.broker.slow"):
        async with Broker(by_rate()) as broker:
            _, consumer, told = await piled_up(broker)
            await work(consumer, [1] * 60)
            assert [event.is_over for event in told] == [False]
            assert broker.core.client_counts()["consumers.slow"] == 1
            await work(consumer, [3] * 40)
            assert [event.is_over for event in told] == [False, True]
            assert {event.found_by for event in told} == {"slow_consumer_rate"}
            counts = broker.core.client_counts()
            assert (counts["consumers.slow"], counts["consumers.slowed"]) == (0, 1)
    texts = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.slow"]
    assert "it has acknowledged 10 in 10s of at least 2/s (slow_consumer_rate)" in texts[0]
    assert texts[1].endswith("no longer slow (slow_consumer_rate)")


@pytest.mark.parametrize("count", [2, 3])
async def test_one_that_is_as_quick_as_it_should_be_is_not_slow(count: int) -> None:
    async with Broker(by_rate()) as broker:
        _, consumer, told = await piled_up(broker)
        await work(consumer, [count] * 100)
        assert told == []


async def test_it_is_not_slow_with_little_to_do_nor_with_a_pile_each_time_it_is_looked_at() -> None:
    async with Broker(by_rate()) as broker:
        sender, consumer, told = await piled_up(broker, 0)
        for offset in range(10):  # wherever the looks fall, they fall on the pile once
            for _ in range(4):
                for number in range(10):
                    sender.send(QUEUE, f"{number}")
                await broker.settle()
                await asyncio.sleep(1)
                while consumer.connection.consumers["s"].in_flight:
                    take(consumer, 5)
                    await broker.settle()
                await asyncio.sleep(9)
            await asyncio.sleep(offset % 2)
        await work(consumer, [0] * 50)
        assert told == []


async def test_what_it_rejects_counts_and_what_a_transaction_gives_back_does_not() -> None:
    async with Broker(by_rate(max_deliveries=1)) as broker:
        _, consumer, told = await piled_up(broker)
        for _ in range(30):
            consumer.connection.reject("s", list(consumer.connection.consumers["s"].in_flight)[:3])
            await asyncio.sleep(1)
        assert told == []
        for _ in range(30):
            consumer.connection.begin("t")
            held = list(consumer.connection.consumers["s"].in_flight)[:3]
            consumer.connection.acknowledge("s", held, None, "t")
            consumer.connection.abort("t")
            await asyncio.sleep(1)
        assert [event.is_over for event in told] == [False]


async def test_by_rate_its_prefetch_is_cut_until_nothing_is_left_for_it() -> None:
    async with Broker(by_rate("cut_prefetch")) as broker:
        _, consumer, told = await piled_up(broker, 60)
        await work(consumer, [1] * 40)
        assert consumer.connection.consumers["s"].prefetch_count == 1
        await work(consumer, [1] * 40)
        assert [event.is_over for event in told] == [False, True]
        assert consumer.connection.consumers["s"].prefetch_count == 5


async def test_by_rate_it_is_disconnected_and_others_get_what_it_had() -> None:
    async with Broker(by_rate("disconnect")) as broker:
        _, consumer, told = await piled_up(broker)
        await asyncio.sleep(25)
        assert isinstance(consumer.ended, FlowControlError)
        assert "slow_consumer_rate" in str(consumer.ended)
        assert [one.is_over for one in told] == [False, True]
        other = await broker.client()
        other.subscribe(QUEUE, prefetch_count=1000)
        await broker.settle()
        assert len(other.deliveries) == 500
        await asyncio.sleep(20)
        assert broker.core.client_counts()["consumers.slow"] == 0


async def test_an_operator_who_pauses_it_makes_nobody_slow() -> None:
    async with Broker(by_rate("disconnect")) as broker:
        _, consumer, told = await piled_up(broker)
        operations = Operations(broker.core)

        async def during(is_paused: bool, counts: Sequence[int]) -> None:
            request = PauseDestination if is_paused else ResumeDestination
            await perform(operations, ME, request(QUEUE, (Side.CONSUMERS,)))
            await work(consumer, counts)

        for _ in range(11):  # wherever the looks fall: between two of them, and over them
            await during(False, [3])
            await during(True, [3] * 7)
            await during(False, [3] * 3)
        await during(True, [0] * 50)
        assert told == []


async def test_a_gateway_that_was_held_up_makes_nobody_slow() -> None:
    async with Broker(by_rate("disconnect")) as broker:
        _, consumer, told = await piled_up(broker)
        loop = asyncio.get_running_loop()
        for _ in range(5):
            await work(consumer, [3] * 12)
            loop._jumping.jumped += 30  # type: ignore[attr-defined]  # the harness's own loop
        assert told == []


async def test_messages_that_its_selector_does_not_want_are_not_its_work() -> None:
    async with Broker(by_rate("disconnect")) as broker:
        sender, consumer, told = await piled_up(
            broker, 100, prefetch_count=1, selector="wanted = 'yes'"
        )
        for _ in range(8):
            sender.send(QUEUE, "w", headers=(("wanted", "yes"),))
            await asyncio.sleep(25)
            assert len(consumer.connection.consumers["s"].in_flight) == 1
            take(consumer, 1)
        assert told == []


async def test_age_and_rate_tell_of_one_consumer_once() -> None:
    async with Broker(by_rate(slow_consumer_age=15)) as broker:
        _, consumer, told = await piled_up(broker)
        await work(consumer, [0] * 60)
        assert len(told) == 1
