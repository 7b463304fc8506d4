"""Purges that can be undone: what was purged is kept in a queue of its own for a while."""

from __future__ import annotations

import msgspec
import pytest
from broker_harness import Broker
from operated import ME, ask, filled
from virtual_loop import run

from tidegate.broker.purged import LOOK_EVERY_US, kept_name, origin_of
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    AccessError,
    Action,
    AuditEvent,
    AuditKind,
    Identity,
    RequestError,
    Verdict,
)
from tidegate.spi.operate import (
    KEPT_S,
    BrowseMessages,
    CountDeadLetters,
    CreateDestination,
    Done,
    ListPurged,
    MoveMessages,
    PurgeDestination,
    PurgedRow,
    RetryMessages,
    UndoPurge,
)

A = "queue://a"
HOUR = 3600 * 1_000_000


async def bodies(broker: Broker, destination: str) -> list[bytes]:
    page = await ask(broker, BrowseMessages(destination))
    return [row.body for row in page.rows]


def numbers(*found: int) -> list[bytes]:
    return [str(number).encode() for number in found]


@pytest.mark.parametrize("name", ["a", "a.b", "a b\u20ac", "$purgedx.1.a", "1.2"])
def test_the_name_of_a_kept_queue_says_what_and_until_when(name: str) -> None:
    assert origin_of(kept_name(f"queue://{name}", 17)) == (f"queue://{name}", 17)
    assert origin_of(f"queue://{name}") is None


@pytest.mark.parametrize(
    "name", ["$purged", "$purged.", "$purged.17", "$purged.x.a", "$purged.17."]
)
def test_other_names_are_of_no_kept_queue(name: str) -> None:
    assert origin_of(f"queue://{name}") is None


def test_a_purge_is_undone_in_order_all_or_some_of_it() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 6)
            until = broker.core.writer.now() + HOUR
            purge = PurgeDestination(A, "n <> '2'", keep_until=until)
            done = await ask(broker, purge)
            assert (done.count, done.is_complete) == (5, True)
            kept = kept_name(A, until)
            assert kept in done.note
            assert await bodies(broker, A) == numbers(2)
            # Nobody is given them, who asks for everything or for this.
            client = await broker.client()
            for number, wanted in enumerate(("queue://>", "queue://*.*.*", kept)):
                client.subscribe(wanted, str(number))
            await broker.settle()
            assert client.bodies() == numbers(2)
            client.connection.disconnect(graceful=False)
            await broker.settle()
            page = await ask(broker, ListPurged())
            assert page.rows == (PurgedRow(kept, A, 5, until),)
            assert not (await ask(broker, ListPurged("b"))).rows
            assert await ask(broker, UndoPurge(kept, "n = '4'")) == Done(
                1, after=done.through + 5, through=done.through + 5
            )
            assert await bodies(broker, A) == numbers(2, 4)
            assert (await ask(broker, UndoPurge(kept))).count == 4
            assert await bodies(broker, A) == numbers(2, 4, 0, 1, 3, 5)
            assert not (await ask(broker, ListPurged())).rows
            with pytest.raises(RequestError, match="there is no queue"):
                await ask(broker, UndoPurge(kept))

    run(main())


def test_a_purge_that_fails_keeps_no_empty_queue() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 2)
            until = broker.core.writer.now() + HOUR
            with pytest.raises(RequestError, match="selector"):
                await ask(broker, PurgeDestination(A, "n = = 1", keep_until=until))
            assert await bodies(broker, A) == numbers(0, 1)
            assert not (await ask(broker, ListPurged())).rows
            assert kept_name(A, until) not in broker.core.destinations.queues

    run(main())


async def sequences(broker: Broker, destination: str) -> list[int]:
    page = await ask(broker, BrowseMessages(destination))
    return [row.sequence for row in page.rows]


def test_chosen_messages_are_purged_and_some_of_those_are_back() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 9)
            before = await sequences(broker, A)
            chosen = [before[number] for number in (7, 1, 2, 3, 5)]
            until = broker.core.writer.now() + HOUR
            # What is not there, twice there or not published yet changes nothing.
            wanted = (*chosen, chosen[0], 0, before[-1] + 100)
            purge = PurgeDestination(A, keep_until=until, sequences=wanted)
            done = await ask(broker, purge)
            assert (done.count, done.is_complete) == (5, True)
            assert await bodies(broker, A) == numbers(0, 4, 6, 8)
            assert (await ask(broker, purge)).count == 0
            kept = kept_name(A, until)
            assert await bodies(broker, kept) == numbers(1, 2, 3, 5, 7)
            some = (await sequences(broker, kept))[1:4]
            assert (await ask(broker, UndoPurge(kept, sequences=tuple(some)))).count == 3
            assert await bodies(broker, kept) == numbers(1, 7)
            assert await bodies(broker, A) == numbers(0, 4, 6, 8, 2, 3, 5)

    run(main())


def test_no_chosen_message_is_none_and_not_all() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 2)
            until = broker.core.writer.now() + HOUR
            for keep in (0, until):
                for none in ((), (1 << 40,)):
                    purge = PurgeDestination(A, keep_until=keep, sequences=none)
                    assert await ask(broker, purge) == Done()
            assert await bodies(broker, A) == numbers(0, 1)
            # Nor is a queue left in which nothing is kept.
            assert not (await ask(broker, ListPurged())).rows

    run(main())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_chosen_messages_in_steps_are_gone_on_with(count: int) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 8)
            before = await sequences(broker, A)
            chosen = tuple(before[number] for number in (0, 2, 3, 4, 5, 7))
            until = broker.core.writer.now() + HOUR
            request = PurgeDestination(
                A, "n <> '3'", count_max=count, keep_until=until, sequences=chosen
            )
            total = 0
            while total < 5:
                done = await ask(broker, request)
                total += done.count
                assert done.count <= count
                request = msgspec.structs.replace(request, after=done.after, through=done.through)
            assert await bodies(broker, kept_name(A, until)) == numbers(0, 2, 4, 5, 7)
            assert await bodies(broker, A) == numbers(1, 3, 6)

    run(main())


def test_a_group_of_dead_letters_is_purged_and_back_as_it_was() -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(">", max_deliveries=1)) as broker:
            dead = "queue://DLQ.a"
            for queue in (A, "queue://b"):
                await filled(broker, 3, queue)
                client = await broker.client()
                client.subscribe(queue)
                await broker.settle()
                consumer = client.connection.consumers["s"]
                client.connection.reject("s", list(consumer.in_flight))
                await broker.settle()
                client.connection.disconnect(graceful=True)
                await broker.settle()
            await ask(broker, MoveMessages("queue://DLQ.b", dead))
            groups = (await ask(broker, CountDeadLetters(dead))).groups
            assert [group.count for group in groups] == [3, 3]
            (group,) = [group for group in groups if group.origin == "queue://b"]
            until = broker.core.writer.now() + HOUR
            purge = PurgeDestination(dead, group.selector, keep_until=until)
            assert (await ask(broker, purge)).count == 3
            (left,) = (await ask(broker, CountDeadLetters(dead))).groups
            assert left.origin == A
            kept = kept_name(dead, until)
            assert (await ask(broker, ListPurged("dlq"))).rows == (PurgedRow(kept, dead, 3, until),)
            assert (await ask(broker, UndoPurge(kept))).count == 3
            assert sorted((await ask(broker, CountDeadLetters(dead))).groups, key=str) == sorted(
                groups, key=str
            )
            # They still know where they come from.
            assert (await ask(broker, RetryMessages(dead, group.selector))).count == 3
            assert await bodies(broker, "queue://b") == numbers(0, 1, 2)

    run(main())


def test_what_was_not_undone_in_time_is_gone() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            now = broker.core.writer.now()
            for count, hours in ((1, 1), (1, 3)):
                await ask(
                    broker, PurgeDestination(A, count_max=count, keep_until=now + hours * HOUR)
                )
            rows = (await ask(broker, ListPurged())).rows
            assert [row.until for row in rows] == [now + 3 * HOUR, now + HOUR]
            broker.core.step_us += 2 * HOUR
            broker.core.purged_queues.look(LOOK_EVERY_US)
            await broker.settle()
            rows = (await ask(broker, ListPurged())).rows
            assert [row.until for row in rows] == [now + 3 * HOUR]
            assert await bodies(broker, rows[0].kept) == numbers(1)
            assert await bodies(broker, A) == numbers(2)

    run(main())


def test_what_makes_no_sense_is_refused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 1)
            now = broker.core.writer.now()
            for until in (1, now, now + KEPT_S * 1_000_000 + 2_000_000):
                with pytest.raises(RequestError, match="from now"):
                    await ask(broker, PurgeDestination(A, keep_until=until))
            with pytest.raises(RequestError, match="list-purged"):
                await ask(broker, UndoPurge(A))
            await ask(broker, PurgeDestination(A, keep_until=now + HOUR))
            kept = kept_name(A, now + HOUR)
            with pytest.raises(RequestError, match="a second time"):
                await ask(broker, PurgeDestination(kept, keep_until=now + HOUR))
            gone = kept_name("queue://gone", now + HOUR)
            await ask(broker, CreateDestination(gone))
            with pytest.raises(RequestError, match="queue://gone"):
                await ask(broker, UndoPurge(gone))

    run(main())


class Guard:
    """Refuses one action of operators on A, and hears what was done."""

    def __init__(self) -> None:
        self.refused: Action | None = None
        self.events: list[AuditEvent] = []

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        is_refused = action is self.refused and destination in ("", A) and identity == ME
        return Verdict.DENY if is_refused else Verdict.ALLOW

    def audit(self, event: AuditEvent) -> None:
        if event.kind is AuditKind.OPERATED:
            self.events.append(event)


def test_each_request_needs_its_rights_and_auditors_hear_of_what_was_done() -> None:
    async def main() -> None:
        guard = Guard()
        async with Broker(extensions=[guard]) as broker:
            await filled(broker, 1)
            until = broker.core.writer.now() + HOUR
            kept = kept_name(A, until)
            for request, rights in (
                (PurgeDestination(A, keep_until=until), (Action.ADMIN, Action.DELETE)),
                (ListPurged(), (Action.ADMIN,)),
                (UndoPurge(kept), (Action.ADMIN, Action.DELETE, Action.PUBLISH)),
            ):
                before = (await bodies(broker, A), len(guard.events))
                for guard.refused in rights:
                    with pytest.raises(AccessError):
                        await ask(broker, request)
                guard.refused = None
                assert before == (await bodies(broker, A), len(guard.events))
                await ask(broker, request)
            assert [(event.action, event.destination, event.detail) for event in guard.events] == [
                (Action.DELETE, A, f"purged 1 messages, which are in {kept}"),
                (Action.PUBLISH, A, "took 1 purged messages back"),
            ]

    run(main())
