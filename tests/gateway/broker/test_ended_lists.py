"""Queues, subscriptions and sessions that end: each message that they still held has a row, exactly one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker import ended_lists
from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    Acknowledge,
    AcknowledgedMessage,
    AddMessage,
    BranchId,
    CorruptRecordError,
    Discard,
    Identity,
    Outcome,
    RemoveSubscription,
    StoredMessage,
    StoreIOError,
    StoreUnavailableError,
)
from tidegate.spi.operate import DeleteDestination

ME = Identity("local:me", frozenset(), "", "", "operator")


def rows_of(broker: Broker) -> list[AcknowledgedMessage]:
    """The whole log, which is dense."""
    rows = broker.contents.log
    assert [row.ack_sequence for row in rows] == list(range(1, len(rows) + 1))
    return rows


def ended(broker: Broker) -> dict[bytes, str]:
    """Reasons by body, of those that something still held."""
    rows = [row for row in rows_of(broker) if row.outcome is Outcome.PURGED]
    assert len({(row.sequence, row.pending_list) for row in rows}) == len(rows), "a row twice"
    assert all(row.acked_at and not row.delivered_at for row in rows)
    return {row.message.body: row.reason for row in rows}


async def at_rest(broker: Broker) -> None:
    """Until all that ended is gone from the store."""
    await broker.settle()
    for _ in range(100):
        if not broker.core.ended_lists.waiting:
            break
        await asyncio.sleep(1)
    await broker.settle()
    assert not broker.core.ended_lists.waiting
    assert all(item.durable for item in broker.contents.subscriptions.values())


async def delete(broker: Broker, queue: str = "queue://q") -> None:
    request = DeleteDestination(queue, with_messages=True, with_consumers=True)
    await Operations(broker.core).delete_destination(ME, request)


async def filled(broker: Broker, count: int = 3, destination: str = "queue://q") -> Client:
    client = await broker.client("stomp", f"producer of {destination}")
    for number in range(count):
        client.send(destination, f"{number}")
    await broker.settle()
    return client


async def unsubscribe(broker: Broker) -> str:
    client = await broker.client("stomp", "c")
    client.subscribe("topic://t", durable_name="d")
    await filled(broker, 3, "topic://t")
    client.connection.unsubscribe("s", "done", forget=True)
    await broker.settle()
    assert client.confirmations == ["done"]
    return "unsubscribed"


async def take_another_selector(broker: Broker) -> str:
    client = await broker.client("stomp", "c")
    client.subscribe("topic://t", durable_name="d")
    await filled(broker, 3, "topic://t")
    client.connection.unsubscribe("s")
    client.subscribe("topic://t", durable_name="d", selector="a = 1")
    return "its name is now used with another filter or selector"


async def end_the_connection(broker: Broker) -> str:
    """Of a subscription that is not durable."""
    client = await broker.client("stomp", "c")
    client.subscribe("topic://t")
    await filled(broker, 3, "topic://t")
    client.connection.disconnect(graceful=True)
    return "the connection ended"


async def leave_a_group(broker: Broker) -> str:
    client = await broker.client("stomp", "c")
    client.subscribe("topic://t", share_group="d")
    await filled(broker, 3, "topic://t")
    client.connection.unsubscribe("s")
    return "its last member is gone"


async def end_a_session(broker: Broker) -> str:
    client = await broker.client("mqtt", "c", session_expiry=60)
    client.subscribe("topic://t", durable_name="d")
    await filled(broker, 3, "topic://t")
    client.connection.disconnect(graceful=True)
    await broker.client("mqtt", "c", clean_start=True)
    return "its session ended"


async def let_a_session_expire(broker: Broker) -> str:
    client = await broker.client("mqtt", "c", session_expiry=60)
    client.subscribe("topic://t", durable_name="d")
    await filled(broker, 3, "topic://t")
    client.connection.disconnect(graceful=True)
    await asyncio.sleep(90)
    return "its session expired"


async def stay_away(broker: Broker) -> str:
    client = await broker.client("stomp", "c")
    client.subscribe("topic://t", durable_name="d")
    await filled(broker, 3, "topic://t")
    client.connection.disconnect(graceful=True)
    await asyncio.sleep(3700)
    return "its client was disconnected for too long"


WAYS = (
    unsubscribe,
    take_another_selector,
    end_the_connection,
    leave_a_group,
    end_a_session,
    let_a_session_expire,
    stay_away,
)
EXPIRY = DestinationPolicy("topic://>", subscription_expiry=3600)


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_subscription_still_held_has_rows_that_say_whose_it_was_and_why(
    way: Callable[[Broker], Awaitable[str]],
) -> None:
    async with Broker(EXPIRY, keep_acknowledged=True) as broker:
        why = await way(broker)
        await at_rest(broker)
        assert ended(broker) == dict.fromkeys((b"0", b"1", b"2"), why)
        for row in rows_of(broker):
            name = "s" if way is end_the_connection else "d"
            assert (row.subscription, row.principal) == (name, "anonymous")
            assert row.client_id == ("" if way is leave_a_group else "c")
            assert row.delivery_count <= 1
        assert not any(broker.contents.lists.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("config", [{"acknowledged_outcomes": ("expired",)}, {}])
async def test_without_rows_the_list_goes_at_once(
    way: Callable[[Broker], Awaitable[str]], config: dict[str, Any]
) -> None:
    async with Broker(EXPIRY, keep_acknowledged=bool(config), **config) as broker:
        await way(broker)
        await at_rest(broker)
        assert ended(broker) == {}
        assert not any(broker.contents.lists.values())
        assert broker.store.operations(Acknowledge, Discard) == []


async def test_a_queue_that_is_deleted_is_another_one_when_it_is_made_again() -> None:
    async with Broker(keep_acknowledged=True) as broker:
        producer = await filled(broker)
        consumer = await broker.client("stomp", "c")
        consumer.subscribe("queue://q", prefetch_count=1)
        await broker.settle()
        broker.store.hold()
        await asyncio.gather(delete(broker), released(broker, producer))
        await at_rest(broker)
        assert broker.store.pending("queue://q") == [b"new"]
        assert ended(broker) == dict.fromkeys((b"0", b"1", b"2"), "its queue was deleted")
        # It was in flight when its consumer was ended: that counts as a delivery.
        assert [row.delivery_count for row in rows_of(broker)] == [1, 0, 0]
        assert {row.client_id for row in rows_of(broker)} == {""}


async def released(broker: Broker, producer: Client) -> None:
    """Publish while the queue's end is on its way to the store."""
    await asyncio.sleep(0.5)
    broker.store.release()
    while "queue://q" in broker.core.destinations.queues:
        await asyncio.sleep(0)
    producer.send("queue://q", "new")


async def test_a_long_list_leaves_in_pieces_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended_lists, "STEP_COUNT", 10)
    async with Broker(keep_acknowledged=True) as broker:
        client = await filled(broker, 300)
        await filled(broker, 25, "queue://other")
        first = len(broker.store.batches)
        await delete(broker)
        await delete(broker, "queue://other")
        for number in range(20):
            client.send("queue://live", f"live {number}", token=number)
            await asyncio.sleep(0)
        await at_rest(broker)
        assert client.confirmations == list(range(20))
        assert len(ended(broker)) == 300  # by body
        assert len(rows_of(broker)) == 325
        batches = broker.store.batches[first:]
        pieces = [[op for op in batch if isinstance(op, Acknowledge)] for batch in batches]
        assert max(len(op.sequences) for ops in pieces for op in ops) == 10
        assert max(map(len, pieces)) == 1
        # In turn: the short one does not wait for the long one.
        of_whom = [op.pending_list for ops in pieces for op in ops]
        assert of_whom[:4] in ([1, 1, 2, 1], [1, 2, 1, 2], [1, 1, 1, 2])
        removed = [op for batch in batches for op in batch if isinstance(op, RemoveSubscription)]
        assert [op.pending_list for op in removed] == [2, 1]


@pytest.mark.parametrize("way", [delete, unsubscribe, end_a_session, end_the_connection])
@pytest.mark.parametrize("batches", [0, 1, 2, 3])
async def test_a_kill_in_the_middle_neither_doubles_nor_loses_a_row(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[Broker], Awaitable[object]], batches: int
) -> None:
    monkeypatch.setattr(ended_lists, "STEP_COUNT", 1)
    async with Broker(keep_acknowledged=True) as broker:
        if way is delete:
            await filled(broker)
            await delete(broker)
        else:
            await way(broker)
        known = len(broker.store.batches)
        while broker.core.ended_lists.waiting and len(broker.store.batches) < known + batches:
            await asyncio.sleep(0)
        await broker.kill()
        assert broker.core.destinations.queues == {}
        assert broker.core.destinations.durable == {}
        await at_rest(broker)
        assert len(ended(broker)) == 3
        assert not any(broker.contents.lists.values())


async def test_a_gateway_that_stops_goes_on_with_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended_lists, "STEP_COUNT", 1)
    async with Broker(keep_acknowledged=True) as broker:
        await filled(broker, 50)
        client = await broker.client("stomp", "c")
        client.subscribe("topic://t")
        await filled(broker, 2, "topic://t")
        await delete(broker)
        await broker.core.stop()
        assert len(rows_of(broker)) < 52
        await broker.start()
        await at_rest(broker)
        assert len(rows_of(broker)) == 52
        assert set(ended(broker).values()) == {
            "its queue was deleted",
            "its connection ended with the gateway",
        }


async def test_what_is_pending_without_a_sink_goes_with_the_next_start() -> None:
    async with Broker(keep_acknowledged=True) as broker:
        await filled(broker)
        await delete(broker)
        broker.keep_acknowledged = False
        await broker.kill()
        await at_rest(broker)
        assert not any(broker.contents.lists.values())
        assert broker.contents.subscriptions == {}


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_what_a_transaction_holds_of_a_list_that_ended_has_one_row(is_prepared: bool) -> None:
    async with Broker(keep_acknowledged=True) as broker:
        await filled(broker)
        client = await broker.client("stomp", "c")
        client.subscribe("queue://q")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences()[:2], None, "t")
        if is_prepared:
            branch = BranchId(1, b"one", b"", "anonymous")
            client.connection.prepare("t", branch)
            await broker.settle()
        client.connection.unsubscribe("s")
        await broker.settle()
        await delete(broker)
        if is_prepared:
            client.connection.commit_branch(branch, "done")
        else:
            client.connection.commit("t", "done")
        await at_rest(broker)
        assert client.confirmations == ["done"]
        assert len(ended(broker)) == 3
        assert len(rows_of(broker)) == 3


async def test_rows_wait_while_they_would_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_lists, "STEP_COUNT", 1)
    async with Broker(keep_acknowledged=True, acknowledged_limit=100) as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        client = await broker.client("stomp", "c")
        for number in range(20):
            client.send("queue://q", f"{number:020}")
        await broker.settle()
        await delete(broker)
        await asyncio.sleep(10)
        assert len(rows_of(broker)) == 4  # 80 of 100 bytes
        client.send("queue://live", "not refused", token="live")
        await broker.settle()
        assert client.confirmations == ["live"]
        for released in range(4, 21, 2):
            await reader.release(released)
            await asyncio.sleep(10)
        await at_rest(broker)
        assert reader.last == 20


async def test_what_was_never_stored_of_a_queue_has_no_row() -> None:
    policy = DestinationPolicy("queue://>", non_persistent="spool")
    async with Broker(policy, keep_acknowledged=True) as broker:
        client = await broker.client("stomp", "c")
        for number in range(4):
            client.send("queue://q", f"{number}", persistent=number % 2 == 0)
        await broker.settle()
        await delete(broker)
        await at_rest(broker)
        assert set(ended(broker)) == {b"0", b"2"}
        assert broker.core.accounts.unstored_memory.used == 0


async def test_a_store_that_cannot_be_reached_is_asked_again() -> None:
    async with Broker(keep_acknowledged=True) as broker:
        await filled(broker)
        good, failures = broker.store.page_in, [StoreUnavailableError("away")] * 2

        async def page_in(*args: int) -> Sequence[StoredMessage]:
            if failures:
                raise failures.pop()
            return await good(*args)

        await delete(broker)
        broker.store.page_in = page_in  # type: ignore[method-assign]
        await asyncio.sleep(10)
        await at_rest(broker)
        assert failures == []
        assert len(ended(broker)) == 3


async def test_a_page_that_is_damaged_ends_it_until_the_next_start(
    logged_errors: list[str],
) -> None:
    logged_errors.append("the rest of it has no rows before the next start")
    async with Broker(keep_acknowledged=True) as broker:
        await filled(broker)

        async def page_in(*_: int) -> Sequence[StoredMessage]:
            raise CorruptRecordError("damaged", location="here")

        await delete(broker)
        broker.store.page_in = page_in  # type: ignore[method-assign]
        await broker.settle()
        assert not broker.core.ended_lists.waiting
        await broker.kill()
        await at_rest(broker)
        assert len(ended(broker)) == 3


async def test_a_store_that_is_read_only_by_then_has_the_rest_with_the_next_start(
    logged_errors: list[str],
) -> None:
    logged_errors.append("store=read-only")
    async with Broker(keep_acknowledged=True) as broker:
        await filled(broker)
        await delete(broker)
        broker.store.error = StoreIOError("broken")
        await asyncio.sleep(5)
        assert not broker.core.ended_lists.waiting
        await broker.kill()
        await at_rest(broker)
        assert len(ended(broker)) == 3
        assert broker.store.operations(AddMessage) == []
