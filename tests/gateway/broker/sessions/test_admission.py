"""A client with a stored session is let in when that is durable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, Client, connect_request, key_of, message

from tidegate.spi import (
    ConnectionEndedError,
    ConnectResult,
    InflightDirection,
    InflightRecord,
    InflightState,
    StoreIOError,
)

STORED: dict[str, Any] = {"clean_start": False, "session_expiry": 100}


def connecting(broker: Broker, **more: Any) -> asyncio.Task[ConnectResult]:
    return asyncio.create_task(broker.core.connect(connect_request("mqtt", "c", **more), Client()))


async def test_a_session_is_durable_before_its_client_is_accepted() -> None:
    async with Broker() as broker:
        broker.store.hold()
        task = connecting(broker, **STORED)
        await broker.settle()
        assert not task.done()
        broker.store.release()
        assert not (await task).session_present
        await broker.kill()
        assert (await connecting(broker, **STORED)).session_present


async def test_a_client_that_began_anew_does_not_meet_its_old_packet_ids_after_a_kill() -> None:
    async with Broker() as broker:
        old = await broker.client("mqtt", "c", **STORED)
        received = InflightRecord(key_of("c"), InflightDirection.IN, 7, InflightState.RECEIVED)
        old.connection.record_inflight(put=(received,))
        await broker.settle()
        old.connection.disconnect(graceful=True)
        await broker.settle()
        assert not (await connecting(broker, clean_start=True)).session_present
        await broker.kill()  # before anything else of the client is durable
        result = await connecting(broker, **STORED)
        assert (result.session_present, list(result.inflight)) == (False, [])


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_client_that_is_gone_before_it_was_accepted_leaves_no_will(
    is_taken_over: bool,
) -> None:
    async with Broker() as broker:
        watcher = await broker.client("mqtt", "w")
        watcher.subscribe("topic://w", "w")
        await broker.settle()
        broker.store.hold()
        task = connecting(broker, will=message("topic://w", "gone"), **STORED)
        await broker.settle()
        if is_taken_over:
            second = connecting(broker, **STORED)
            await broker.settle()
            broker.store.release()
            await task  # its front-end knows that it is over
            assert (await second).session_present
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            broker.store.release()
        await broker.settle()
        assert watcher.bodies("w") == []
        assert len(broker.core.connections) == (2 if is_taken_over else 1)


async def test_a_full_store_lets_in_who_can_make_room() -> None:
    async with Broker() as broker:
        broker.store.is_full = lambda _batch: True
        connected = asyncio.create_task(broker.client("mqtt", "c", **STORED))
        await connected  # the store is still full
        broker.store.is_full = lambda _batch: False


async def test_a_store_that_fails_lets_nobody_in(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")

    async with Broker() as broker:
        broker.store.error = StoreIOError("broken")
        with pytest.raises(StoreIOError, match="broken"):
            await connecting(broker, **STORED)
        assert not broker.core.connections


async def test_a_gateway_that_stops_lets_nobody_in() -> None:
    async with Broker() as broker:
        broker.store.hold()
        task = connecting(broker, **STORED)
        await broker.settle()
        stopping = asyncio.create_task(broker.core.end_connections())
        await asyncio.sleep(0)
        broker.store.release()
        await stopping
        with pytest.raises(ConnectionEndedError):
            await task
        assert not broker.core.connections
