"""Messages that are not persistent, to queues that say that those are not stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from broker_harness import Broker, Client
from operated import ask

from tidegate.broker.unstored import store
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    AddDestination,
    AddMessage,
    BranchId,
    FlowControlError,
    Move,
    StoreFullError,
)
from tidegate.spi.operate import (
    CopyMessages,
    CreateDestination,
    DeleteDestination,
    MoveMessages,
    PurgeDestination,
)

A, B = "queue://a", "queue://b"
ONE = BranchId(1, b"one", b"q", "anonymous")
CURSORS = ["store", "vm", "file"]
#: Some messages of a few bytes: four to a block, and 20 until producers wait.
SMALL = 8000


def policy(match: str = ">", **more: Any) -> DestinationPolicy:
    return DestinationPolicy(match, non_persistent="spool", **more)


def send(client: Client, *bodies: object, to: str = A, **more: Any) -> None:
    """Messages that are not persistent."""
    for body in bodies:
        client.send(to, str(body), persistent=False, **more)


def told(broker: Broker, *kinds: type) -> list[Any]:
    """What the store was told of messages, or of *kinds*."""
    wanted = kinds or (AddMessage, Move)
    return [op for batch in broker.store.batches for op in batch if isinstance(op, wanted)]


async def take_all(broker: Broker, queue: str = A, **more: Any) -> list[bytes]:
    """All that is pending, acknowledged."""
    client = await broker.client()
    client.acknowledge_at_once()
    client.subscribe(queue, **more)
    for _ in range(100):  # threads read what is in files
        before = len(client.deliveries)
        await broker.settle()
        await asyncio.sleep(0.01)
        if len(client.deliveries) == before:
            break
    client.connection.disconnect(graceful=True)
    await broker.settle()
    return client.bodies()


def numbers(bodies: Sequence[bytes]) -> list[int]:
    return [int(body) for body in bodies]


def check_nothing_is_held(broker: Broker) -> None:
    accounts = broker.core.accounts
    assert accounts.unstored_memory.used == 0
    assert accounts.temporary.used == 0


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("memory", [1 << 20, SMALL])
async def test_the_store_gets_nothing_of_them(cursor: str, memory: int) -> None:
    rules = policy(cursor=cursor, memory_limit=memory, page_count=3)
    async with Broker(rules, keep_acknowledged=True) as broker:
        client = await broker.client()
        client.send(A, "0", persistent=False, token="confirmed")
        for number in range(1, 12):
            send(client, number)
        await broker.settle()
        assert client.confirmations == ["confirmed"]
        assert broker.queue("a").unstored.count == 12
        assert numbers(await take_all(broker)) == list(range(12))
        (made,) = told(broker, object)
        assert isinstance(made, AddDestination)
        assert broker.contents.log == []
        check_nothing_is_held(broker)


@pytest.mark.parametrize("cursor", CURSORS)
async def test_one_that_comes_back_twice_within_a_turn_is_counted_twice(cursor: str) -> None:
    """The second time used to make the store read-only."""
    async with Broker(policy(cursor=cursor, max_deliveries=0)) as broker:
        client = await broker.client()
        client.subscribe(A)
        send(client, "0")
        client.send(A, "1")
        await broker.settle()
        broker.store.hold()
        client.send(B, "this one is written meanwhile")
        await asyncio.sleep(0)
        for _ in range(2):
            client.connection.reject("s", list(client.connection.consumers["s"].in_flight))
            await broker.settle()
        broker.store.release()
        await broker.settle()
        assert client.counts() == [0, 0, 1, 1, 2, 2]
        page = await broker.core.store.page_in(broker.queue("a").id, 0, 10, 1000)
        assert [item.delivery_count for item in page] == [2, 2]
        client.ack_all(token="done")
        await broker.settle()
        assert client.confirmations == ["done"]


async def test_without_the_policy_and_for_persistent_messages_all_is_stored() -> None:
    async with Broker(policy(A)) as broker:
        client = await broker.client()
        send(client, "0", to=B)
        client.send(A, "1")
        await broker.settle()
        assert [op.message.body for op in told(broker)] == [b"0", b"1"]


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("selector", ["", "n = '1'"])
async def test_they_are_delivered_in_order_with_those_that_are_stored(
    cursor: str, selector: str
) -> None:
    rules = policy(cursor=cursor, memory_limit=SMALL, page_count=3)
    async with Broker(rules) as broker:
        client = await broker.client()
        for number in range(14):
            client.send(A, f"{number}", persistent=number % 3 > 0, headers=(("n", "1"),))
            if number % 5 == 4:
                await broker.settle()
        await broker.settle()
        assert numbers(await take_all(broker, selector=selector)) == list(range(14))
        assert broker.store.pending(A) == []
        check_nothing_is_held(broker)


@pytest.mark.parametrize("cursor", CURSORS)
async def test_after_a_kill_those_are_gone_and_no_others(cursor: str) -> None:
    async with Broker(policy(cursor=cursor)) as broker:
        client = await broker.client()
        for number in range(10):
            client.send(A, f"{number}", persistent=number % 2 > 0)
        await broker.settle()
        await broker.kill()
        client = await broker.client()
        send(client, 10)
        client.send(A, "11")
        assert numbers(await take_all(broker)) == [1, 3, 5, 7, 9, 10, 11]


async def test_what_is_rejected_comes_again_and_then_goes_to_the_dead_letters() -> None:
    async with Broker(policy(A, max_deliveries=2)) as broker:
        client = await broker.client()
        send(client, "0")
        client.subscribe(A)
        await broker.settle()
        client.connection.reject("s", client.sequences()[:1])
        await broker.settle()
        assert client.counts() == [0, 1]
        assert told(broker) == []
        client.connection.reject("s", client.sequences()[-1:])
        await broker.settle()
        (dead,) = told(broker)  # that queue's table says nothing of non-persistent messages
        assert isinstance(dead, AddMessage)
        assert not dead.message.persistent
        assert broker.store.pending("queue://DLQ.a") == [b"0"]
        assert await take_all(broker, "queue://DLQ.a") == [b"0"]


async def test_the_table_of_the_dead_letter_queue_decides_whether_they_are_stored() -> None:
    async with Broker(policy(max_deliveries=1)) as broker:
        client = await broker.client()
        send(client, "0")
        client.subscribe(A)
        await broker.settle()
        client.connection.reject("s", client.sequences())
        await broker.settle()
        assert told(broker) == []
        assert await take_all(broker, "queue://DLQ.a") == [b"0"]


async def test_deliveries_are_counted_as_they_come_back_from_files() -> None:
    rules = policy(cursor="store", memory_limit=SMALL, page_count=3)
    async with Broker(rules) as broker:
        client = await broker.client()
        send(client, *range(16))
        client.subscribe(A, prefetch_count=4)
        await broker.settle()
        client.connection.disconnect(graceful=True)
        reader = await broker.client()
        reader.acknowledge_at_once()
        reader.subscribe(A)
        for _ in range(20):
            await broker.settle()
            await asyncio.sleep(0.01)
        assert numbers(reader.bodies()) == list(range(16))
        assert reader.counts() == [1] * 4 + [0] * 12


async def test_they_are_browsed_purged_moved_and_copied() -> None:
    rules = policy(A, memory_limit=SMALL, page_count=3)
    async with Broker(rules, DestinationPolicy(">")) as broker:
        client = await broker.client()
        for number in range(12):
            client.send(A, f"{number}", persistent=number % 4 == 0)
        await broker.settle()
        await client.browse(A)
        assert numbers(client.bodies("b")) == list(range(12))
        await ask(broker, CreateDestination(B))
        await ask(broker, CopyMessages(A, B, count_max=2))
        assert broker.store.pending(B) == [b"0", b"1"]  # B stores all that it gets
        await ask(broker, MoveMessages(A, B, count_max=6))
        assert broker.store.pending(B) == [b"0", b"1", *(b"%d" % n for n in range(6))]
        await ask(broker, MoveMessages(B, A, count_max=2))  # what is stored stays so
        assert broker.store.pending(A) == [b"8", b"0", b"1"]
        await ask(broker, PurgeDestination(A))
        assert broker.queue("a").cursor.size == broker.queue("a").unstored.count == 0
        assert broker.store.pending(A) == []
        check_nothing_is_held(broker)


async def test_they_expire() -> None:
    async with Broker(policy()) as broker:
        client = await broker.client()
        send(client, "0", expires_at=broker.core.now() + 1_000_000)
        send(client, "1")
        await asyncio.sleep(2)
        assert await take_all(broker) == [b"1"]
        assert told(broker) == []
        check_nothing_is_held(broker)


async def test_transactions_publish_and_acknowledge_them() -> None:
    async with Broker(policy()) as broker:
        client = await broker.client()
        send(client, *range(3))
        client.subscribe(A)
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences()[:2], None, "t")
        send(client, 3, to=B, transaction="t")
        client.connection.abort("t")
        client.connection.begin("u")
        client.connection.acknowledge("s", client.sequences()[:2], None, "u")
        send(client, 4, to=B, transaction="u")
        client.connection.commit("u", "done")
        await broker.settle()
        assert client.confirmations == ["done"]
        client.connection.disconnect(graceful=True)
        assert await take_all(broker) == [b"2"]
        assert await take_all(broker, B) == [b"4"]
        assert told(broker) == []


async def test_a_commit_that_the_store_has_no_room_for_does_nothing_at_all() -> None:
    async with Broker(policy()) as broker:
        client = await broker.client()
        send(client, "0")
        client.subscribe(A)
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        send(client, "1", to=B, transaction="t")
        client.send(B, "2", transaction="t")
        broker.store.refuse(1)
        client.connection.commit("t", "done")
        await broker.settle()
        assert [token for token, error in client.failures] == ["done"]
        assert isinstance(client.failures[0][1], StoreFullError)
        client.connection.disconnect(graceful=True)
        assert await take_all(broker) == [b"0"]
        assert await take_all(broker, B) == []


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_branch_that_acknowledged_them_can_be_committed(is_killed: bool) -> None:
    async with Broker(policy()) as broker:
        client = await broker.client()
        for number in range(4):
            client.send(A, f"{number}", persistent=number > 1)
        client.subscribe(A)
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences()[:3], None, "t")
        send(client, 4, to=B, transaction="t")
        client.connection.prepare("t", ONE)
        await broker.settle()
        if is_killed:
            await broker.kill()
            client = await broker.client()
            send(client, 5)  # under a number that was used before
        client.connection.commit_branch(ONE, "committed")
        await broker.settle()
        assert client.confirmations[-1] == "committed"
        client.connection.disconnect(graceful=True)
        assert numbers(await take_all(broker)) == ([3, 5] if is_killed else [3])
        assert await take_all(broker, B) == [b"4"]


async def test_limits_of_the_queue_count_them() -> None:
    async with Broker(policy(messages_max=3, overflow="refuse")) as broker:
        client = await broker.client()
        client.send(A, "0")
        send(client, 1, 2)
        await broker.settle()
        with pytest.raises(FlowControlError, match="messages_max"):
            send(client, 3)
        assert numbers(await take_all(broker)) == [0, 1, 2]
        send(client, 4)
        await broker.settle()
        assert broker.queue("a").limit.count == 1


@pytest.mark.parametrize("limit", [{"messages_max": 3}, {"bytes_max": 3}])
@pytest.mark.parametrize("buries", [False, True])
async def test_the_oldest_of_them_are_dropped(limit: dict[str, Any], buries: bool) -> None:
    rules = policy(overflow="drop_oldest", overflow_dead_letter=buries, **limit)
    async with Broker(rules) as broker:
        client = await broker.client()
        for number in range(6):
            client.send(A, f"{number}", persistent=number % 2 > 0)
            await broker.settle()
        assert numbers(await take_all(broker)) == [3, 4, 5]
        dead = await take_all(broker, "queue://DLQ.a") if buries else []
        assert numbers(dead) == ([0, 1, 2] if buries else [])


async def test_those_that_are_too_old_leave() -> None:
    async with Broker(policy(age_max=5)) as broker:
        client = await broker.client()
        send(client, 0, received_at=broker.core.now())
        await broker.settle()
        await asyncio.sleep(20)
        await broker.settle()
        assert await take_all(broker) == []
        check_nothing_is_held(broker)


async def test_a_duplicate_id_is_gone_with_its_message() -> None:
    async with Broker(policy()) as broker:
        client = await broker.client()
        send(client, "0", duplicate_id="x")
        client.send(A, "1", duplicate_id="y")
        await broker.settle()
        send(client, "0", duplicate_id="x")
        await broker.settle()
        assert broker.queue("a").cursor.size == 2
        await broker.kill()
        client = await broker.client()
        send(client, "0", duplicate_id="x")
        client.send(A, "1", duplicate_id="y")
        await broker.settle()
        assert numbers(await take_all(broker)) == [1, 0]


@pytest.mark.parametrize("limit", [{"temporary_limit": 1}, {"space": 1}])
async def test_producers_wait_when_there_is_no_room_and_go_on_when_there_is(
    limit: dict[str, Any],
) -> None:
    space = limit.pop("space", 0)
    rules = policy(memory_limit=SMALL, **limit)
    async with Broker(rules, temporary_space=space) as broker:
        client = await broker.client()
        sent = 0
        while not client.is_paused:
            assert sent < 100
            send(client, sent)
            sent += 1
            await broker.settle()
        assert sent > 10
        assert numbers(await take_all(broker)) == list(range(sent))
        assert not client.is_paused
        check_nothing_is_held(broker)


async def test_nothing_is_held_of_a_queue_that_is_deleted() -> None:
    async with Broker(policy(memory_limit=SMALL)) as broker:
        client = await broker.client()
        send(client, *range(16))
        await broker.settle()
        await ask(broker, PurgeDestination(A))
        send(client, *range(16))
        await broker.settle()
        gone = await ask(broker, DeleteDestination(A, with_messages=True))
        assert gone is not None
        check_nothing_is_held(broker)
        send(client, 16)
        assert await take_all(broker) == [b"16"]


async def test_a_topic_knows_nothing_of_it() -> None:
    """Durable subscriptions have their own rules: QoS 0 is not stored for them, all else is."""
    async with Broker(policy()) as broker:
        client = await broker.client(client_id="c")
        client.subscribe("topic://t", durable_name="s")
        send(client, "0", to="topic://t")
        await broker.settle()
        assert [op.message.body for op in told(broker)] == [b"0"]


async def test_a_broken_control_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Persistent messages that pass the store by are lost by a kill, and the test above says so."""
    monkeypatch.setattr(store, "is_unstored", lambda message: True)
    with pytest.raises(AssertionError):
        await test_after_a_kill_those_are_gone_and_no_others("store")
