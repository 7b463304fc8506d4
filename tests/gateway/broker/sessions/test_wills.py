"""Wills: at once, after a delay, after a restart, with a full store; each published once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, Client, key_of, message

from tidegate.spi import AddMessage


async def mortal(broker: Broker, expiry: int = 100, **more: Any) -> Client:
    """A client with a will."""
    more.setdefault("will", message("queue://w", "gone"))
    return await broker.client("mqtt", "c", clean_start=False, session_expiry=expiry, **more)


def wills(broker: Broker) -> list[bytes]:
    return broker.store.pending("queue://w")


async def test_a_will_without_a_delay_is_published_when_the_connection_ends() -> None:
    async with Broker() as broker:
        client = await mortal(broker)
        client.connection.disconnect(graceful=False)
        await broker.settle()
        assert wills(broker) == [b"gone"]
        assert broker.contents.sessions[key_of("c")].will is None


async def test_a_client_that_says_goodbye_leaves_no_will_unless_it_asks_to() -> None:
    async with Broker() as broker:
        client = await mortal(broker)
        client.connection.disconnect(graceful=True)
        await asyncio.sleep(500)
        assert wills(broker) == []
        client = await mortal(broker)
        client.connection.disconnect(graceful=True, publish_will=True)
        await broker.settle()
        assert wills(broker) == [b"gone"]


@pytest.mark.parametrize("life_us", [0, 5_000_000])
async def test_the_life_of_a_will_begins_when_it_is_published(life_us: int) -> None:
    async with Broker() as broker:
        begin = broker.core.now()
        fields = {"received_at": begin, "expires_at": begin + life_us if life_us else 0}
        client = await mortal(broker, will=message("queue://w", "gone", **fields))
        await asyncio.sleep(60)
        client.connection.disconnect(graceful=False)
        await broker.settle()
        (added,) = broker.store.operations(AddMessage)
        published = added.message.received_at
        assert published >= begin + 60_000_000
        assert added.message.expires_at == (published + life_us if life_us else 0)


async def test_a_will_waits_for_its_delay() -> None:
    async with Broker() as broker:
        client = await mortal(broker, will_delay=20)
        client.connection.disconnect(graceful=False)
        await asyncio.sleep(18)
        assert wills(broker) == []
        await asyncio.sleep(4)
        await broker.settle()
        assert wills(broker) == [b"gone"]
        await asyncio.sleep(500)
        assert wills(broker) == [b"gone"]


@pytest.mark.parametrize("step_s", [-5_000, 5_000])
async def test_a_step_of_the_wall_clock_does_not_change_the_delay_of_a_will(step_s: int) -> None:
    async with Broker() as broker:
        client = await mortal(broker, will_delay=20)
        client.connection.disconnect(graceful=False)
        broker.core.step_us = step_s * 1_000_000
        await asyncio.sleep(18)
        assert wills(broker) == []
        await asyncio.sleep(4)
        await broker.settle()
        assert wills(broker) == [b"gone"]


async def test_a_will_is_published_with_the_end_of_the_session_even_if_its_delay_is_longer() -> (
    None
):
    async with Broker() as broker:
        client = await mortal(broker, expiry=10, will_delay=1000)
        client.connection.disconnect(graceful=False)
        await asyncio.sleep(13)
        await broker.settle()
        assert wills(broker) == [b"gone"]
        assert broker.contents.sessions == {}


async def test_a_client_that_comes_back_in_time_takes_its_will_along() -> None:
    async with Broker() as broker:
        client = await mortal(broker, will_delay=20)
        client.connection.disconnect(graceful=False)
        await asyncio.sleep(10)
        again = await mortal(broker, will=None)
        await asyncio.sleep(100)
        again.connection.disconnect(graceful=False)
        await broker.settle()
        assert wills(broker) == []
        assert len(broker.core.wills) == 0


async def test_a_clean_start_ends_the_session_and_with_it_the_delay() -> None:
    async with Broker() as broker:
        client = await mortal(broker, will_delay=20)
        client.connection.disconnect(graceful=False)
        await broker.client("mqtt", "c", clean_start=True)
        await broker.settle()
        assert wills(broker) == [b"gone"]


async def test_a_take_over_publishes_a_will_without_delay_and_keeps_one_with_a_delay() -> None:
    async with Broker() as broker:
        await mortal(broker)
        await mortal(broker, will_delay=20)
        await broker.settle()
        assert wills(broker) == [b"gone"]
        await mortal(broker, will=None)
        await asyncio.sleep(100)
        assert wills(broker) == [b"gone"]


@pytest.mark.parametrize("expiry", [0, 100])
async def test_the_will_of_a_client_that_was_connected_survives_a_kill_and_is_published_once(
    expiry: int,
) -> None:
    async with Broker() as broker:
        await mortal(broker, expiry)
        await broker.settle()
        await broker.kill()
        await broker.settle()
        assert wills(broker) == [b"gone"]
        await broker.kill()
        await broker.settle()
        assert wills(broker) == [b"gone"]
        assert len(broker.core.sessions) == (1 if expiry else 0)


async def test_a_delay_goes_on_after_a_kill() -> None:
    async with Broker() as broker:
        client = await mortal(broker, will_delay=50)
        client.connection.disconnect(graceful=False)
        await asyncio.sleep(30)
        await broker.kill()
        await asyncio.sleep(10)
        assert wills(broker) == []
        await asyncio.sleep(15)
        await broker.settle()
        assert wills(broker) == [b"gone"]


async def test_a_will_that_finds_the_store_full_is_published_when_there_is_room() -> None:
    async with Broker() as broker:
        client = await mortal(broker)
        broker.store.refuse(1)
        client.connection.disconnect(graceful=False)
        await broker.settle()
        await asyncio.sleep(10)
        await broker.settle()
        assert wills(broker) == [b"gone"]
        assert len(broker.store.operations(AddMessage)) == 1


@pytest.mark.parametrize("comes_back_first", [False, True])
async def test_a_will_that_found_no_room_and_the_next_one_of_the_same_client_are_both_published(
    comes_back_first: bool,
) -> None:
    async with Broker() as broker:
        client = await mortal(broker)
        broker.store.hold()
        broker.store.refuse(1)
        client.connection.disconnect(graceful=False)
        if not comes_back_first:
            broker.store.release()
        await broker.settle()
        again = asyncio.create_task(mortal(broker, will=message("queue://w", "gone again")))
        await broker.settle()
        broker.store.release()
        (await again).connection.disconnect(graceful=False)
        await asyncio.sleep(10)
        await broker.settle()
        assert sorted(wills(broker)) == [b"gone", b"gone again"]
        assert broker.contents.sessions[key_of("c")].will is None


async def test_a_will_that_is_retained_becomes_the_retained_message() -> None:
    async with Broker() as broker:
        client = await mortal(broker, will=message("topic://w", "gone", retain=True))
        client.connection.disconnect(graceful=False)
        await broker.settle()
        kept = broker.core.retained.get("topic://w")
        assert kept is not None
        assert kept.body == b"gone"
