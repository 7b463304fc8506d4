"""What destinations have together, and by what they are sorted: the same as their rows say one by one."""

from __future__ import annotations

import pytest
from broker_harness import Broker

from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import Identity
from tidegate.spi.operate import (
    PAGE_MAX,
    Destination,
    DestinationPage,
    DestinationSort,
    DestinationTotals,
    ListDestinations,
    PauseDestination,
    Side,
    perform,
)

ME = Identity("local:me", frozenset(), "", "", "operator")


async def page(broker: Broker, request: ListDestinations) -> DestinationPage:
    found = await perform(Operations(broker.core), ME, request)
    assert isinstance(found, DestinationPage)
    return found


async def pause(broker: Broker, destination: str, *sides: Side) -> None:
    await perform(Operations(broker.core), ME, PauseDestination(destination, sides))


def is_dead(row: Destination) -> bool:
    return row.destination.startswith(("queue://DLQ.", "queue://dead"))


def summed(rows: tuple[Destination, ...]) -> DestinationTotals:
    return DestinationTotals(
        destinations=len(rows),
        pending=sum(row.pending for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        consumers=sum(row.consumers for row in rows),
        memory_bytes=sum(row.memory_bytes for row in rows),
        dropped=sum(row.dropped for row in rows),
        full=sum(row.is_full for row in rows),
        paused=sum(row.producers_paused or row.consumers_paused for row in rows),
        unattended=sum(bool(row.pending and not row.consumers) for row in rows if not is_dead(row)),
        dead_letters=sum(row.pending for row in rows if is_dead(row)),
    )


async def fill(broker: Broker) -> None:
    """Queues that wait, lose, are full, paused, consumed one by one and through a filter; topics, too."""
    producer = await broker.client()
    for name, count in (
        ("a", 7),
        ("b", 3),
        ("lossy", 9),
        ("full", 2),
        ("w.x", 4),
        ("w.y", 5),
        ("DLQ.a", 2),
        ("dead", 1),
    ):
        for number in range(count):
            producer.send(f"queue://{name}", "x" * (number + 1))
            await broker.settle()
    one, some = await broker.client(), await broker.client()
    one.subscribe("queue://b", prefetch_count=2)
    some.subscribe("queue://w.>", prefetch_count=6)
    for name in ("first", "second"):
        client = await broker.client(client_id=name)
        client.subscribe("topic://t.>", durable_name="d", prefetch_count=1)
    away = await broker.client(client_id="away")
    away.subscribe("topic://away", durable_name="d")
    away.connection.disconnect(graceful=True)
    await broker.settle()
    for number in range(3):
        producer.send("topic://t.1", str(number))
        producer.send("topic://away", str(number))
    await broker.settle()
    await pause(broker, "queue://a", Side.CONSUMERS)
    await pause(broker, "topic://nobody", Side.PRODUCERS)
    await pause(broker, "topic://t.>".replace(">", "1"), Side.PRODUCERS)
    await broker.settle()


POLICIES = (
    DestinationPolicy("queue://lossy", messages_max=4, overflow="drop_oldest"),
    DestinationPolicy("queue://full", messages_max=2, overflow="slow"),
    DestinationPolicy("queue://a", dead_letter="dead"),
)


@pytest.mark.parametrize("match", ["", "queue://>", "topic://>", "w.>", "queue://b", "nothing"])
async def test_totals_are_the_sums_of_all_rows(match: str) -> None:
    async with Broker(*POLICIES) as broker:
        await fill(broker)
        rows = (await page(broker, ListDestinations(match, limit=PAGE_MAX))).rows
        for sort in DestinationSort:
            for limit in (1, 3, PAGE_MAX):
                request = ListDestinations(match, sort, limit=limit, with_totals=True)
                assert (await page(broker, request)).totals == summed(rows)
        if not match:
            totals = summed(rows)
            assert (totals.dropped, totals.full, totals.paused) == (5, 1, 3)
            assert totals.in_flight == 2 + 6 + 2
            assert totals.unattended == 4  # a, lossy, full, the one that is away
            assert totals.dead_letters == 3


@pytest.mark.parametrize("sort", [item for item in DestinationSort if item.value != "name"])
async def test_the_largest_come_first_page_by_page(sort: DestinationSort) -> None:
    def number(row: Destination) -> int:
        by = {
            DestinationSort.PENDING: row.pending,
            DestinationSort.CONSUMERS: row.consumers,
            DestinationSort.MEMORY: row.memory_bytes,
            DestinationSort.DROPPED: row.dropped,
        }
        return by[sort]

    async with Broker(*POLICIES) as broker:
        await fill(broker)
        everything = (await page(broker, ListDestinations(limit=PAGE_MAX))).rows
        wanted = sorted(everything, key=lambda row: (-number(row), row.destination))
        seen: list[Destination] = []
        after = ""
        while True:
            found = await page(broker, ListDestinations(sort=sort, after=after, limit=2))
            assert found.totals is None
            seen += found.rows
            after = found.next
            if not after:
                break
        assert seen == wanted
        assert number(wanted[0])
