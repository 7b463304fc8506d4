"""The acknowledged log: several sinks read it, the slowest one decides, limits are kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from acknowledged import Log, acknowledge
from broker_harness import Broker

from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    AcknowledgedLog,
    AcknowledgedMessage,
    AcknowledgedReader,
    BranchId,
    CorruptRecordError,
    EncodedPage,
    FlowControlError,
    Identity,
    LogFilling,
    Message,
    Outcome,
    RequestError,
    StoreIOError,
    encode_rows,
)
from tidegate.spi.operate import PurgeDestination


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


async def test_a_reader_gets_the_same_rows_encoded_also_from_a_store_that_has_none_so() -> None:
    async with Log() as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        await acknowledge(broker, "a", "b", "c")
        assert broker.store.capabilities.encoded_log is None
        page = await reader.read_encoded(1, 1000, 10**9)
        rows = [row for run in page.runs for row in run.decode()]
        assert rows == list((await reader.read(1, 1000, 10**9)).rows)
        assert (page.last, page.count) == (3, 2)
        await reader.release(2)
        with pytest.raises(RequestError):
            await reader.read_encoded(1, 1000, 10**9)


class EncodedStore:
    """Has its rows encoded, up to one that is damaged; then one with its body elsewhere."""

    def __init__(self, log: AcknowledgedLog) -> None:
        self._log = log

    async def acknowledged_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        page = await self._log.acknowledged(after, limit, bytes_max)
        if after == 1:
            raise CorruptRecordError("wrong checksum", location="file 7")
        return EncodedPage(() if after == 2 else encode_rows(page.rows[:1]), page.last)


async def test_what_a_store_cannot_give_encoded_is_read_as_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Log() as broker:
        await acknowledge(broker, "a", "b", "c")
        log = broker.core.acknowledged_log
        reader = log.reader("sink")
        capabilities = replace(log.store.capabilities, encoded_log=EncodedStore(log.rows))
        monkeypatch.setattr(type(log.store), "capabilities", capabilities)
        for after in range(4):
            page = await reader.read_encoded(after, 1000, 10**9)
            rows = [row for run in page.runs for row in run.decode()]
            assert [row.message.body for row in rows] == [
                body for number, body in enumerate((b"a", b"b", b"c"), 1) if number > after
            ][: 1 if not after else 9]
            assert page.last == 3


def test_what_is_no_text_in_utf_8_is_encoded_all_the_same() -> None:
    message = Message("queue://\ud800", b"\xff", (("\udfff", "v"),), content_type=None)
    row = AcknowledgedMessage(1, 1, message, 1, 0, 0, "", "", "")
    ((found,),) = [run.decode() for run in encode_rows([row])]
    assert found.message.destination == "queue://\\ud800"
    assert found.message.headers == (("\\udfff", "v"),)
    assert found.message.body == b"\xff"


async def test_a_row_says_who_sent_the_message_and_how_often_it_was_delivered() -> None:
    async with Log() as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        producer = await broker.client("mqtt", "sensor", version="5.0")
        producer.send("queue://q", "a", token=1, protocol="mqtt", client_id="sensor")
        await broker.settle()
        consumer = await broker.client("stomp", "consumer")
        consumer.subscribe("queue://q")
        await broker.settle()
        consumer.connection.reject("s", consumer.sequences())
        await broker.settle()
        consumer.ack_all(token=1)
        await broker.settle()
        (row,) = (await reader.read(0, 10, 10**9)).rows
        message = row.message
        assert (message.protocol, message.protocol_version) == ("mqtt", "5.0")
        assert (message.client_id, message.owner) == ("sensor", "anonymous")
        assert 0 < message.stored_at <= row.delivered_at
        assert (row.principal, row.delivery_count) == ("anonymous", 2)


async def test_without_a_sink_messages_do_not_say_who_sent_them() -> None:
    async with Broker() as broker:
        producer = await broker.client("mqtt", "sensor", version="5.0")
        producer.send("queue://q", "a", token=1)
        await broker.settle()
        consumer = await broker.client("stomp", "consumer")
        consumer.subscribe("queue://q")
        await broker.settle()
        (found,) = [stored.message for _, stored in consumer.deliveries]
        assert (found.owner, found.protocol_version, found.stored_at) == ("", "", 0)


async def end_in_every_way(broker: Broker) -> None:
    """One message expires, one is dropped, one purged, one dead-lettered."""
    client = await broker.client("stomp", "consumer")
    client.send("queue://expires", "expired", expires_at=1)
    client.send("queue://full", "dropped")
    client.send("queue://full", "stays")
    client.send("queue://purged", "purged")
    client.send("queue://dies", "dead")
    await broker.settle()
    client.subscribe("queue://expires", "e")
    client.subscribe("queue://dies", "d")
    await broker.settle()
    client.connection.reject("d", client.sequences("d"), token="rejected")
    await Operations(broker.core).purge_destination(ME, PurgeDestination("queue://purged"))
    await broker.settle()
    assert client.bodies("e") == []
    assert broker.store.pending("queue://full") == [b"stays"]
    assert broker.store.pending("queue://purged") == []


def consumer_of(row: AcknowledgedMessage) -> tuple[str, str, str, str]:
    return row.client_id, row.subscription, row.protocol, row.principal


POLICIES = (
    DestinationPolicy("queue://dies", max_deliveries=1),
    DestinationPolicy("queue://full", messages_max=1, overflow="drop_oldest"),
)
ME = Identity("local:me", frozenset(), "", "", "operator")


async def test_nothing_that_was_confirmed_leaves_without_a_row_that_says_how_it_ended() -> None:
    async with Broker(*POLICIES, keep_acknowledged=True) as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        await end_in_every_way(broker)
        rows = (await reader.read(0, 10, 10**9)).rows
        found = {row.message.body: (row.outcome, row.reason, row.delivery_count) for row in rows}
        assert found == {
            b"expired": (Outcome.EXPIRED, "", 0),
            b"dropped": (Outcome.DROPPED, found[b"dropped"][1], 0),
            b"purged": (Outcome.PURGED, "", 0),
            b"dead": (Outcome.DEAD_LETTERED, "rejected after 1 delivery", 1),
        }
        assert found[b"dropped"][1]  # it says which limit
        assert all(row.acked_at for row in rows)
        for row in rows:
            is_dead = row.message.body == b"dead"
            assert bool(row.delivered_at) is is_dead
            nobody, last = ("",) * 4, ("consumer", "d", "stomp", "anonymous")
            assert consumer_of(row) == (last if is_dead else nobody)


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_dead_letter_s_row_says_who_had_it_last(is_prepared: bool) -> None:
    """Whoever rejects with a transaction, too; and a client that is gone by the time."""
    async with Broker(*POLICIES, keep_acknowledged=True) as broker:
        client = await broker.client("stomp", "c")
        client.send("queue://dies", "dead")
        client.subscribe("queue://dies", "d")
        await broker.settle()
        client.connection.begin("t")
        client.connection.reject("d", client.sequences("d"), None, "t")
        if is_prepared:
            branch = BranchId(1, b"one", b"", "anonymous")
            client.connection.prepare("t", branch)
            await broker.settle()
            await broker.kill()
            manager = await broker.client("stomp", "manager")
            manager.connection.commit_branch(branch)
        else:
            client.connection.commit("t")
        await broker.settle()
        reader = broker.core.acknowledged_log.reader("sink")
        (row,) = (await reader.read(0, 10, 10**9)).rows
        assert (row.outcome, row.delivery_count) == (Outcome.DEAD_LETTERED, 1)
        assert row.delivered_at
        assert consumer_of(row) == ("c", "d", "stomp", "anonymous")


@pytest.mark.parametrize("is_logged", [True, False])
async def test_what_a_consumer_refuses_for_good_is_gone_and_its_row_says_why(
    is_logged: bool,
) -> None:
    asked = {} if is_logged else {"acknowledged_outcomes": ("expired",)}
    async with Log(**asked) as broker:
        client = await broker.client("mqtt", "picky", version="5.0")
        for body in ("taken", "refused", "refused, too"):
            client.send("queue://q", body)
        client.subscribe("queue://q")
        await broker.settle()
        one, two, three = client.sequences()
        client.connection.refuse("s", [two, three], "0x97 quota exceeded")
        client.connection.acknowledge("s", [one], "t")
        with pytest.raises(RequestError, match="not in flight"):
            client.connection.refuse("s", [two], "again")
        await broker.settle()
        assert broker.store.pending("queue://q") == []
        await broker.kill()
        reader = broker.core.acknowledged_log.reader("sink")
        rows = (await reader.read(0, 10, 10**9)).rows
        why = (Outcome.REJECTED, "0x97 quota exceeded")
        refused = {b"refused": why, b"refused, too": why} if is_logged else {}
        found = {row.message.body: (row.outcome, row.reason) for row in rows}
        assert found == {b"taken": (Outcome.ACKNOWLEDGED, ""), **refused}
        for row in rows:
            assert consumer_of(row) == ("picky", "s", "mqtt", "anonymous")
            assert row.delivered_at
            assert row.delivery_count == 1


async def test_what_leaves_before_a_sink_has_started_has_a_row_too() -> None:
    async with Broker(keep_acknowledged=True) as broker:
        client = await broker.client("stomp", "producer")
        client.send("queue://full", "dropped")
        client.send("queue://full", "stays")
        await broker.settle()
        broker.policies = POLICIES
        await broker.kill()
        await broker.settle()
        assert broker.store.pending("queue://full") == [b"stays"]
        reader = broker.core.acknowledged_log.reader("sink")
        (await broker.client()).connection.synchronize("synced")
        await broker.settle()
        (row,) = (await reader.read(0, 10, 10**9)).rows
        assert (row.message.body, row.outcome) == (b"dropped", Outcome.DROPPED)


async def test_only_outcomes_that_are_asked_for_have_rows() -> None:
    async with Broker(
        *POLICIES, keep_acknowledged=True, acknowledged_outcomes=("expired",)
    ) as broker:
        reader = broker.core.acknowledged_log.reader("sink")
        await end_in_every_way(broker)
        assert await bodies(reader) == [b"expired"]


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


async def test_a_log_that_fills_is_told_before_it_is_full_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told() -> list[str]:
        return [text for text in caplog.messages if "acknowledged_log=" in text]

    caplog.set_level("INFO")
    async with Log(acknowledged_limit=100) as broker:
        log = broker.core.acknowledged_log
        heard: list[LogFilling] = []
        log.announce = heard.append
        assert log.snapshot(0) == {}
        reader = log.reader("lake")
        await acknowledge(broker, "x" * 40)
        await asyncio.sleep(3)
        assert told() == []
        assert heard == []
        await acknowledge(broker, "x" * 41)
        await asyncio.sleep(3)
        (filling,) = told()
        assert "acknowledged_log=filling bytes=81" in filling
        assert heard == [LogFilling(81, 100, {"lake": 2}, False, False)]
        assert "lake 2 rows behind" in filling
        assert "at the limit publishes are refused" in filling
        snapshot = broker.core.client_counts()
        assert snapshot["acknowledged_log.bytes"] == 81
        assert snapshot["acknowledged_log.filling"] == 1
        assert snapshot["sinks.lake.rows_behind"] == 2
        await acknowledge(broker, "x" * 60)
        await asyncio.sleep(3)
        assert [text.split()[0] for text in told()[1:]] == ["acknowledged_log=full"]
        await reader.release(3)
        await asyncio.sleep(3)
        assert all("acknowledged_log=ok" in text for text in told()[2:])
        assert log.snapshot(0)["acknowledged_log.filling"] == 0
        assert heard[1:] == [LogFilling(0, 100, {"lake": 0}, False, True)]


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
