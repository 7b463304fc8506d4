"""What is kept from look to look of all destinations, against a walk over all lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice

from tidegate.broker import BrokerCore
from tidegate.broker.lists.pending_list import Figures, PendingList
from tidegate.broker.tally.counting import (
    ADDED,
    CONSUMERS,
    FULL,
    MEMORY,
    PAUSED,
    PENDING,
)
from tidegate.broker.tally.dead_letters import DeadLetters
from tidegate.spi.operate import DestinationSort, DestinationTotals

#: The figure that each order is by, and how far orders are compared.
_SORTED = {DestinationSort.PENDING: PENDING, DestinationSort.MEMORY: MEMORY}
_FIRST = 200


def figures(pending_list: PendingList) -> Figures:
    """As they are counted one by one."""
    cursor, delivered = pending_list.cursor, 0
    for consumer in pending_list.all_consumers():
        own = consumer.destination == pending_list.destination
        delivered += sum(own or of is pending_list for _, of, _ in consumer.in_flight.values())
    return (
        cursor.size,
        delivered,
        len(pending_list.all_consumers()),
        cursor.memory_bytes,
        pending_list.lost,
        pending_list.is_full,
        pending_list.is_paused,
    )


def check_tally(core: BrokerCore) -> None:
    """No list has changed without being marked; and after a look all is as a walk over all lists says."""
    tally, lists = core.tally, list(core.destinations.charged)
    for pending_list in lists:
        if pending_list.is_seen:
            assert pending_list.figures == figures(pending_list), pending_list.destination
    for sort in _SORTED:
        for _ in tally.sort(sort):
            pass
    for _ in tally.catch_up(core.destinations.policies):
        pass
    by_destination: dict[str, list[int]] = {}
    counts: Counter[str] = Counter()
    for pending_list in lists:
        found = figures(pending_list)
        assert pending_list.figures == found, pending_list.destination
        numbers = by_destination.setdefault(pending_list.destination, [0] * len(found))
        by_destination[pending_list.destination] = [
            a + b for a, b in zip(numbers, found, strict=True)
        ]
        counts[pending_list.destination] += 1
    assert {name: entry.numbers for name, entry in tally.entries.items()} == by_destination
    assert {name: entry.count for name, entry in tally.entries.items()} == counts
    for sort, figure in _SORTED.items():
        wanted = sorted((-numbers[figure], name) for name, numbers in by_destination.items())
        assert list(islice(tally.ordered(sort).behind(None), _FIRST)) == wanted[:_FIRST]
    assert tally.sums.totals(others=0, paused=0) == _totals(core, by_destination)


def _totals(core: BrokerCore, by_destination: dict[str, list[int]]) -> DestinationTotals:
    dead_letters = DeadLetters(core.destinations.policies)
    sums: dict[str, int] = defaultdict(int)
    for name, numbers in by_destination.items():
        is_dead = name in core.destinations.queues and dead_letters.go_to(name)
        sums["dead_letters"] += is_dead * numbers[PENDING]
        sums["unattended"] += bool(not is_dead and numbers[PENDING] and not numbers[CONSUMERS])
        sums["full"] += numbers[FULL] > 0
        sums["paused"] += numbers[PAUSED] > 0
    added = [sum(column) for column in zip(*by_destination.values(), strict=True)][:ADDED]
    pending, in_flight, consumers, memory_bytes, dropped = added or [0] * ADDED
    return DestinationTotals(
        destinations=len(by_destination),
        pending=pending,
        in_flight=in_flight,
        consumers=consumers,
        memory_bytes=memory_bytes,
        dropped=dropped,
        **sums,
    )
