"""Queues and topics whose producers or consumers are paused."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import Broker
from operated import ME, ask, bodies, consumed, filled
from virtual_loop import run

from tidegate.broker.operate.operations import Operations
from tidegate.spi import FlowControlError, RequestError
from tidegate.spi.operate import (
    CreateDestination,
    DeleteDestination,
    ListDestinations,
    PauseDestination,
    ResumeDestination,
    ShowDestination,
    Side,
)

A, B = "queue://a", "queue://b"


# --- pausing ------------------------------------------------------------------------------------


def test_paused_producers_are_refused_and_everything_else_goes_on() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 1)
            client = await broker.client()
            await ask(broker, PauseDestination(A, (Side.PRODUCERS,)))
            assert (await ask(broker, ShowDestination(A))).row.producers_paused
            with pytest.raises(FlowControlError, match="paused its producers"):
                client.send(A, "1")
            with pytest.raises(FlowControlError):
                client.connection.check_publish(A)
            client.connection.begin("t")
            with pytest.raises(FlowControlError):
                client.send(A, "1", transaction="t")
            client.send(B, "1", transaction="t")
            client.connection.commit("t", "committed")
            await broker.settle()
            assert client.confirmations == ["committed"]
            assert await consumed(broker, A) == bodies(0)
            await ask(broker, ResumeDestination(A))
            client.send(A, "1")
            await broker.settle()
            assert broker.store.pending(A) == [b"1"]
            assert not broker.core.publisher.detours

    run(main())


def test_a_commit_to_a_paused_queue_is_refused_and_can_be_made_when_it_is_resumed() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            client = await broker.client()
            client.connection.begin("t")
            client.send(A, "0", transaction="t")
            await ask(broker, PauseDestination(A, (Side.PRODUCERS,)))
            with pytest.raises(FlowControlError):
                client.connection.commit("t")
            await ask(broker, ResumeDestination(A))
            client.connection.commit("t")
            await broker.settle()
            assert broker.store.pending(A) == bodies(0)

    run(main())


def test_a_topic_takes_nothing_while_its_producers_are_paused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            await ask(broker, PauseDestination("topic://t", (Side.PRODUCERS,)))
            with pytest.raises(FlowControlError):
                client.send("topic://t", "0")
            page = await ask(broker, ListDestinations())
            assert [row.destination for row in page.rows] == ["topic://t"]
            await ask(broker, ResumeDestination("topic://t", (Side.PRODUCERS,)))
            client.send("topic://t", "0")
            for bad in ("topic://t.>", "topic://$SYS.x", "t"):
                with pytest.raises(RequestError):
                    await ask(broker, PauseDestination(bad, (Side.PRODUCERS,)))
            with pytest.raises(RequestError, match="queues only"):
                await ask(broker, PauseDestination("topic://t"))

    run(main())


@pytest.mark.parametrize("side", Side)
def test_a_queue_is_paused_after_a_restart_until_it_is_resumed_and_stays_its_owners(
    side: Side,
) -> None:
    async def main() -> None:
        async with Broker() as broker:
            maker = await broker.client()
            maker.send(A, "0")
            await broker.settle()
            await ask(broker, PauseDestination(A, (side,)))
            for _ in range(2):
                await broker.kill()
                row = (await ask(broker, ShowDestination(A))).row
                assert row.producers_paused is (side is Side.PRODUCERS)
                assert row.consumers_paused is (side is Side.CONSUMERS)
                client = await broker.client()
                if row.producers_paused:
                    with pytest.raises(FlowControlError, match="paused its producers"):
                        client.send(A, "1")
                client.subscribe(A)
                await broker.settle()
                assert client.bodies() == ([] if row.consumers_paused else bodies(0))
            await ask(broker, ResumeDestination(A, (side,)))
            client.ack_all()
            await broker.settle()
            await broker.kill()
            row = (await ask(broker, ShowDestination(A))).row
            assert (row.producers_paused, row.consumers_paused, row.pending) == (False, False, 0)
            assert not broker.core.publisher.detours
            assert broker.contents.destinations[A].owner == "anonymous"

    run(main())


def test_a_paused_topic_is_in_the_store_as_long_as_it_is_paused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, PauseDestination("topic://t", (Side.PRODUCERS,)))
            await broker.kill()
            client = await broker.client()
            with pytest.raises(FlowControlError):
                client.send("topic://t", "0")
            await ask(broker, ResumeDestination("topic://t", (Side.PRODUCERS,)))
            assert broker.contents.destinations == {}
            await broker.kill()
            client = await broker.client()
            client.send("topic://t", "0")
            await broker.settle()

    run(main())


def test_a_queue_that_is_made_anew_is_not_paused() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            await ask(broker, PauseDestination(A))
            await ask(broker, DeleteDestination(A))
            await ask(broker, CreateDestination(A))
            for _ in range(2):
                row = (await ask(broker, ShowDestination(A))).row
                assert (row.producers_paused, row.consumers_paused) == (False, False)
                await broker.kill()

    run(main())


def test_a_pause_begins_while_the_store_has_no_room_and_is_stored_when_it_has() -> None:
    """Or what fills the disk could not be stopped."""

    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, CreateDestination(A))
            broker.store.refuse(100)
            asking = asyncio.ensure_future(
                Operations(broker.core).pause_destination(
                    ME, PauseDestination(A, (Side.PRODUCERS,))
                )
            )
            await asyncio.sleep(0)
            client = await broker.client()
            with pytest.raises(FlowControlError, match="paused its producers"):
                client.send(A, "1")
            assert "as soon as there is room" in (await asking).note
            broker.store.refuse(0)
            await broker.settle()
            await broker.kill()
            assert (await ask(broker, ShowDestination(A))).row.producers_paused

    run(main())


@pytest.mark.parametrize("selector", ["", "n >= 0"])
def test_paused_consumers_get_nothing_and_keep_what_they_have(selector: str) -> None:
    async def main() -> None:
        async with Broker() as broker:
            await filled(broker, 3)
            client = await broker.client()
            client.subscribe(A, prefetch_count=2, selector=selector)
            await broker.settle()
            await ask(broker, PauseDestination(A, (Side.CONSUMERS,)))
            client.ack_all()
            await filled(broker, 2)
            assert client.bodies() == bodies(0, 1)
            second = await broker.client()
            second.subscribe(A, selector=selector)
            await broker.settle()
            assert second.bodies() == []
            await ask(broker, ResumeDestination(A, (Side.CONSUMERS,)))
            for _ in range(3):
                client.ack_all()
                await broker.settle()
            assert sorted(client.bodies() + second.bodies()) == sorted(bodies(0, 1, 2, 0, 1))
            second.ack_all()
            await broker.settle()

    run(main())
