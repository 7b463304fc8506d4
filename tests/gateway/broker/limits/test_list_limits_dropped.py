"""What leaves a list at its limit or by its age: dropped, or moved to the dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import START_US, Broker
from limited import DEAD, QUEUE, TOPIC, bodies, consume, policy, send
from virtual_loop import run

from tidegate.broker.limits.list_limit import ListLimit
from tidegate.config import DestinationPolicy
from tidegate.spi import MESSAGE_OVERHEAD_BYTES, BranchId, Discard, Move


def dead_lettering(overflow: str = "slow", **more: Any) -> DestinationPolicy:
    return policy(overflow, overflow_dead_letter=True, **more)


# --- dead letters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overflow", "kept", "dead"),
    [("drop_oldest", range(4, 7), range(4)), ("drop_newest", range(3), range(3, 7))],
)
def test_what_is_dropped_can_move_to_the_dead_letter_queue(
    overflow: str, kept: range, dead: range
) -> None:
    async def main() -> None:
        async with Broker(dead_lettering(overflow, messages_max=3)) as broker:
            sender = await broker.client()
            assert await send(broker, sender, range(7)) == 0
            assert broker.store.pending(QUEUE) == bodies(kept)
            assert broker.store.pending(DEAD) == bodies(dead)
            assert not broker.store.operations(Discard)
            stored = broker.contents.lists[broker.queue("DLQ.q").id]
            for item in stored.values():
                assert dict(item.message.headers) == {
                    "original-destination": QUEUE,
                    "dead-letter-reason": "dropped: the list was full",
                }
            assert broker.core.flow.dropped == 0
            assert broker.core.limits.overflows.dead_lettered == 4
            assert await consume(broker, DEAD) == bodies(dead)

    run(main())


def test_a_dead_letter_that_is_dropped_from_its_queue_is_gone() -> None:
    async def main() -> None:
        everywhere = DestinationPolicy(
            match=">", overflow="drop_oldest", messages_max=2, overflow_dead_letter=True
        )
        async with Broker(everywhere) as broker:
            sender = await broker.client()
            assert await send(broker, sender, range(9)) == 0
            assert broker.store.pending(QUEUE) == bodies(range(7, 9))
            assert broker.store.pending(DEAD) == bodies(range(5, 7))
            assert set(broker.contents.destinations) == {QUEUE, DEAD}
            assert broker.core.limits.overflows.dropped == 5

    run(main())


def test_what_the_full_store_does_not_move_stays_and_is_moved_later() -> None:
    async def main() -> None:
        async with Broker(dead_lettering("drop_oldest", messages_max=2)) as broker:
            sender = await broker.client()
            assert await send(broker, sender, range(3)) == 0
            assert broker.store.pending(DEAD) == [b"0"]
            broker.store.is_full = lambda batch: any(
                isinstance(op, Move) for op in batch.operations
            )
            assert await send(broker, sender, range(3, 4)) == 0
            await broker.core.writer.drained()
            assert broker.store.pending(QUEUE) == bodies(range(1, 4))
            broker.store.is_full = lambda batch: False
            await asyncio.sleep(5)
            assert await send(broker, sender, range(4, 5)) == 0
            assert broker.store.pending(QUEUE) == bodies(range(3, 5))
            assert broker.store.pending(DEAD) == bodies(range(3))

    run(main())


@pytest.mark.parametrize("shared", [False, True], ids=["durable", "shared"])
@pytest.mark.parametrize(
    ("overflow", "kept"), [("drop_oldest", range(4, 7)), ("drop_newest", range(3))]
)
def test_what_a_subscription_drops_becomes_a_dead_letter_of_its_topic(
    overflow: str, kept: range, *, shared: bool
) -> None:
    async def main() -> None:
        limited = DestinationPolicy(
            match="t",
            subscription_messages_max=3,
            subscription_overflow=overflow,
            subscription_overflow_dead_letter=True,
        )
        async with Broker(limited) as broker:
            client = await broker.client("mqtt", "c", session_expiry=1000)
            client.subscribe(
                TOPIC, durable_name="s", qos=1, **({"share_group": "g"} if shared else {})
            )
            await broker.settle()
            client.connection.disconnect(graceful=True)
            sender, other = await broker.client(), await broker.client()
            other.subscribe(TOPIC)
            for number in range(7):
                sender.send(TOPIC, f"{number}", retain=number == 6)
                await broker.settle()
            assert other.bodies() == bodies(range(7))
            dead = [number for number in range(7) if number not in kept]
            assert broker.store.pending("queue://DLQ.t") == [b"%d" % number for number in dead]
            again = await broker.client(
                "mqtt", "c", session_expiry=1000, prefetch_count=10, clean_start=False
            )
            await broker.settle()
            assert [m.message.body for _, m in again.deliveries] == bodies(kept)

    run(main())


def test_the_oldest_are_dropped_also_when_consumers_choose_by_a_selector() -> None:
    async def main() -> None:
        async with Broker(policy("drop_oldest", messages_max=4)) as broker:
            sender, consumer = await broker.client(), await broker.client()
            consumer.subscribe(QUEUE, selector="kind = 'b'", prefetch_count=1)
            for number in range(8):
                kind = "ab"[number % 2]
                sender.send(QUEUE, f"{number}", headers=(("kind", kind),))
                await broker.settle()
            assert consumer.bodies() == [b"1"]  # in flight, so it stays
            assert broker.store.pending(QUEUE) == [b"1", *bodies(range(5, 8))]
            consumer.on_deliver = lambda key, _: consumer.ack_all(key)
            consumer.ack_all()
            await broker.settle()
            assert consumer.bodies() == [b"1", b"5", b"7"]
            assert await consume(broker) == [b"6"]

    run(main())


def test_what_a_prepared_branch_holds_stays_when_the_limit_is_lower_after_a_start() -> None:
    async def main() -> None:
        async with Broker(policy(messages_max=10)) as broker:
            sender, client = await broker.client(), await broker.client()
            await send(broker, sender, range(6))
            client.subscribe(QUEUE, prefetch_count=2)
            await broker.settle()
            client.connection.begin("t")
            client.connection.acknowledge("s", client.sequences(), transaction="t")
            branch = BranchId(1, b"g", b"q")
            client.connection.prepare("t", branch)
            await broker.settle()
            broker.policies = (policy("drop_oldest", messages_max=3),)
            await broker.kill()
            await broker.settle()
            assert broker.store.pending(QUEUE) == [*bodies(range(2)), b"5"]
            client = await broker.client()
            client.connection.commit_branch(branch)
            await broker.settle()
            assert await consume(broker) == [b"5"]

    run(main())


# --- age ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_limit", [1 << 20, 2 * (MESSAGE_OVERHEAD_BYTES + 10)])
@pytest.mark.parametrize("dead", [False, True], ids=["dropped", "dead letters"])
def test_what_waits_too_long_leaves_the_queue(memory_limit: int, *, dead: bool) -> None:
    async def main() -> None:
        more: dict[str, Any] = {"age_max": 60, "memory_limit": memory_limit, "page_count": 2}
        async with Broker((dead_lettering if dead else policy)(**more)) as broker:
            sender = await broker.client()
            for number in range(9):
                await send(broker, sender, range(number, number + 1), received_at=broker.core.now())
                await asyncio.sleep(10 if number < 8 else 5)
            await broker.settle()
            # Sent at 0, 10, …, 80; it is 85 now.
            assert broker.store.pending(QUEUE) == bodies(range(3, 9))
            assert broker.store.pending(DEAD) == (bodies(range(3)) if dead else [])
            await asyncio.sleep(25)
            await broker.settle()
            assert await consume(broker) == bodies(range(6, 9))
            assert broker.core.flow.dropped == (0 if dead else 6)
            await asyncio.sleep(200)
            await send(broker, sender, range(9, 10), received_at=broker.core.now())
            await asyncio.sleep(50)
            assert await consume(broker) == [b"9"]

    run(main())


def test_what_was_too_old_before_the_start_leaves_and_what_is_in_flight_does_not() -> None:
    async def main() -> None:
        async with Broker(policy(age_max=60, page_count=2)) as broker:
            sender = await broker.client()
            await send(broker, sender, range(7), received_at=START_US)
            await broker.kill()
            sender, consumer = await broker.client(), await broker.client()
            consumer.subscribe(QUEUE, prefetch_count=2)
            await broker.settle()
            await asyncio.sleep(100)
            await broker.settle()
            assert broker.store.pending(QUEUE) == bodies(range(2))
            consumer.ack_all()
            await broker.settle()
            assert broker.store.pending(QUEUE) == []

    run(main())


def test_without_a_message_that_is_due_nothing_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    let_go_before = ListLimit.let_go_before

    def counted(limit: ListLimit, horizon: int) -> None:
        looks.append(horizon)
        let_go_before(limit, horizon)

    monkeypatch.setattr(ListLimit, "let_go_before", counted)

    async def main() -> None:
        async with Broker(policy(age_max=3600)) as broker:
            sender = await broker.client()
            await send(broker, sender, range(1), received_at=broker.core.now())
            await asyncio.sleep(3000)
            assert len(looks) == 1  # when it came, to know when it is due
            await asyncio.sleep(1000)
            assert len(looks) == 2
            assert broker.store.pending(QUEUE) == []

    run(main())
