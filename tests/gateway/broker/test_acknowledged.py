"""The acknowledged log: several sinks read it, the slowest one decides, limits are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from broker_harness import Broker, Client

from tidegate.spi import AcknowledgedReader, FlowControlError, RequestError, StoreIOError


class Log(Broker):
    """A broker that keeps acknowledged messages."""

    def __init__(self, **config: Any) -> None:
        super().__init__(keep_acknowledged=True, **config)


async def acknowledge(broker: Broker, *bodies: str) -> Client:
    """Messages that were sent, consumed and acknowledged, one batch each."""
    client = await broker.client("stomp", "consumer")
    client.subscribe("queue://q")
    client.acknowledge_at_once()
    for body in bodies:
        client.send("queue://q", body)
        await broker.settle()
        client.connection.synchronize("synced")
        await broker.settle()
    client.connection.unsubscribe("s")
    return client


async def bodies(reader: AcknowledgedReader, after: int = 0) -> list[bytes]:
    return [row.message.body for row in (await reader.read(after, 1000, 10**9)).rows]


async def test_a_reader_sees_what_was_acknowledged_in_order_with_its_consumer() -> None:
    async with Log() as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        assert reader.store_id == broker.core.store_id
        assert (reader.last, reader.released) == (0, 0)
        await acknowledge(broker, "a", "b", "c")
        page = await reader.read(0, 2, 10**9)
        assert [row.ack_sequence for row in page.rows] == [1, 2]
        assert page.last == reader.last == 3
        row = page.rows[0]
        assert (row.client_id, row.subscription, row.protocol) == ("consumer", "s", "stomp")
        assert 0 < row.delivered_at <= row.acked_at
        assert await bodies(reader, after=1) == [b"b", b"c"]


async def test_a_reader_waits_for_rows_behind_its_position() -> None:
    async with Log() as broker:
        log = broker.core.acknowledged_log
        one, two = log.reader("one"), log.reader("two")
        waiting = [
            asyncio.ensure_future(one.wait_beyond(0)),
            asyncio.ensure_future(two.wait_beyond(0)),
            asyncio.ensure_future(two.wait_beyond(1)),
        ]
        client = await broker.client()
        client.send("queue://q", "no row yet")
        await broker.settle()
        assert not any(task.done() for task in waiting)
        await acknowledge(broker, "a")
        await broker.settle()
        assert [task.done() for task in waiting] == [True, True, True]
        again = asyncio.ensure_future(one.wait_beyond(2))
        await broker.settle()
        assert not again.done()
        again.cancel()
        await acknowledge(broker, "b")
        await one.wait_beyond(2)


async def test_rows_are_released_when_every_reader_has_released_them() -> None:
    async with Log() as broker:
        log = broker.core.acknowledged_log
        one, two = log.reader("one"), log.reader("two")
        await acknowledge(broker, "a", "b", "c")
        await one.release(3)
        assert await bodies(two) == [b"a", b"b", b"c"]
        await two.release(1)
        assert broker.contents.log_released == 1
        await two.release(0)  # going back changes nothing
        assert (two.released, broker.contents.log_released) == (1, 1)
        await two.release(2)
        assert await bodies(two, after=2) == [b"c"]
        assert broker.contents.log_released == 2


async def test_a_reader_begins_with_what_the_store_still_holds() -> None:
    async with Log() as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        await acknowledge(broker, "a", "b", "c")
        await reader.release(2)
        await broker.kill()
        reader = broker.core.acknowledged_log.reader("sink")
        assert reader.released == 2
        assert await bodies(reader, after=2) == [b"c"]


async def test_publishes_are_refused_while_the_log_is_over_its_limit() -> None:
    async with Log(acknowledged_limit=100) as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        client = await acknowledge(broker, "x" * 60, "x" * 60)
        await asyncio.sleep(2)
        with pytest.raises(FlowControlError, match="acknowledged_limit"):
            client.send("queue://q", "refused")
        assert len(await bodies(reader)) == 2  # the sink loses nothing
        await reader.release(1)
        await asyncio.sleep(2)
        client.send("queue://q", "accepted", "r")
        await broker.settle()
        assert client.confirmations[-1] == "r"


async def test_publishes_are_refused_while_the_oldest_row_is_too_old() -> None:
    async with Log(acknowledged_age=60.0) as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        client = await acknowledge(broker, "a")
        await asyncio.sleep(50)
        client.send("queue://q", "still accepted")
        await asyncio.sleep(15)
        with pytest.raises(FlowControlError):
            client.send("queue://q", "refused")
        await reader.release(1)
        await asyncio.sleep(2)
        client.send("queue://q", "accepted")


async def test_the_oldest_rows_are_discarded_where_clients_come_first_and_no_more_than_needed() -> (
    None
):
    async with Log(acknowledged_limit=250, acknowledged_overflow="discard_oldest") as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        client = await acknowledge(broker, *(["x" * 50] * 8))  # 400 bytes
        await asyncio.sleep(2)
        assert len(broker.contents.log) == 5
        assert reader.released == 3
        with pytest.raises(RequestError):
            await reader.read(0, 10, 1000)
        client.send("queue://q", "accepted")
        await reader.release(2)  # what was discarded meanwhile does not come back
        assert broker.contents.log_released == 3


async def test_only_rows_that_are_too_old_are_discarded() -> None:
    async with Log(acknowledged_age=60.0, acknowledged_overflow="discard_oldest") as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        await acknowledge(broker, "old", "old, too")
        await asyncio.sleep(40)
        await acknowledge(broker, "new")
        await asyncio.sleep(30)
        assert await bodies(reader, after=reader.released) == [b"new"]
        await asyncio.sleep(40)
        assert broker.contents.log == []


@pytest.mark.parametrize("step_s", [-5_000, 5_000])
async def test_a_step_of_the_wall_clock_makes_no_row_older_and_none_younger(step_s: int) -> None:
    async with Log(acknowledged_age=60.0, acknowledged_overflow="discard_oldest") as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        await acknowledge(broker, "old")
        await asyncio.sleep(30)
        broker.core.step_us = step_s * 1_000_000
        await asyncio.sleep(2)
        await acknowledge(broker, "new")
        await asyncio.sleep(20)
        assert await bodies(reader, after=reader.released) == [b"old", b"new"]
        await asyncio.sleep(20)
        assert await bodies(reader, after=reader.released) == [b"new"]
        await asyncio.sleep(40)
        assert broker.contents.log == []


async def test_without_a_reader_the_limits_do_not_apply() -> None:
    async with Log(acknowledged_limit=1) as broker:
        client = await acknowledge(broker, "x" * 100)
        await asyncio.sleep(5)
        client.send("queue://q", "accepted")


@pytest.mark.parametrize("error", [StoreIOError("damaged"), OSError("a bug of a plugin")])
async def test_a_log_that_cannot_be_read_does_not_stop_the_maintenance(
    error: Exception, logged_errors: list[str]
) -> None:
    logged_errors.append("maintenance failed")
    async with Log(acknowledged_age=1.0, acknowledged_overflow="discard_oldest") as broker:
        broker.core.acknowledged_log.reader("sink")
        await acknowledge(broker, "a")
        good = broker.store.inner.acknowledged
        failures = [error] * 3

        async def acknowledged(*args: int) -> Any:
            if failures:
                raise failures.pop()
            return await good(*args)

        broker.store.inner.acknowledged = acknowledged  # type: ignore[method-assign]
        await asyncio.sleep(10)
        assert broker.contents.log == []
