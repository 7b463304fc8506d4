"""A queue holds so much and no more, in messages and bytes; each act does what it says."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest
from broker_harness import START_US, Broker, Client
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from limited import DEAD, QUEUE, TOPIC, bodies, consume, policy, send
from virtual_loop import run

from tidegate.broker.limits.list_limit import ListLimit
from tidegate.broker.limits.overflow import Overflow, Overflows
from tidegate.config import DestinationPolicy
from tidegate.spi import MESSAGE_OVERHEAD_BYTES, AddMessage, FlowControlError, ListOverflow

# --- what each act does ---------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False], ids=["in one turn", "in many turns"])
@pytest.mark.parametrize("limit", [{"messages_max": 5}, {"bytes_max": 5}], ids=str)
@pytest.mark.parametrize(
    ("overflow", "kept", "refused"),
    [("refuse", range(5), 4), ("drop_newest", range(5), 0), ("drop_oldest", range(4, 9), 0)],
)
def test_what_is_kept_of_a_queue_at_its_limit_is_what_the_policy_says(
    overflow: str, kept: range, refused: int, limit: dict[str, int], *, at_once: bool
) -> None:
    async def main() -> None:
        async with Broker(policy(overflow, **limit)) as broker:
            sender = await broker.client()
            assert await send(broker, sender, range(9), at_once=at_once) == refused
            assert broker.core.flow.dropped == 4 - refused
            assert broker.store.pending(QUEUE) == bodies(kept)
            assert await consume(broker) == bodies(kept)
            assert await send(broker, sender, range(5)) == 0  # below the limit again

    run(main())


def test_with_slow_producers_wait_until_there_is_room_and_nothing_is_lost() -> None:
    async def main() -> None:
        async with Broker(policy(messages_max=5)) as broker:
            sender, other = await broker.client(), await broker.client()
            for number in range(5):
                assert not sender.is_paused
                sender.send(QUEUE, f"{number}")
            assert sender.is_paused  # at once, not only when it is durable
            await broker.settle()
            other.send("queue://other", "x")
            assert not other.is_paused
            other.send(QUEUE, "5")  # it had been read already
            assert other.is_paused
            await broker.settle()
            consumer = await broker.client()
            consumer.subscribe(QUEUE, prefetch_count=2)
            await broker.settle()
            assert sender.is_paused  # what is in flight counts
            consumer.ack_all()
            await broker.settle()
            assert not sender.is_paused
            assert not other.is_paused
            consumer.on_deliver = lambda key, _: consumer.ack_all(key)
            consumer.ack_all()
            await broker.settle()
            assert consumer.bodies() == bodies(range(6))

    run(main())


def test_a_producer_whose_message_breaks_the_limit_is_disconnected_behind_its_confirmations() -> (
    None
):
    async def main() -> None:
        async with Broker(policy("disconnect", messages_max=2)) as broker:
            for how in ("plain", "numbered", "committed"):
                sender, other = await broker.client(), await broker.client()
                for number in range(2 - len(broker.store.pending(QUEUE))):
                    sender.send(QUEUE, f"{number}", f"token {number}")
                sender.connection.begin("t")
                sender.send(QUEUE, "too many", transaction="t")

                def publish(sender: Client = sender, how: str = how) -> None:
                    if how == "committed":
                        sender.connection.commit("t")
                    else:
                        sender.send(QUEUE, "too many", duplicate_id="1" * (how == "numbered"))

                with pytest.raises(FlowControlError, match="messages_max"):
                    publish()
                await broker.settle()
                assert isinstance(sender.ended, FlowControlError)
                assert other.ended is None
            assert broker.store.pending(QUEUE) == bodies(range(2))

    run(main())


def test_with_a_wait_producers_are_slowed_first_and_then_refused() -> None:
    async def main() -> None:
        async with Broker(policy("refuse", messages_max=2, overflow_wait=30)) as broker:
            sender = await broker.client()
            assert await send(broker, sender, range(3)) == 0
            assert sender.is_paused
            await asyncio.sleep(29)
            assert sender.is_paused
            assert len(await consume(broker)) == 3  # in time
            assert not sender.is_paused
            assert await send(broker, sender, range(3)) == 0
            assert sender.is_paused
            await asyncio.sleep(31)
            await broker.settle()
            assert not sender.is_paused
            assert await send(broker, sender, range(3, 5)) == 2
            assert not sender.is_paused
            assert await consume(broker) == bodies(range(3))
            assert await send(broker, sender, range(2)) == 0

    run(main())


def test_a_slow_client_is_disconnected_once_and_gets_what_waits_when_it_comes_back() -> None:
    async def main() -> None:
        limited = DestinationPolicy(
            match=">", subscription_messages_max=3, subscription_overflow="disconnect"
        )
        async with Broker(limited) as broker:
            sender = await broker.client()
            for _ in range(2):
                client = await broker.client(
                    "mqtt", "c", session_expiry=1000, prefetch_count=10, clean_start=False
                )
                if not client.result.session_present:
                    client.subscribe(TOPIC, durable_name="s", qos=1, prefetch_count=1)
                await broker.settle()
                for number in range(5):
                    sender.send(TOPIC, f"{number}")
                    await broker.settle()
                assert client.ended is None or isinstance(client.ended, FlowControlError)
                if client.ended is None:
                    client.connection.disconnect(graceful=True)
            (pending_list,) = broker.core.destinations.durable.values()
            assert pending_list.cursor.size == 3
            assert broker.core.flow.dropped == 7
            client = await broker.client(
                "mqtt", "c", session_expiry=1000, prefetch_count=10, clean_start=False
            )
            client.on_deliver = lambda key, _: client.ack_all(key)
            await broker.settle()
            assert [m.message.body for _, m in client.deliveries] == bodies(range(3))
            assert client.ended is None

    run(main())


# --- restart, transactions, several lists ---------------------------------------------------------


def test_messages_and_bytes_from_before_the_start_count() -> None:
    async def main() -> None:
        for limit in ({"messages_max": 6}, {"bytes_max": 600}):
            async with Broker(policy("refuse", **limit)) as broker:
                sender = await broker.client()
                for _ in range(5):
                    sender.send(QUEUE, "x" * 100)
                await broker.settle()
                await broker.kill()
                sender = await broker.client()
                sender.send(QUEUE, "y" * 100)
                with pytest.raises(FlowControlError, match=next(iter(limit))):
                    sender.send(QUEUE, "z")
                await broker.settle()
                assert len(broker.store.pending(QUEUE)) == 6

    run(main())


@pytest.mark.parametrize("limit", [{"messages_max": 3}, {"bytes_max": 3}], ids=str)
def test_a_commit_that_does_not_fit_is_refused_as_a_whole(limit: dict[str, int]) -> None:
    async def main() -> None:
        async with Broker(policy("refuse", **limit)) as broker:
            sender = await broker.client()
            sender.send(QUEUE, "0")
            sender.connection.begin("t")
            for number in range(1, 4):
                sender.send(QUEUE, f"{number}", transaction="t")
                sender.send("queue://other", f"{number}", transaction="t")
            with pytest.raises(FlowControlError):
                sender.connection.commit("t")
            await broker.settle()
            assert len(broker.store.operations(AddMessage)) == 1
            assert await consume(broker) == [b"0"]
            sender.connection.commit("t")
            await broker.settle()
            assert broker.store.pending(QUEUE) == bodies(range(1, 4))
            assert broker.store.pending("queue://other") == bodies(range(1, 4))

    run(main())


def test_of_several_lists_one_that_refuses_refuses_for_all_and_one_that_drops_only_for_itself() -> (
    None
):
    async def main() -> None:
        def of(name: str, overflow: str) -> DestinationPolicy:
            return DestinationPolicy(
                match=f"topic://{name}",
                subscription_messages_max=2,
                subscription_overflow=overflow,
            )

        async with Broker(of("a.*", "refuse"), of("*.b", "drop_newest")) as broker:
            sender = await broker.client()
            clients: dict[str, Client] = {}
            for name in ("a.*", "*.b", "a.b"):
                client = clients[name] = await broker.client(
                    "mqtt", name, session_expiry=1000, prefetch_count=10
                )
                client.subscribe(f"topic://{name}", durable_name="s", qos=1)
                await broker.settle()
                client.connection.disconnect(graceful=True)
            for number in range(4):
                sender.send("topic://x.b", f"{number}")  # fills *.b, and goes on
            await broker.settle()
            refused = 0
            for number in range(4):
                try:
                    sender.send("topic://a.b", f"{number}")
                except FlowControlError:
                    refused += 1
            await broker.settle()
            assert refused == 2
            for name, count in (("a.*", 2), ("*.b", 2), ("a.b", 2)):
                again = await broker.client(
                    "mqtt", name, session_expiry=1000, prefetch_count=10, clean_start=False
                )
                await broker.settle()
                assert len(again.deliveries) == count, name

    run(main())


# --- who is told ----------------------------------------------------------------------------------


def test_an_overflow_is_told_when_it_begins_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[ListOverflow] = []

    async def main() -> None:
        async with Broker(policy("drop_oldest", messages_max=10)) as broker:
            broker.core.limits.overflows.announce = told.append
            sender = await broker.client()
            await send(broker, sender, range(15))
            assert broker.core.client_counts()["overflow.lists"] == 1
            assert broker.core.client_counts()["overflow.dropped"] == 5
            assert broker.core.client_counts()["overflow.last"] == "destination='queue://q'"
            await consume(broker)
            assert broker.core.client_counts()["overflow.lists"] == 0

    with caplog.at_level(logging.INFO, "tidegate.broker.limit"):
        run(main())
    texts = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.limit"]
    begun = "destination='queue://q' limit=10 overflow=drop_oldest: messages are dropped"
    assert texts[:2] == [
        f"{begun} until consumers take some",
        "destination='queue://q' dropped=5 dead_lettered=0 refused=0: below the limit again",
    ]
    common = ("queue://q", "", "", "", "drop_oldest")
    assert told == [
        ListOverflow(*common, dropped=1, dead_lettered=0, refused=0, is_over=False),
        ListOverflow(*common, dropped=5, dead_lettered=0, refused=0, is_over=True),
    ]


def test_a_list_that_stops_its_producers_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Broker(policy(bytes_max=1 << 10)) as broker:
            sender = await broker.client()
            sender.send(QUEUE, "x" * 2000)
            await broker.settle()
            assert sender.is_paused
            assert broker.core.client_counts()["overflow.lists"] == 1

    run(main())
    (text,) = [r.getMessage() for r in caplog.records if r.name == "tidegate.broker.limit"]
    assert text == (
        "destination='queue://q' limit=1kb overflow=slow: messages are held back with their"
        " producers until consumers take some"
    )


def list_limits() -> list[ListLimit]:
    gc.collect()
    return [item for item in gc.get_objects() if type(item) is ListLimit]


def test_a_queue_that_is_deleted_is_not_kept_until_its_messages_would_be_too_old() -> None:
    async def main() -> None:
        others = list_limits()  # what tests before this one left
        async with Broker(DestinationPolicy(match=">", age_max=7 * 86400)) as broker:
            client = await broker.client()
            client.send("queue://q", "0", received_at=START_US)
            await asyncio.sleep(5)  # its age was looked at
            await broker.settle()
            broker.core.destinations.remove_queue("queue://q", "deleted")
            await broker.settle()
            await asyncio.sleep(5)
            assert [item for item in list_limits() if item not in others] == []

    run(main())


def test_what_could_not_be_moved_from_a_list_that_is_gone_begins_no_overflow() -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(match=">", messages_max=1)) as broker:
            pending_list = broker.core.destinations.queue_list("queue://q")
            overflows = Overflows()
            overflow = Overflow(overflows, pending_list, "drop_oldest")
            overflow.dead_lettered(3, "1")
            overflow.end()
            overflow.dead_lettered(-3, "1")
            assert (overflows.lists, overflows.dead_lettered) == (0, 0)
            assert not overflow.is_on
            await broker.settle()

    run(main())


def test_a_queue_without_a_limit_costs_nothing() -> None:
    async def main() -> None:
        async with Broker() as broker:
            sender = await broker.client()
            await send(broker, sender, range(3))
            assert broker.queue("q").limit is None
            assert broker.core.writer.on_written is None

    run(main())


# --- any course of events -------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "commit"]), st.integers(1, 5)),
        st.tuples(st.sampled_from(["acknowledge", "reject"]), st.integers(1, 3)),
        st.tuples(st.sampled_from(["leave", "come", "restart", "wait"]), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=STEPS,
    overflow=st.sampled_from(["refuse", "drop_oldest", "drop_newest", "disconnect"]),
    limit=st.integers(1, 8),
    heavy=st.booleans(),
    dead=st.booleans(),
)
def test_every_message_is_refused_or_in_one_place_and_the_limit_holds(
    steps: list[tuple[str, int]], overflow: str, limit: int, *, heavy: bool, dead: bool
) -> None:
    """Beside a model that knows only what was accepted, taken, and how much may wait."""
    drops = overflow.startswith("drop")

    async def main() -> None:
        bound = {"bytes_max" if heavy else "messages_max": limit}
        small = 3 * (MESSAGE_OVERHEAD_BYTES + 10)
        chosen = policy(
            overflow,
            overflow_dead_letter=dead and drops,
            memory_limit=small,
            page_count=2,
            max_deliveries=0,
            **bound,
        )
        async with Broker(chosen) as broker:
            consumer: Client | None = None
            accepted: list[bytes] = []
            taken: set[bytes] = set()
            number = dropped = 0
            for what, count in steps:
                if what in ("publish", "commit"):
                    sender = await broker.client()
                    texts = [b"%c" % (65 + number + offset) for offset in range(count)]
                    number += count
                    if what == "commit":
                        sender.connection.begin("t")
                        for text in texts:
                            sender.send(QUEUE, text, transaction="t")
                        try:
                            sender.connection.commit("t")
                            accepted += texts
                        except FlowControlError:
                            pass
                    else:
                        for text in texts:
                            try:
                                sender.send(QUEUE, text)
                                accepted.append(text)
                            except FlowControlError:
                                pass
                            await broker.settle()
                            if sender.ended is not None:
                                break
                    await broker.settle()
                    if sender.ended is None:
                        sender.connection.disconnect(graceful=True)
                elif what == "come" and consumer is None:
                    consumer = await broker.client()
                    consumer.subscribe(QUEUE, prefetch_count=2)
                elif what == "leave" and consumer is not None:
                    consumer.connection.disconnect(graceful=True)
                    consumer = None
                elif what in ("acknowledge", "reject") and consumer is not None:
                    in_flight = consumer.connection.consumers["s"].in_flight
                    sequences = list(in_flight)[:count]
                    if what == "acknowledge":
                        taken |= {in_flight[i][0].message.body for i in sequences}
                        consumer.connection.acknowledge("s", sequences)
                    else:
                        consumer.connection.reject("s", sequences)
                elif what == "restart":
                    await broker.settle()
                    consumer = None
                    dropped += broker.core.limits.overflows.dropped
                    await broker.kill()
                elif what == "wait":
                    await asyncio.sleep(2)
                await broker.settle()
                window = 2 if overflow == "drop_oldest" else 0  # in flight: not dropped
                waiting = broker.store.pending(QUEUE)
                assert len(waiting) <= limit + window
                lost = broker.core.limits.overflows.dropped + dropped
                moved = broker.store.pending(DEAD)
                known = [*waiting, *moved, *taken]
                assert len(known) == len(set(known))
                assert set(known) <= set(accepted)
                assert len(known) + lost == len(accepted)
                if dead or not drops:
                    assert lost == 0
            if consumer is not None:
                consumer.connection.disconnect(graceful=True)

    run(main())
