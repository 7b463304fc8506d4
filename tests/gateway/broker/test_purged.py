"""Purges that can be undone: what was purged is kept in a queue of its own for a while."""

from __future__ import annotations

from typing import Any

import pytest
from broker_harness import Broker, run

from tidegate.broker.operate.operations import Operations
from tidegate.broker.purged import LOOK_EVERY_US, kept_name, origin_of
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
    CreateDestination,
    Done,
    ListPurged,
    PurgeDestination,
    PurgedRow,
    UndoPurge,
    perform,
)

ME = Identity("local:me", frozenset(), "", "", "operator")
A = "queue://a"
HOUR = 3600 * 1_000_000


async def ask(broker: Broker, request: Any) -> Any:
    answer = await perform(Operations(broker.core), ME, request)
    await broker.settle()
    return answer


async def filled(broker: Broker, count: int, destination: str = A) -> None:
    client = await broker.client()
    for number in range(count):
        client.send(destination, str(number), headers=(("n", str(number)),))
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()


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
            with pytest.raises(RequestError, match="for good"):
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
