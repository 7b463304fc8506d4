"""A durable subscription holds so many messages and no more; what happens then is the policy's."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from broker_harness import Broker, Client
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual_loop import run

from tidegate.broker.limits import ledger
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    AddMessage,
    Discard,
    DiscardReason,
    FlowControlError,
)

OVERFLOWS = pytest.mark.parametrize("overflow", ["refuse", "drop_oldest", "drop_newest"])


def policy(overflow: str, limit: int = 5, **more: Any) -> DestinationPolicy:
    return DestinationPolicy(
        match=">", subscription_messages_max=limit, subscription_overflow=overflow, **more
    )


def bodies(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def away(broker: Broker, name: str = "d", topic: str = "topic://t") -> None:
    """A durable subscription whose client has gone."""
    client = await broker.client("stomp", f"client of {name}")
    client.subscribe(topic, durable_name=name)
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()


async def received(broker: Broker, name: str = "d", topic: str = "topic://t") -> list[bytes]:
    """What the subscription holds, by taking it; it is empty afterwards."""
    client = await broker.client("stomp", f"client of {name}")
    client.on_deliver = lambda key, _: client.ack_all(key)
    client.subscribe(topic, durable_name=name)
    await broker.settle()
    client.connection.disconnect(graceful=True)
    await broker.settle()
    return client.bodies()


def send(client: Client, numbers: range, topic: str = "topic://t") -> int:
    """Publish. Returns: how many were refused."""
    refused = 0
    for number in numbers:
        try:
            client.send(topic, f"{number}")
        except FlowControlError:
            refused += 1
    return refused


@pytest.mark.parametrize("at_once", [True, False], ids=["in one turn", "in many turns"])
@pytest.mark.parametrize(
    ("overflow", "kept", "refused"),
    [
        ("refuse", range(5), 7),
        ("drop_newest", range(5), 0),
        ("drop_oldest", range(7, 12), 0),
    ],
)
def test_what_is_kept_at_the_limit_is_what_the_policy_says(
    overflow: str, kept: range, refused: int, *, at_once: bool
) -> None:
    async def main() -> None:
        async with Broker(policy(overflow)) as broker:
            await away(broker)
            sender = await broker.client()
            other = await broker.client("mqtt", "other")
            other.subscribe("topic://t", qos=0)
            failed = 0
            for number in range(12):
                failed += send(sender, range(number, number + 1))
                if not at_once:
                    await broker.settle()
            await broker.settle()
            assert failed == refused
            assert broker.core.flow.dropped == 7 - refused
            assert other.bodies() == bodies(range(5) if refused else range(12))
            assert await received(broker) == bodies(kept)
            assert send(sender, range(20, 25)) == 0  # below the limit again
            await broker.settle()
            assert await received(broker) == bodies(range(20, 25))

    run(main())


def test_a_refused_publish_changes_nothing_and_the_log_says_which_subscription_is_full() -> None:
    async def main() -> None:
        async with Broker(policy("refuse", 1)) as broker:
            await away(broker)
            sender = await broker.client()
            sender.send("topic://t", "1", retain=True)
            await broker.settle()
            sequence, batches = broker.core.writer.next_sequence, len(broker.store.batches)
            for retain in (False, True):
                with pytest.raises(
                    FlowControlError, match="a subscription to this destination has 1 pending mess"
                ):
                    sender.send("topic://t", "2", retain=retain)
            await broker.settle()
            assert (broker.core.writer.next_sequence, len(broker.store.batches)) == (
                sequence,
                batches,
            )
            kept = broker.core.retained.get("topic://t")
            assert kept is not None
            assert (kept.body, len(broker.core.retained)) == (b"1", 1)
            assert await received(broker) == [b"1"]

    run(main())


def test_other_destinations_and_lists_without_storing_are_not_limited() -> None:
    async def main() -> None:
        async with Broker(policy("refuse", 1)) as broker:
            await away(broker)
            sender = await broker.client()
            live = await broker.client()
            live.subscribe("topic://t", prefetch_count=1)  # stored, but not durable
            sender.send("topic://t", "1")
            await broker.settle()
            with pytest.raises(FlowControlError):
                sender.send("topic://t", "2")
            for number in range(10):
                sender.send("topic://u", f"{number}")
                sender.send("queue://q", f"{number}")
                sender.send("topic://t", f"{number}", qos=0)  # not stored for the subscription
            await broker.settle()
            assert broker.store.pending("queue://q") == bodies(range(10))
            live.connection.disconnect(graceful=True)
            assert await received(broker) == [b"1"]
            for number in range(3):
                await received(broker)
                sender.send("topic://t", f"{number}")
                await broker.settle()

    run(main())


def test_messages_that_are_being_written_and_those_that_wait_for_it_count() -> None:
    async def main() -> None:
        async with Broker(policy("refuse", 6)) as broker:
            await away(broker)
            sender = await broker.client()
            broker.store.hold()
            assert send(sender, range(2)) == 0
            await broker.settle()
            assert broker.store.waiting
            assert send(sender, range(2, 5)) == 0
            await broker.settle()
            assert send(sender, range(5, 8)) == 2
            broker.store.release()
            await broker.settle()
            assert send(sender, range(8, 9)) == 1
            assert await received(broker) == bodies(range(6))

    run(main())


@OVERFLOWS
def test_messages_in_flight_count(overflow: str) -> None:
    async def main() -> None:
        async with Broker(policy(overflow, 4)) as broker:
            client = await broker.client("mqtt", "c", session_expiry=100)
            client.subscribe("topic://t", durable_name="s", qos=1, prefetch_count=3)
            sender = await broker.client()
            refused = 0
            for number in range(8):
                refused += send(sender, range(number, number + 1))
                await broker.settle()
            assert client.bodies() == bodies(range(3))
            assert refused == (4 if overflow == "refuse" else 0)
            client.on_deliver = lambda key, _: client.ack_all(key)
            client.ack_all()
            await broker.settle()
            last = {"refuse": [b"3"], "drop_newest": [b"3"], "drop_oldest": [b"7"]}[overflow]
            assert client.bodies()[3:] == last

    run(main())


@OVERFLOWS
def test_the_limit_holds_for_what_was_there_before_the_start(overflow: str) -> None:
    """Also when the limit was lowered meanwhile: the oldest are read page by page to drop them."""

    async def main() -> None:
        async with Broker(policy("refuse", 0, page_count=3)) as broker:
            await away(broker)
            sender = await broker.client()
            assert send(sender, range(20)) == 0
            await broker.settle()
            broker.policies = (policy(overflow, 5, page_count=3),)
            await broker.kill()
            await broker.settle()
            sender = await broker.client()
            refused = send(sender, range(20, 22))
            await broker.settle()
            kept = {
                "refuse": range(20),
                "drop_newest": range(20),
                "drop_oldest": range(17, 22),
            }[overflow]
            assert refused == (2 if overflow == "refuse" else 0)
            discarded = [s for op in broker.store.operations(Discard) for s in op.sequences]
            assert len(discarded) == (17 if overflow == "drop_oldest" else 0)
            assert await received(broker) == bodies(kept)

    run(main())


def test_the_oldest_are_dropped_also_when_they_are_only_in_the_store() -> None:
    small = 2 * (MESSAGE_OVERHEAD_BYTES + 10)

    async def main() -> None:
        async with Broker(policy("drop_oldest", 6, memory_limit=small, page_count=2)) as broker:
            await away(broker)
            sender = await broker.client()
            for number in range(50):
                assert send(sender, range(number, number + 1)) == 0
                if number % 3 == 0:
                    await broker.settle()
            await broker.settle()
            reasons = {op.reason for op in broker.store.operations(Discard)}
            assert reasons == {DiscardReason.DROPPED}
            (list_id,) = broker.contents.subscriptions
            assert len(broker.contents.lists[list_id]) == 6
            assert broker.core.flow.dropped == 44
            assert await received(broker) == bodies(range(44, 50))

    run(main())


def test_what_was_delivered_before_is_not_dropped() -> None:
    """Its packet id is in use: the client gets it again, whatever came meanwhile [MQTT-4.4.0-1]."""

    async def main() -> None:
        async with Broker(policy("drop_oldest", 4)) as broker:
            sender, client = await broker.client(), await broker.client("stomp", "client of d")
            client.subscribe("topic://t", durable_name="d", prefetch_count=2)
            send(sender, range(4))
            await broker.settle()
            assert client.bodies() == bodies(range(2))
            client.connection.disconnect(graceful=True)
            for number in range(4, 10):
                send(sender, range(number, number + 1))
                await broker.settle()
            assert await received(broker) == [*bodies(range(2)), *bodies(range(8, 10))]
            assert broker.core.flow.dropped == 6

    run(main())


def test_when_the_store_is_slow_to_drop_new_messages_are_dropped_instead() -> None:
    """What is above the limit is bounded, whatever the producers do."""

    async def main() -> None:
        async with Broker(policy("drop_oldest", 5, page_count=1, memory_limit=1)) as broker:
            await away(broker)
            sender = await broker.client()
            (pending_list,) = broker.core.destinations.durable.values()
            assert pending_list.limit is not None

            async def never(*_: int) -> list[Any]:
                await asyncio.Event().wait()
                raise AssertionError

            broker.store.page_in = never  # type: ignore[method-assign]
            assert send(sender, range(50)) == 0
            await broker.core.writer.drained()
            assert send(sender, range(50, 100)) == 0
            await broker.core.writer.drained()
            assert pending_list.cursor.size <= 5 + 10

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "MARGIN", 10)
        run(main())


# --- transactions ---------------------------------------------------------------------------------


def test_a_commit_that_would_pass_the_limit_is_refused_as_a_whole() -> None:
    async def main() -> None:
        async with Broker(policy("refuse", 3)) as broker:
            await away(broker)
            sender = await broker.client()
            sender.send("topic://t", "0")
            sender.connection.begin("t")
            for number in range(1, 4):
                sender.send("topic://t", f"{number}", transaction="t", retain=True)
                sender.send("queue://q", f"{number}", transaction="t")
            with pytest.raises(FlowControlError):
                sender.connection.commit("t")
            await broker.settle()
            assert len(broker.store.operations(AddMessage)) == 1
            assert len(broker.core.retained) == 0
            assert await received(broker) == [b"0"]
            sender.connection.commit("t")  # it is still open, and now there is room
            await broker.settle()
            assert broker.store.pending("queue://q") == bodies(range(1, 4))
            assert await received(broker) == bodies(range(1, 4))

    run(main())


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_a_commit_drops_as_other_publishes_do(overflow: str) -> None:
    async def main() -> None:
        async with Broker(policy(overflow, 3)) as broker:
            await away(broker)
            sender = await broker.client()
            sender.connection.begin("t")
            for number in range(5):
                sender.send("topic://t", f"{number}", transaction="t")
            sender.connection.commit("t", "receipt")
            await broker.settle()
            assert sender.confirmations == ["receipt"]
            kept = range(2, 5) if overflow == "drop_oldest" else range(3)
            assert await received(broker) == bodies(kept)

    run(main())


# --- any course of events -------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "commit"]), st.integers(1, 5)),
        st.tuples(st.just("turns"), st.integers(1, 5)),
        st.tuples(st.just("acknowledge"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["leave", "come", "restart"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=examples(200), deadline=None)
@given(
    steps=STEPS,
    overflow=st.sampled_from(["refuse", "drop_oldest", "drop_newest"]),
    limit=st.integers(1, 8),
)
@example(  # a consumer takes what a page brings that was read to make room
    steps=[
        ("publish", 1),
        ("publish", 3),
        ("turns", 1),
        ("publish", 3),
        ("come", 0),
        ("turns", 1),
    ],
    overflow="drop_oldest",
    limit=1,
)
def test_every_message_is_refused_dropped_or_received_in_order_and_the_limit_holds(
    steps: list[tuple[str, int]], overflow: str, limit: int
) -> None:
    async def main() -> None:
        small = 3 * (MESSAGE_OVERHEAD_BYTES + 10)
        chosen = policy(overflow, limit, memory_limit=small, page_count=2, max_deliveries=0)
        async with Broker(chosen) as broker:
            await away(broker)
            sender = await broker.client()
            client: Client | None = None
            got: list[int] = []
            number = dropped = 0
            accepted: list[int] = []

            async def leave() -> None:
                nonlocal client
                if client is not None:
                    client.connection.disconnect(graceful=True)
                    client = None
                await broker.settle()

            for what, count in steps:
                if what == "publish":
                    for _ in range(count):
                        if not send(sender, range(number, number + 1)):
                            accepted.append(number)
                        number += 1
                elif what == "commit":
                    sender.connection.begin("t")
                    for offset in range(count):
                        sender.send("topic://t", f"{number + offset}", transaction="t")
                    try:
                        sender.connection.commit("t")
                        accepted += range(number, number + count)
                    except FlowControlError:
                        sender.connection.abort("t")
                    number += count
                elif what == "turns":
                    for _ in range(count):
                        await asyncio.sleep(0)
                elif what == "acknowledge" and client is not None:
                    consumer = client.connection.consumers["s"]
                    taken = list(consumer.in_flight)[:count]
                    got += [int(consumer.in_flight[i][0].message.body) for i in taken]
                    client.connection.acknowledge("s", taken)
                elif what == "leave":
                    await leave()
                elif what == "come" and client is None:
                    client = await broker.client("stomp", "client of d")
                    client.subscribe("topic://t", durable_name="d", prefetch_count=2)
                elif what == "restart":
                    await leave()
                    dropped += broker.core.flow.dropped
                    await broker.kill()
                    sender = await broker.client()
                if what != "turns":
                    continue
                await broker.settle()
                (list_id,) = broker.contents.subscriptions
                # What was handed out cannot be dropped any more.
                window = 2 if overflow == "drop_oldest" else 0
                assert len(broker.contents.lists[list_id]) <= limit + window
            await leave()
            got += map(int, await received(broker))
            dropped += broker.core.flow.dropped
            assert got == sorted(set(got))
            assert set(got) <= set(accepted)
            assert len(got) + dropped == len(accepted)
            if overflow == "refuse":
                assert dropped == 0

    run(main())


# --- trouble, counting, costs ---------------------------------------------------------------------


@OVERFLOWS
def test_publishes_that_the_full_store_dropped_take_no_room(overflow: str) -> None:
    async def main() -> None:
        async with Broker(policy(overflow, 5)) as broker:
            await away(broker)
            sender = await broker.client()
            broker.store.refuse(1)
            send(sender, range(5))
            await broker.core.writer.drained()
            assert len(sender.failures) == 5
            await asyncio.sleep(10)
            assert send(sender, range(5, 10)) == 0
            await broker.settle()
            assert broker.core.flow.dropped == 0
            assert await received(broker) == bodies(range(5, 10))

    run(main())


@OVERFLOWS
def test_it_is_logged_once_while_it_lasts(overflow: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Broker(policy(overflow, 2)) as broker:
            await away(broker)
            sender = await broker.client()
            for _ in range(2):
                for number in range(6):
                    send(sender, range(number, number + 1))
                    await broker.settle()
                await received(broker)

    with caplog.at_level(logging.WARNING, "tidegate.broker.limit"):
        run(main())
    told = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.limit"]
    assert len(told) == 2
    assert all(
        text.startswith("subscription='d' client='client of d' principal='anonymous' limit=2")
        for text in told
    )


def test_far_from_every_limit_no_publish_makes_a_detour() -> None:
    async def main() -> None:
        async with Broker(policy("refuse", 10_000)) as broker:
            await away(broker)
            sender = await broker.client()
            send(sender, range(8_999))
            await broker.settle()
            assert broker.core.publisher.detours == set()
            send(sender, range(1))
            await broker.settle()
            assert broker.core.publisher.detours == {broker.core.limits}
            assert send(sender, range(1_001)) == 1  # exact from here on
            await broker.settle()
            assert len(await received(broker)) == 10_000
            assert broker.core.publisher.detours == set()

    run(main())


@OVERFLOWS
def test_a_subscription_that_ends_at_its_limit_is_forgotten(overflow: str) -> None:
    async def main() -> None:
        async with Broker(policy(overflow, 2)) as broker:
            await away(broker)
            sender = await broker.client()
            send(sender, range(5))
            await broker.settle()
            client = await broker.client("stomp", "client of d")
            client.subscribe("topic://t", durable_name="d")
            client.connection.unsubscribe("s", forget=True)
            assert broker.core.publisher.detours == set()
            assert send(sender, range(5)) == 0

    run(main())


def test_messages_of_one_turn_that_pass_a_full_list_by_stay_one_group() -> None:
    """They are handed out by route: a new one for each message would cost each a turn of its own."""

    async def main() -> None:
        async with Broker(policy("drop_newest", 1)) as broker:
            await away(broker)
            sender, other = await broker.client(), await broker.client()
            other.subscribe("topic://t")
            send(sender, range(1))
            await broker.settle()
            send(sender, range(1, 50))
            assert len(broker.core.writer.turn.added) == 1
            await broker.settle()
            assert other.bodies() == bodies(range(50))

    run(main())
