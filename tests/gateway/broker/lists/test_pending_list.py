"""A pending list hands out its messages: order, fairness, redelivery, expiry, paging."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain, pairwise

import pytest
from broker_harness import START_US, Broker, Client

from tidegate.broker.lists import pending_list
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    Discard,
    DiscardReason,
    Move,
    RecordDelivery,
    StoredMessage,
    StoreIOError,
)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


CURSORS = pytest.mark.parametrize("cursor", ["store", "vm", "file"])


def small(cursor: str, messages: int = 10) -> DestinationPolicy:
    """A policy whose cursor has room for a few messages only."""
    limit = messages * (MESSAGE_OVERHEAD_BYTES + 10)
    return DestinationPolicy(match=">", cursor=cursor, memory_limit=limit, page_count=4)


@CURSORS
async def test_a_queue_is_delivered_in_order_also_when_its_memory_is_too_small(cursor: str) -> None:
    async with Broker(small(cursor)) as broker:
        client = await broker.client()
        for number in range(60):
            client.send("queue://q", f"{number}")
            if number % 7 == 0:
                await broker.settle()
        client.subscribe("queue://q", prefetch_count=3)
        client.acknowledge_at_once()
        await broker.settle()
        for number in range(60, 100):
            client.send("queue://q", f"{number}")
        await broker.settle()
        client.ack_all()
        await broker.settle()
        assert client.bodies() == numbers(100)
        assert set(client.counts()) == {0}
        assert broker.store.pending("queue://q") == []


@CURSORS
@pytest.mark.parametrize("consumers", [1, 3])
async def test_a_long_list_is_handed_out_bit_by_bit(
    cursor: str, consumers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_list, "HANDED_OUT_MAX", 10)
    async with Broker(DestinationPolicy(match=">", cursor=cursor)) as broker:
        producer = await broker.client()
        for number in range(95):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        clients = [await broker.client() for _ in range(consumers)]
        for client in clients:
            client.subscribe("queue://q", prefetch_count=1000)
        counts = [0]
        while counts[-1] < 95:
            await asyncio.sleep(0)
            counts.append(broker.core.flow.sent)
        share = 10 if consumers == 1 else 32
        assert max(after - before for before, after in pairwise(counts)) == share
        await broker.settle()
        found = [client.bodies() for client in clients]
        assert sorted(chain(*found)) == sorted(numbers(95))
        for bodies in found:
            assert bodies == sorted(bodies, key=int)
        assert max(map(len, found)) - min(map(len, found)) <= 1


async def test_two_consumers_share_a_backlog_fairly() -> None:
    async with Broker() as broker:
        producer, one, two = [await broker.client() for _ in range(3)]
        for number in range(100):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        one.subscribe("queue://q")
        two.subscribe("queue://q")
        await broker.settle()
        assert len(one.bodies()) == pytest.approx(50, abs=10)
        assert sorted(one.sequences() + two.sequences()) == list(range(1, 101))
        assert one.sequences() == sorted(one.sequences())
        assert two.sequences() == sorted(two.sequences())


async def test_consumers_take_turns_when_messages_come_one_by_one() -> None:
    async with Broker() as broker:
        producer, one, two, three = [await broker.client() for _ in range(4)]
        for client in (one, two, three):
            client.subscribe("queue://q")
            client.acknowledge_at_once()
        for number in range(30):
            producer.send("queue://q", f"{number}")
            await broker.settle()
        assert [len(client.bodies()) for client in (one, two, three)] == [10, 10, 10]


async def test_a_slow_consumer_does_not_stop_the_other_one() -> None:
    async with Broker() as broker:
        producer, slow, quick = [await broker.client() for _ in range(3)]
        slow.subscribe("queue://q", prefetch_count=2)
        quick.subscribe("queue://q", prefetch_count=2)
        quick.acknowledge_at_once()
        for number in range(50):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        for _ in range(50):
            if quick.connection.consumers["s"].in_flight:
                quick.ack_all()
            await broker.settle()
        assert len(slow.bodies()) == 2
        assert len(quick.bodies()) == 48


@CURSORS
async def test_messages_of_a_lost_consumer_return_to_their_place_with_a_raised_count(
    cursor: str,
) -> None:
    async with Broker(small(cursor)) as broker:
        producer, lost, next_one = [await broker.client() for _ in range(3)]
        for number in range(20):
            producer.send("queue://q", f"{number}")
        lost.subscribe("queue://q", prefetch_count=8)
        await broker.settle()
        lost.connection.acknowledge("s", [2, 5])
        await broker.settle()
        assert lost.sequences() == list(range(1, 11))
        lost.connection.disconnect(graceful=False)
        next_one.subscribe("queue://q", prefetch_count=100)
        await broker.settle()
        assert next_one.bodies() == [b"%d" % n for n in range(20) if n + 1 not in (2, 5)]
        assert next_one.counts() == [1] * 8 + [0] * 10
        (recorded,) = broker.store.operations(RecordDelivery)
        assert recorded.sequences == (1, 3, 4, 6, 7, 8, 9, 10)
        assert recorded.delivery_count == (1,) * 8


async def test_the_delivery_count_survives_a_restart() -> None:
    async with Broker() as broker:
        client = await broker.consumer("queue://q", "m")
        client.connection.reject("s", [1])
        await broker.settle()
        assert client.counts() == [0, 1]
        await broker.kill()
        again = await broker.consumer()
        assert again.counts() == [1]


@CURSORS
async def test_what_was_pending_before_a_restart_is_delivered_before_what_came_after(
    cursor: str,
) -> None:
    async with Broker(small(cursor, messages=30)) as broker:
        client = await broker.client()
        for number in range(25):
            client.send("queue://q", f"{number}")
        await broker.settle()
        await broker.kill()
        client = await broker.client()
        for number in range(25, 30):
            client.send("queue://q", f"{number}")
        client.subscribe("queue://q", prefetch_count=100)
        await broker.settle()
        assert client.bodies() == numbers(30)


async def test_messages_that_are_returned_while_a_page_is_read_are_not_delivered_twice() -> None:
    async with Broker(small("store", messages=4)) as broker:
        producer, one, two = [await broker.client() for _ in range(3)]
        for number in range(40):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        two.subscribe("queue://q", prefetch_count=40)
        two.connection.writable(False)
        for _round in range(12):
            one.subscribe("queue://q", prefetch_count=5)

            for _ in range(_round):  # at any moment of dispatch and page-in
                await asyncio.sleep(0)
            one.connection.unsubscribe("s")
        two.connection.writable(True)
        await broker.settle()
        assert two.bodies() == numbers(40)


@pytest.mark.parametrize("error", [StoreIOError("damaged sector"), OSError("a bug of a plugin")])
async def test_the_list_goes_on_when_a_page_could_not_be_read(error: Exception) -> None:
    async with Broker(small("store")) as broker:
        producer = await broker.client()
        for number in range(40):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        reader = await broker.client()
        good = broker.store.inner.page_in
        failures = [error] * 3

        async def page_in(*args: int) -> list[StoredMessage]:
            if failures:
                raise failures.pop()
            return list(await good(*args))

        broker.store.inner.page_in = page_in  # type: ignore[method-assign]
        reader.subscribe("queue://q")
        await broker.core.writer.drained()

        await asyncio.sleep(60)
        assert failures == []
        assert reader.bodies() == numbers(40)


# --- expiry ---------------------------------------------------------------------------------------


@CURSORS
async def test_expired_messages_are_discarded_and_not_delivered(cursor: str) -> None:
    async with Broker(small(cursor, messages=100)) as broker:
        client = await broker.client()
        client.send("queue://q", "expired", expires_at=START_US - 1)
        client.send("queue://q", "valid", expires_at=START_US + 10**12)
        client.send("queue://q", "expired, too", expires_at=START_US)
        client.send("queue://q", "forever")
        await broker.settle()
        client.subscribe("queue://q")
        await broker.settle()
        assert client.bodies() == [b"valid", b"forever"]
        discarded = broker.store.operations(Discard)
        assert [op.sequences for op in discarded] == [(1, 3)]
        assert discarded[0].reason is DiscardReason.EXPIRED
        assert broker.store.pending("queue://q") == [b"valid", b"forever"]


# --- rejection and dead letters -------------------------------------------------------------------


def reject_all(client: Client, key: str = "s") -> None:
    consumer = client.connection.consumers[key]
    client.connection.reject(key, list(consumer.in_flight))


async def test_a_rejected_message_is_redelivered_and_then_moves_to_the_dead_letter_queue_once() -> (
    None
):
    policy = DestinationPolicy(match=">", max_deliveries=3)
    async with Broker(policy) as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "poison", headers=(("a", "1"),), expires_at=START_US + 10**12)
        await broker.settle()
        for _ in range(3):
            reject_all(client)
            await broker.settle()
        assert client.counts() == [0, 1, 2]
        (move,) = broker.store.operations(Move)
        assert move.sequence == 1
        assert broker.store.pending("queue://q") == []
        assert broker.store.pending("queue://DLQ.q") == [b"poison"]
        reader = await broker.consumer("queue://DLQ.q")
        ((_, dead),) = reader.deliveries
        assert dead.delivery_count == 0
        assert dead.message.destination == "queue://DLQ.q"
        assert dead.message.expires_at == 0  # it waits until somebody looks
        assert dead.message.headers == (
            ("a", "1"),
            ("original-destination", "queue://q"),
            ("dead-letter-reason", "rejected after 3 deliveries"),
        )
        for _ in range(10):  # there is nowhere else to go: its reader decides
            reject_all(reader)
            await broker.settle()
        assert len(broker.store.operations(Move)) == 1
        assert broker.store.pending("queue://DLQ.q") == [b"poison"]


async def test_a_dead_letter_that_was_sent_back_may_die_again() -> None:
    """Its headers, which anybody could have written, do not make it immortal."""

    async with Broker(DestinationPolicy(match=">", max_deliveries=1)) as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        forged = (("original-destination", "queue://q"), ("dead-letter-reason", "mine"))
        client.send("queue://q", "again", headers=forged)
        await broker.settle()
        reject_all(client)
        await broker.settle()
        client.subscribe("queue://DLQ.q", "dead")
        await broker.settle()
        ((_, dead),) = [item for item in client.deliveries if item[0] == "dead"]
        assert dead.message.headers == (
            ("original-destination", "queue://q"),
            ("dead-letter-reason", "rejected after 1 delivery"),
        )


async def test_max_deliveries_zero_redelivers_for_ever() -> None:
    async with Broker(DestinationPolicy(match=">", max_deliveries=0)) as broker:
        client = await broker.consumer("queue://q", "m")
        for _ in range(50):
            reject_all(client)
            await broker.settle()
        assert client.counts() == list(range(51))
        assert broker.store.operations(Move) == []


async def test_messages_of_a_topic_subscription_die_into_the_queue_of_their_topic() -> None:
    policy = DestinationPolicy(match=">", max_deliveries=1, dead_letter="DEAD")
    async with Broker(policy) as broker:
        one, two = await broker.client(), await broker.client()
        one.subscribe("topic://t.*")
        two.subscribe("topic://t.*")
        one.send("topic://t.x", "m")
        await broker.settle()
        reject_all(one)
        await broker.settle()
        assert broker.store.pending("queue://DEAD") == [b"m"]
        two.ack_all()  # the other subscription still has it
        await broker.settle()
        assert len(broker.store.operations(Move)) == 1


async def test_a_move_that_found_no_room_returns_the_message_and_is_tried_again() -> None:
    async with Broker(DestinationPolicy(match=">", max_deliveries=1)) as broker:
        client = await broker.consumer("queue://q", "m")
        broker.store.refuse(1)
        reject_all(client)
        await broker.core.writer.drained()
        await broker.settle()
        assert [token for token, _ in client.failures] == [None]
        assert client.counts() == [0, 1]
        assert broker.store.pending("queue://q") == [b"m"]
        reject_all(client)
        await broker.settle()
        assert client.counts() == [0, 1]
        assert broker.store.pending("queue://q") == []
        assert broker.store.pending("queue://DLQ.q") == [b"m"]
        assert len(broker.store.operations(Move)) == 1


async def test_a_move_counts_as_unwritten_until_it_is_durable() -> None:
    async with Broker(DestinationPolicy(match=">", max_deliveries=1)) as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m" * 1000)
        await broker.settle()
        assert broker.core.writer.unwritten_bytes == 0
        reject_all(client)
        assert broker.core.writer.unwritten_bytes >= 1000
        await broker.settle()
        assert broker.core.writer.unwritten_bytes == 0
        assert broker.store.pending("queue://DLQ.q") == [b"m" * 1000]


# --- full lists -----------------------------------------------------------------------------------


async def test_a_full_list_pauses_its_producers_until_consumers_made_room() -> None:
    async with Broker(small("vm", messages=5)) as broker:
        producer, other, consumer = [await broker.client() for _ in range(3)]
        for number in range(6):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        assert not producer.is_paused
        producer.send("queue://q", "6")
        assert producer.is_paused
        other.send("queue://elsewhere", "m")
        assert not other.is_paused
        consumer.subscribe("queue://q", prefetch_count=1)
        await broker.settle()
        for _ in range(2):
            consumer.ack_all()
            await broker.settle()
        assert not producer.is_paused
        assert broker.core.flow.full_lists == set()


async def test_a_list_whose_disk_is_slow_pauses_its_producers_until_the_disk_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody takes anything: it is the disk that makes room."""
    loop = asyncio.get_running_loop()
    held: list[tuple[asyncio.Future[object], Callable[[], object]]] = []

    def hold(_: object, func: Callable[[], object]) -> asyncio.Future[object]:
        held.append((loop.create_future(), func))
        return held[-1][0]

    async with Broker(small("file", messages=5)) as broker:
        producer, consumer = [await broker.client() for _ in range(2)]
        sent = 0
        with monkeypatch.context() as patch:
            patch.setattr(loop, "run_in_executor", hold)
            while not producer.is_paused and sent < 200:
                producer.send("queue://q", f"{sent}")
                sent += 1
                await broker.settle()
        assert producer.is_paused
        await broker.settle()
        assert producer.is_paused
        [(job, write)] = held
        job.set_result(write())
        await broker.settle()
        assert not producer.is_paused
        assert broker.core.flow.full_lists == set()
        consumer.subscribe("queue://q", prefetch_count=1000)
        await broker.settle()
        assert consumer.bodies() == numbers(sent)


async def test_a_producer_that_waits_for_a_full_list_and_goes_away_is_forgotten() -> None:
    async with Broker(small("vm", messages=2)) as broker:
        producer, consumer = await broker.client(), await broker.client()
        for number in range(4):
            producer.send("queue://q", f"{number}")
        await broker.settle()
        producer.send("queue://q", "4")
        assert producer.is_paused
        producer.connection.disconnect(graceful=True)
        assert broker.queue("q").blocked == set()
        consumer.subscribe("queue://q", acknowledge=False)
        await broker.settle()
        assert consumer.bodies() == numbers(5)


async def test_a_producer_is_resumed_when_the_full_subscription_ends() -> None:
    policy = DestinationPolicy(match=">", cursor="vm", memory_limit=1000)
    async with Broker(policy) as broker:
        producer, reader = await broker.client(), await broker.client()
        reader.subscribe("topic://t", prefetch_count=1)
        for number in range(5):
            producer.send("topic://t", f"{number}")
        await broker.settle()
        producer.send("topic://t", "5")
        assert producer.is_paused
        reader.connection.unsubscribe("s")
        await broker.settle()
        assert not producer.is_paused
        assert broker.core.flow.full_lists == set()


async def test_a_client_with_messages_in_flight_is_never_paused_for_a_full_list() -> None:
    """With its socket paused its acknowledgements would not be read: nothing would make room."""

    async with Broker(small("vm", messages=2)) as broker:
        client = await broker.client()
        client.subscribe("queue://q", prefetch_count=1)
        for number in range(10):
            client.send("queue://q", f"{number}")
            await broker.settle()
            assert not client.is_paused
        for _ in range(10):
            client.ack_all()
            await broker.settle()
        assert client.bodies() == numbers(10)


async def test_two_clients_that_consume_what_the_other_produces_do_not_wait_for_ever() -> None:
    async with Broker(small("vm", messages=2)) as broker:
        one, two = await broker.client(), await broker.client()
        one.subscribe("queue://to-one", prefetch_count=1)
        two.subscribe("queue://to-two", prefetch_count=1)
        one.connection.writable(False)  # nothing is in flight while both lists fill
        two.connection.writable(False)
        for number in range(5):
            one.send("queue://to-two", f"{number}")
            two.send("queue://to-one", f"{number}")
            await broker.settle()
        assert one.is_paused
        assert two.is_paused
        one.connection.writable(True)
        two.connection.writable(True)
        await broker.settle()
        assert not one.is_paused
        assert not two.is_paused


async def test_a_client_with_an_open_transaction_is_not_paused_for_a_full_list() -> None:
    async with Broker(small("vm", messages=1)) as broker:
        client, other = await broker.client(), await broker.client()
        client.subscribe("queue://q", prefetch_count=1)
        for number in range(4):
            other.send("queue://q", f"{number}")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        client.send("queue://q", "more")
        assert not client.is_paused  # its COMMIT must be read


async def test_what_a_subscriber_without_storage_cannot_take_is_dropped_and_counted() -> None:
    policy = DestinationPolicy(
        match=">", subscriber_cursor="file", memory_limit=2000, temporary_limit=1
    )
    async with Broker(policy) as broker:
        slow, producer = await broker.client("mqtt", "slow"), await broker.client()
        slow.subscribe("topic://t", qos=0)
        slow.connection.writable(False)
        for number in range(50):
            producer.send("topic://t", f"{number}")
        await broker.settle()
        slow.connection.writable(True)
        await broker.settle()
        assert broker.core.flow.dropped > 0
        assert len(slow.bodies()) == 50 - broker.core.flow.dropped > 0
        assert slow.sequences() == sorted(slow.sequences())
