"""A large transaction that goes to very many subscriptions is handed out in steps, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from broker_harness import Broker, Client

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.route import router
from tidegate.broker.turn import walks, writer
from tidegate.spi import StoredMessage

LISTS, MESSAGES, STEP = 20, 30, 10


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "SLICE_S", 0)
    monkeypatch.setattr(writer, "HANDED_OUT_AT_ONCE", LISTS * MESSAGES - 1)
    monkeypatch.setattr(router, "STEP_MESSAGES", STEP)


@pytest.fixture(params=[True, False])
def is_sliced(
    one_by_one: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """A large turn is handed out in slices; False: it is not large enough."""
    if not request.param:
        monkeypatch.setattr(writer, "HANDED_OUT_AT_ONCE", 1 << 30)
    return request.param


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages lists in memory were given, one after the other."""
    counts: list[int] = []
    offer = PendingList.offer_direct

    def offer_direct(self: PendingList, messages: Sequence[StoredMessage]) -> None:
        counts.append(len(messages))
        offer(self, messages)

    monkeypatch.setattr(PendingList, "offer_direct", offer_direct)
    return counts


async def subscribed(broker: Broker, client_id: str = "c") -> Client:
    client = await broker.client("stomp", client_id)
    for number in range(LISTS):
        client.subscribe("topic://t", f"{number}", acknowledge=False)
    await broker.settle()
    return client


def fill(client: Client, transaction: str = "t") -> None:
    client.connection.begin(transaction)
    for number in range(MESSAGES):
        client.send("topic://t", f"{transaction}{number}", transaction=transaction)


async def test_it_is_no_work_of_one_turn_of_the_loop(is_sliced: bool, offered: list[int]) -> None:
    async with Broker() as broker:
        await subscribed(broker)
        sender = await broker.client()
        fill(sender)
        sender.connection.commit("t", "done")
        most = before = 0
        while sum(offered) < LISTS * MESSAGES:
            await asyncio.sleep(0)
            most, before = max(most, sum(offered) - before), sum(offered)
        assert most == (STEP if is_sliced else LISTS * MESSAGES)
        assert sender.confirmations == ["done"]
        await broker.settle()


async def test_nothing_overtakes_it_and_nothing_is_missing() -> None:
    async with Broker() as broker:
        reader, sender = await subscribed(broker), await broker.client()
        durable = await broker.client("stomp", "d")
        durable.subscribe("topic://t", durable_name="d")
        await broker.settle()
        fill(sender)
        sender.connection.commit("t")
        for number in range(5):
            sender.send("topic://t", f"later{number}")
            await asyncio.sleep(0)
        await broker.settle()
        bodies = [b"t%d" % n for n in range(MESSAGES)] + [b"later%d" % n for n in range(5)]
        assert durable.bodies() == bodies
        for number in range(LISTS):
            assert reader.bodies(f"{number}") == bodies


async def test_who_leaves_or_comes_meanwhile(offered: list[int]) -> None:
    async with Broker() as broker:
        reader, sender = await subscribed(broker), await broker.client()
        leaving = await subscribed(broker, "l")
        fill(sender)
        sender.connection.commit("t", "done")
        while "done" not in sender.confirmations:
            await asyncio.sleep(0)
        leaving.connection.disconnect(graceful=True)  # nothing more is done for it
        reader.connection.unsubscribe("7")
        late = await broker.client()
        late.subscribe("topic://t", acknowledge=False)
        sender.send("topic://t", "last")
        await broker.settle()
        assert late.bodies() == [b"last"]
        assert len(reader.bodies("19")) == MESSAGES + 1
        assert len(reader.bodies("7")) < MESSAGES
        assert sum(offered) < LISTS * MESSAGES * 2 - LISTS * MESSAGES // 2


async def test_a_subscription_that_is_replaced_gets_its_messages_first() -> None:
    async with Broker() as broker:
        await subscribed(broker)
        sender, client = await broker.client(), await broker.client("mqtt", "m")
        client.subscribe("topic://t", qos=0, acknowledge=False)
        await broker.settle()
        fill(sender)
        sender.connection.commit("t")
        client.subscribe("topic://t", qos=1)
        sender.send("topic://t", "last", qos=1)
        await broker.settle()
        assert client.bodies() == [b"t%d" % n for n in range(MESSAGES)] + [b"last"]


async def test_the_gateway_stops_when_all_is_handed_out(offered: list[int]) -> None:
    async with Broker() as broker:
        await subscribed(broker)
        sender = await broker.client()
        fill(sender)
        sender.connection.commit("t")
        await broker.core.end_connections()
        assert sum(offered) == LISTS * MESSAGES


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which lists were given what is stored for them, one after the other."""
    names: list[str] = []
    offer = PendingList.offer

    def offered(self: PendingList, messages: Sequence[StoredMessage]) -> None:
        names.append("" if self.subscription is None else self.subscription.name)
        offer(self, messages)

    monkeypatch.setattr(PendingList, "offer", offered)
    return names


async def with_durable(broker: Broker) -> Client:
    client = await broker.client("stomp", "d")
    for number in range(LISTS):
        client.subscribe(
            "topic://t", f"{number}", durable_name=f"{number}", prefetch_count=MESSAGES
        )
    await broker.settle()
    return client


async def test_stored_subscriptions_are_given_theirs_one_by_one(
    is_sliced: bool, stored: list[str]
) -> None:
    async with Broker() as broker:
        reader, sender = await with_durable(broker), await broker.client()
        fill(sender)
        sender.connection.commit("t", "done")
        most = before = 0
        while len(stored) < LISTS:
            await asyncio.sleep(0)
            most, before = max(most, len(stored) - before), len(stored)
        assert most == (1 if is_sliced else LISTS)
        await broker.settle()
        for number in range(LISTS):
            assert reader.bodies(f"{number}") == [b"t%d" % n for n in range(MESSAGES)]


async def test_nothing_of_a_later_turn_overtakes_what_is_stored() -> None:
    async with Broker() as broker:
        reader, sender = await with_durable(broker), await broker.client()
        fill(sender)
        sender.connection.commit("t", "done")
        while "done" not in sender.confirmations:
            await asyncio.sleep(0)
        sender.send("topic://t", "last", "later")
        reader.connection.unsubscribe("7", forget=True)
        reader.connection.disconnect(graceful=True)
        again = await broker.client("stomp", "d")
        for number in range(LISTS):
            if number != 7:
                again.subscribe(
                    "topic://t", f"{number}", durable_name=f"{number}", prefetch_count=2 * MESSAGES
                )
        assert sender.confirmations == ["done"]  # the next turn waits until all of it is handed out
        await broker.settle()
        for number in range(LISTS):
            wanted = [b"t%d" % n for n in range(MESSAGES)] + [b"last"]
            assert again.bodies(f"{number}") == ([] if number == 7 else wanted)


async def test_queues_have_theirs_as_soon_as_whoever_waits_for_the_turn_goes_on(
    stored: list[str],
) -> None:
    """A purge, or a selector, claims what is durable: the queue's cursor has to know it by then."""
    async with Broker() as broker:
        await with_durable(broker)
        sender, loop = await broker.client(), asyncio.get_running_loop()
        fill(sender)
        for number in range(5):
            sender.send("queue://q", f"{number}", transaction="t")
        sizes: list[int] = []
        sender.connection.commit("t")

        def look() -> None:
            sizes.append(broker.queue("q").cursor.size)

        broker.core.writer.when_durable(lambda: loop.call_soon(look))
        await broker.settle()
        assert sizes == [5]
        assert stored[0] == ""
        assert len(stored) == LISTS + 1
