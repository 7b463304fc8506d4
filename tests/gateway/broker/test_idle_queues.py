"""Queues that clients may not make, that the configuration makes, and that are deleted when idle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker
from operated import ask
from virtual_loop import run

from tidegate.broker.idle_queues import LOOK_EVERY_US
from tidegate.config import DestinationPolicy
from tidegate.spi import RequestError
from tidegate.spi.operate import (
    CreateDestination,
    DeleteDestination,
    PauseDestination,
    Side,
)

A = "queue://a"
CLOSED = DestinationPolicy(">", auto_create=False)
IDLE_S = 60
IDLE = DestinationPolicy(">", idle_delete=IDLE_S)
#: From the last use to when it is surely deleted: the looks before and behind, and their beat.
OVER_S = IDLE_S + 2 * LOOK_EVERY_US / 1_000_000 + 2


async def later(broker: Broker, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await broker.settle()


# --- auto_create --------------------------------------------------------------------------------


def test_clients_do_not_make_a_queue_that_only_the_operator_makes() -> None:
    async def main() -> None:
        async with Broker(CLOSED) as broker:
            client = await broker.client()
            for refused in (
                lambda: client.send(A, "0"),
                lambda: client.send(A, "0", qos=0),
                lambda: client.subscribe(A),
            ):
                with pytest.raises(RequestError, match="clients must not create it"):
                    refused()
            client.connection.begin("t")
            with pytest.raises(RequestError):
                client.send(A, "0", transaction="t")
            assert broker.core.destinations.queues == {}
            await ask(broker, CreateDestination(A))
            client.send(A, "1")
            client.subscribe(A)
            client.send("topic://t", "goes on")
            temporary = client.connection.make_temporary("queue://mine")
            client.send(temporary, "too")
            await broker.settle()
            assert client.bodies() == [b"1"]

    run(main())


def test_a_filter_over_queues_needs_none_of_them() -> None:
    async def main() -> None:
        async with Broker(CLOSED) as broker:
            await broker.consumer("queue://>")
            assert broker.core.destinations.queues == {}

    run(main())


def test_a_table_with_a_full_name_makes_its_queue_at_start_and_once() -> None:
    async def main() -> None:
        declared = DestinationPolicy("queue://a", auto_create=False)
        async with Broker(CLOSED, declared, queues_max=1) as broker:
            assert list(broker.core.destinations.queues) == [A]
            client = await broker.client()
            client.send(A, "0")
            await broker.settle()
            number = broker.contents.destinations[A]
            await broker.kill()
            assert broker.contents.destinations == {A: number}
            assert broker.queue("a").cursor.size == 1

    run(main())


def test_dead_letters_make_their_queue_all_the_same() -> None:
    async def main() -> None:
        policy = DestinationPolicy(">", auto_create=False, max_deliveries=1)
        async with Broker(policy) as broker:
            await ask(broker, CreateDestination(A))
            client = await broker.client()
            client.send(A, "0")
            client.subscribe(A)
            await broker.settle()
            client.connection.reject("s", client.sequences())
            await broker.settle()
            assert broker.store.pending("queue://DLQ.a") == [b"0"]

    run(main())


def test_a_transaction_whose_queue_was_deleted_is_refused_as_a_whole() -> None:
    async def main() -> None:
        async with Broker(CLOSED) as broker:
            await ask(broker, CreateDestination(A))
            await ask(broker, CreateDestination("queue://b"))
            client = await broker.client()
            client.connection.begin("t")
            client.send("queue://b", "0", transaction="t")
            client.send(A, "0", transaction="t")
            await ask(broker, DeleteDestination(A))
            with pytest.raises(RequestError, match="there is no queue"):
                client.connection.commit("t")
            await broker.settle()
            assert broker.store.pending("queue://b") == []
            await ask(broker, CreateDestination(A))
            client.connection.commit("t", "done")
            await broker.settle()
            assert client.confirmations == ["done"]
            assert broker.store.pending(A) == [b"0"]

    run(main())


def test_a_session_whose_queue_was_deleted_is_resumed_without_it() -> None:
    async def main() -> None:
        async with Broker(CLOSED) as broker:
            await ask(broker, CreateDestination(A))
            client = await broker.client("mqtt", "c", clean_start=False, session_expiry=1000)
            client.subscribe(A, durable_name="s")
            await broker.settle()
            client.connection.disconnect(graceful=True)
            await ask(broker, DeleteDestination(A))
            client = await broker.client("mqtt", "c", clean_start=False, session_expiry=1000)
            assert [item.filter for item in client.result.refused] == [A]
            assert client.connection.consumers == {}
            await broker.settle()

    run(main())


# --- idle_delete --------------------------------------------------------------------------------


def test_an_idle_queue_is_deleted_and_what_it_counted_is_given_back() -> None:
    async def main() -> None:
        async with Broker(IDLE, DestinationPolicy("kept.>")) as broker:
            client = await broker.client()
            client.acknowledge_at_once()
            for name in ("a", "kept.b"):
                client.subscribe(f"queue://{name}", name)
                client.send(f"queue://{name}", "0")
                await broker.settle()
                client.connection.unsubscribe(name)
            await later(broker, 50)
            assert set(broker.core.destinations.queues) == {A, "queue://kept.b"}
            await later(broker, OVER_S - 50)
            assert set(broker.core.destinations.queues) == {"queue://kept.b"}
            assert set(broker.contents.destinations) == {"queue://kept.b"}
            client.send(A, "1")
            await broker.settle()
            assert broker.store.pending(A) == [b"1"]

    run(main())


@pytest.mark.parametrize("use", ["message", "consumer", "filter", "transaction", "pause"])
def test_a_queue_in_use_is_not_idle(use: str) -> None:
    async def main() -> None:
        async with Broker(IDLE) as broker:
            await ask(broker, CreateDestination(A))
            client = await broker.client()
            if use in ("message", "transaction"):
                client.send(A, "0")
            if use in ("consumer", "transaction"):
                client.subscribe(A)
            if use == "filter":
                client.subscribe("queue://>")
            if use == "pause":
                await ask(broker, PauseDestination(A, (Side.PRODUCERS,)))
            await broker.settle()
            if use == "transaction":
                client.connection.begin("t")
                client.connection.acknowledge("s", client.sequences(), None, "t")
                client.connection.unsubscribe("s")
            await later(broker, 2 * OVER_S)
            assert A in broker.core.destinations.queues
            client.connection.disconnect(graceful=True)

    run(main())


def test_each_use_begins_the_time_anew() -> None:
    async def main() -> None:
        async with Broker(IDLE) as broker:
            client = await broker.client()
            for _ in range(4):  # between two looks each time
                client.subscribe(A)
                client.connection.unsubscribe("s")
                await later(broker, 50)
                assert A in broker.core.destinations.queues
            await later(broker, OVER_S - 50)
            assert A not in broker.core.destinations.queues

    run(main())


def test_a_message_that_comes_while_the_queue_is_being_deleted_keeps_it() -> None:
    async def main() -> None:
        async with Broker(IDLE) as broker:
            await ask(broker, CreateDestination(A))
            client = await broker.client()
            inner = broker.store.page_in

            async def slow(*arguments: Any) -> Any:
                page = await inner(*arguments)
                client.send(A, "0", "sent")
                return page

            broker.store.page_in = slow  # type: ignore[method-assign]  # so that it comes just then
            await later(broker, OVER_S)
            broker.store.page_in = inner  # type: ignore[method-assign]
            assert "sent" in client.confirmations
            assert set(broker.store.pending(A)) == {b"0"}

    run(main())


def test_without_the_option_nobody_looks() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            await later(broker, 10 * OVER_S)
            assert A in broker.core.destinations.queues
            assert not broker.core.destinations.used

    run(main())
