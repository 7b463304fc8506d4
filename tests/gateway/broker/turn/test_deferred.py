"""Of many transactions that are committed at the same time each turn takes one, or several small ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.broker.turn import flow
from tidegate.spi import AccessError, AddMessage, BranchId, Identity, RequestError, Verdict

LARGE = 20


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "TURN_OPERATIONS_MAX", 10)


async def opened(broker: Broker, number: int = 0, size: int = LARGE, **more: Any) -> Client:
    """A client with a transaction of so many messages."""
    client = await broker.client("stomp", f"c{number}", **more)
    client.connection.begin("t")
    for count in range(size):
        client.send("queue://q", f"{number}.{count}", transaction="t")
    await broker.settle()
    return client


def sizes(broker: Broker) -> list[int]:
    """How many messages each batch has that has any."""
    counts = [sum(isinstance(op, AddMessage) for op in batch) for batch in broker.store.batches]
    return [count for count in counts if count]


@pytest.mark.parametrize("is_limited", [True, False])
@pytest.mark.parametrize("how", ["commit", "prepare"])
async def test_large_transactions_take_a_turn_each(
    is_limited: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_limited:
        monkeypatch.setattr(flow, "TURN_OPERATIONS_MAX", 1 << 30)
    async with Broker() as broker:
        clients = [await opened(broker, number) for number in range(5)]
        for number, client in enumerate(clients):
            if how == "commit":
                client.connection.commit("t", "done")
            else:
                client.connection.prepare("t", BranchId(1, b"%d" % number), "done")
            assert client.is_paused is is_limited  # until what it asked for is written
        await broker.settle()
        assert sizes(broker) == ([LARGE] * 5 if is_limited else [LARGE * 5])
        for client in clients:
            assert client.confirmations == ["done"]
            assert not client.is_paused
        if how == "commit":
            wanted = [b"%d.%d" % (n, count) for n in range(5) for count in range(LARGE)]
            assert broker.store.pending("queue://q") == wanted


async def test_small_transactions_share_a_turn_and_none_overtakes_one_that_waits() -> None:
    async with Broker() as broker:
        small = [await opened(broker, number, 3) for number in range(6)]
        for client in small:
            client.connection.commit("t", "done")
        await broker.settle()
        assert sizes(broker) == [9, 9]
        first, large, last = (
            await opened(broker, 7, 3),
            await opened(broker, 8),
            await opened(broker, 9, 3),
        )
        for client in (first, large, last):
            client.connection.commit("t", "done")
        await broker.settle()
        assert sizes(broker)[2:] == [3, LARGE, 3]


async def test_what_fails_when_its_turn_comes_is_told_to_its_client() -> None:
    class Wall:
        is_shut = False

        def authorize(self, identity: Identity, action: object, destination: str) -> Verdict:
            is_refused = self.is_shut and identity.client_id == "c1" and destination == "queue://q"
            return Verdict.DENY if is_refused else Verdict.ALLOW

    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        first, second = await opened(broker), await opened(broker, 1)
        first.connection.commit("t", "first")
        second.connection.commit("t", "second")
        with pytest.raises(RequestError):  # what is known at once is said at once
            second.connection.commit("other")
        wall.is_shut = True
        broker.core.rights_changed()
        await broker.settle()
        assert first.confirmations == ["first"]
        ((token, error),) = second.failures
        assert token == "second"
        assert isinstance(error, AccessError)
        assert sizes(broker) == [LARGE]
        assert not second.is_paused


async def waiting(broker: Broker) -> Client:
    """One whose large transaction comes behind another client's."""
    first, second = await opened(broker), await opened(broker, 1)
    first.connection.commit("t")
    second.connection.commit("t", "done")
    assert second.connection.has_unconfirmed
    return second


async def test_a_client_that_goes_has_committed_what_waits() -> None:
    async with Broker() as broker:
        client = await waiting(broker)
        client.connection.disconnect(graceful=True)
        await broker.settle()
        assert len(broker.store.pending("queue://q")) == 2 * LARGE
        assert not broker.core.flow.deferred.clients


async def test_what_a_client_asks_for_while_its_transaction_waits_comes_behind_it() -> None:
    """A front-end asks for nothing while it is told to wait; one that does so loses nothing."""
    async with Broker() as broker:
        first, second = await opened(broker), await opened(broker, 1)
        second.connection.begin("u")
        second.send("queue://q", "of the other", transaction="u")
        first.connection.commit("t")
        second.connection.commit("t", 1)
        second.connection.commit("u", 2)
        await broker.settle()
        assert second.confirmations == [1, 2]
        assert broker.store.pending("queue://q")[-1] == b"of the other"


async def test_what_is_to_be_confirmed_behind_all_waits_for_a_transaction_that_waits() -> None:
    async with Broker() as broker:
        client = await waiting(broker)
        client.connection.synchronize("all")
        await broker.settle()
        assert client.confirmations == ["done", "all"]
        assert not client.connection.has_unconfirmed


async def test_a_store_without_room_refuses_those_that_wait() -> None:
    async with Broker() as broker:
        clients = [await opened(broker, number) for number in range(3)]
        broker.store.refuse(1)
        for client in clients:
            client.connection.commit("t", "done")
        await broker.settle()
        await asyncio.sleep(2)
        await broker.settle()
        assert [len(client.failures) for client in clients] == [1, 1, 1]
        assert broker.store.pending("queue://q") == []
        assert not any(client.is_paused for client in clients)
