"""A list whose cursor is full stops its producers, and says so when that lasts."""

import asyncio
import logging

import pytest
from broker_harness import Broker, Client

from tidegate.broker.events import BURST
from tidegate.broker.limits.overflow import WORST_MAX
from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import MESSAGE_OVERHEAD_BYTES, Identity, ListOverflow
from tidegate.spi.events import Event
from tidegate.spi.operate import ListDestinations

ME = Identity("local:me", frozenset(), "", "", "operator")


async def test_it_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    told: list[ListOverflow] = []
    full = DestinationPolicy(match="q", cursor="vm", memory_limit=2 * MESSAGE_OVERHEAD_BYTES)
    with caplog.at_level(logging.INFO, "tidegate.broker.limit"):
        async with Broker(full) as broker:
            broker.core.limits.overflows.announce = told.append
            sender = await broker.client()
            for number in range(3):
                sender.send("queue://q", f"{number}")
            await broker.settle()
            sender.send("queue://q", "it finds that the cursor is full")
            assert sender.is_paused
            await asyncio.sleep(5)
            assert broker.core.client_counts()["overflow.lists"] == 1
            consumer = await broker.client()
            consumer.acknowledge_at_once()
            consumer.subscribe("queue://q")
            await asyncio.sleep(5)
            assert not sender.is_paused
            assert broker.core.client_counts()["overflow.lists"] == 0
    assert [(item.overflow, item.is_over) for item in told] == [("slow", False), ("slow", True)]
    first, _ = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.limit"]
    assert first == (
        "destination='queue://q' limit=memory overflow=slow: messages are held back with their"
        " producers until consumers take some"
    )


async def test_what_is_full_for_a_moment_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    full = DestinationPolicy(match="q", cursor="vm", memory_limit=2 * MESSAGE_OVERHEAD_BYTES)
    async with Broker(full) as broker:
        sender, consumer = await broker.client(), await broker.client()
        consumer.subscribe("queue://q", prefetch_count=1)
        for number in range(4):
            sender.send("queue://q", f"{number}")
        await broker.settle()
        sender.send("queue://q", "it finds that the cursor is full")
        assert sender.is_paused
        consumer.acknowledge_at_once()
        consumer.ack_all()
        await asyncio.sleep(5)
        assert not sender.is_paused
    assert not [r for r in caplog.records if r.name == "tidegate.broker.limit"]


# --- lists that lose messages because a client does not keep up --------------------------------------

LOSING = DestinationPolicy(match=">", memory_limit=2000, temporary_limit=1)


async def losers(broker: Broker, count: int, told: list[ListOverflow]) -> list[Client]:
    """So many subscribers without storage to topics of their own, of which each loses messages."""
    broker.core.limits.overflows.announce = told.append
    clients = [await broker.client("mqtt", f"c{number}") for number in range(count)]
    for number, client in enumerate(clients):
        client.subscribe(f"topic://t.{number}", qos=0)
        client.connection.writable(False)
    await lose(broker, count)
    return clients


async def lose(broker: Broker, count: int) -> None:
    sender = await broker.client()
    for number in range(count):
        for _ in range(50):
            sender.send(f"topic://t.{number}", "x")
    await broker.settle()
    sender.connection.disconnect(graceful=True)


async def test_each_list_that_loses_messages_is_told_once_and_when_it_loses_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[ListOverflow] = []
    with caplog.at_level(logging.INFO, "tidegate.broker.limit"):
        async with Broker(LOSING) as broker:
            await losers(broker, 2, told)
            await asyncio.sleep(2)
            await lose(broker, 2)  # it goes on, and is not told again
            await asyncio.sleep(9)
            lost = [item.lost for item in broker.core.destinations.charged]
            assert sum(lost) == broker.core.flow.dropped > 0
            counts = broker.core.client_counts()
            assert (counts["overflow.lists"], counts["overflow.dropped"]) == (2, sum(lost))
            assert sorted(str(counts["overflow.worst"]).splitlines()) == [
                f"destination='topic://t.{number}' subscription='s' client='c{number}'"
                f" principal='anonymous' lost={lost[number]}"
                for number in range(2)
            ]
            page = await Operations(broker.core).list_destinations(ME, ListDestinations())
            assert [(row.overflow, row.dropped) for row in page.rows] == [
                (("drop_oldest",), lost[number]) for number in range(2)
            ]
            await asyncio.sleep(5)
            assert broker.core.client_counts()["overflow.lists"] == 0
    assert [(item.client_id, item.overflow, item.is_over) for item in told] == [
        (client, "drop_oldest", is_over) for is_over in (False, True) for client in ("c0", "c1")
    ]
    assert [item.dropped for item in told if item.is_over] == lost
    texts = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.limit"]
    assert len(texts) == 4
    assert texts[0] == (
        "destination='topic://t.0' subscription='s' client='c0' principal='anonymous'"
        " limit=temporary space overflow=drop_oldest: messages are dropped until its client takes some"
    )


async def test_however_many_lose_messages_the_log_and_the_metric_have_a_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count, told = BURST + 15, list[ListOverflow]()
    with caplog.at_level(logging.INFO, "tidegate.broker.limit"):
        async with Broker(LOSING) as broker:
            clients = await losers(broker, count, told)
            await asyncio.sleep(3)
            counts = broker.core.client_counts()
            assert counts["overflow.lists"] == count == len(told)
            assert len(str(counts["overflow.worst"]).splitlines()) == WORST_MAX
            texts = [
                record.getMessage()
                for record in caplog.records
                if vars(record).get("event") == Event.LIMIT_REACHED.value
            ]
            assert len(texts) == BURST + 1
            assert texts[-1] == "count=15 more in about a second"
            for client in clients:  # who is gone loses nothing
                client.connection.disconnect(graceful=True)
            await broker.settle()
            await asyncio.sleep(3)
            counts = broker.core.client_counts()
            assert (counts["overflow.lists"], counts["overflow.worst"]) == (0, "none")
            assert not broker.core.full_cursors._losing


async def test_what_is_not_stored_for_a_stored_subscription_is_told_too() -> None:
    told: list[ListOverflow] = []
    async with Broker() as broker:
        broker.core.limits.overflows.announce = told.append
        client, sender = await broker.client("mqtt", "c"), await broker.client()
        client.subscribe("topic://t", qos=1)
        client.connection.writable(False)
        sender.send("topic://t", "0", qos=0)
        await broker.settle()
        await asyncio.sleep(2)
        assert [(item.client_id, item.overflow, item.dropped) for item in told] == [
            ("c", "drop_newest", 1)
        ]
        client.connection.writable(True)


async def test_what_happens_at_a_limit_is_seen_of_each_kind_of_list() -> None:
    policies = (
        DestinationPolicy(match="queue://limited", messages_max=2, overflow="drop_newest"),
        DestinationPolicy(match="queue://vm", cursor="vm", memory_limit=2 * MESSAGE_OVERHEAD_BYTES),
        DestinationPolicy(match="topic://t", subscription_overflow="refuse"),
    )
    async with Broker(*policies) as broker:
        client, sender = await broker.client("mqtt", "c"), await broker.client()
        client.subscribe("topic://t", "durable", qos=1, durable_name="durable")
        other = await broker.client("mqtt", "d")
        other.subscribe("topic://t", qos=0)
        for name in ("limited", "paged", "vm"):
            for number in range(3):
                sender.send(f"queue://{name}", f"{number}")
        await broker.settle()
        sender.send("queue://vm", "it finds that the cursor is full")
        await broker.settle()
        page = await Operations(broker.core).list_destinations(ME, ListDestinations())
        assert {row.destination: (row.overflow, row.dropped, row.is_full) for row in page.rows} == {
            "queue://limited": (("drop_newest",), 1, False),
            "queue://paged": ((), 0, False),
            "queue://vm": (("slow",), 0, True),
            "topic://t": (("drop_oldest", "refuse"), 0, False),
        }
