"""Dead letters by where they come from and why they are there, as operators count them."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from broker_harness import Broker
from operated import ask
from virtual_loop import run

from tidegate.broker.lists.selector_grammar import LENGTH_MAX
from tidegate.broker.operate.messages import grouping
from tidegate.spi import RequestError
from tidegate.spi.operate import BrowseMessages, CountDeadLetters

B, DEAD = "queue://b", "queue://DLQ.shared"


async def put(broker: Broker, letters: list[tuple[str, str]]) -> None:
    """Put messages with these origins and reasons into the queue of dead letters."""
    client = await broker.client()
    for number, (origin, reason) in enumerate(letters):
        more = (("original-destination", origin), ("dead-letter-reason", reason)) if origin else ()
        client.send(DEAD, str(number), headers=(("n", str(number)), *more))
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()


def test_dead_letters_are_counted_by_where_they_come_from_and_why() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await put(broker, [("queue://it's", "x"), (B, "y"), (B, "x"), (B, "y"), ("", "")])
            found = await ask(broker, CountDeadLetters(DEAD))
            assert found.is_complete
            assert found.count == 5
            shown = [
                (group.origin, group.reason, group.count, group.size) for group in found.groups
            ]
            assert shown == [
                (B, "y", 2, 2),
                ("", "", 1, 1),
                (B, "x", 1, 1),
                ("queue://it's", "x", 1, 1),
            ]
            for group in found.groups:
                page = await ask(broker, BrowseMessages(DEAD, selector=group.selector))
                assert len(page.rows) == group.count
                assert {dict(row.headers).get("dead-letter-reason", "") for row in page.rows} == {
                    group.reason
                }
                times = [row.received_at for row in page.rows]
                assert (group.first_at, group.last_at) == (min(times), max(times))
            some = await ask(broker, CountDeadLetters(DEAD, selector="n = '3'"))
            assert [(group.reason, group.count) for group in some.groups] == [("y", 1)]

    run(main())


@pytest.mark.parametrize("count_max", [1, 2, 3, 5])
def test_dead_letters_are_counted_in_parts_that_add_up(count_max: int) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await put(broker, [(B, str(number % 3)) for number in range(7)])
            request, counts = CountDeadLetters(DEAD, count_max=count_max), Counter[str]()
            while True:
                found = await ask(broker, request)
                assert found.count <= count_max
                counts.update({group.reason: group.count for group in found.groups})
                if found.is_complete:
                    break
                # What comes meanwhile is not counted.
                await put(broker, [(B, "late")])
                request = msgspec.structs.replace(request, after=found.after, through=found.through)
            assert counts == {"0": 3, "1": 2, "2": 2}

    run(main())


def test_an_answer_has_so_many_groups_and_their_texts_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await put(broker, [(B, str(number)) for number in range(10)])
            for name, most in (("_GROUPS_MAX", 4), ("_TEXTS_MAX", 30)):
                monkeypatch.setattr(grouping, name, most)
                request, counts = CountDeadLetters(DEAD), list[int]()
                while True:
                    found = await ask(broker, request)
                    counts.append(sum(group.count for group in found.groups))
                    if found.is_complete:
                        break
                    request = msgspec.structs.replace(request, after=found.after)
                assert sum(counts) == 10
                assert len(counts) == {"_GROUPS_MAX": 3, "_TEXTS_MAX": 4}[name]
                monkeypatch.undo()
            await put(broker, [(B, "x" * grouping.SELECTOR_MAX)])
            found = await ask(broker, CountDeadLetters(DEAD))
            assert [group.selector for group in found.groups if len(group.reason) > 1] == [None]

    run(main())


def test_a_selector_of_a_group_may_be_a_part_of_another() -> None:
    assert 2 * grouping.SELECTOR_MAX <= LENGTH_MAX


def test_what_makes_no_sense_is_refused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            with pytest.raises(RequestError, match="there is no queue"):
                await ask(broker, CountDeadLetters(DEAD))
            await put(broker, [(B, "x")])
            with pytest.raises(RequestError, match="selector"):
                await ask(broker, CountDeadLetters(DEAD, selector="a = = b"))

    run(main())
