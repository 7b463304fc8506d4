"""How far sinks are, as the operator's contract and the system topics tell it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from acknowledged import Log, ToySink, acknowledge
from broker_harness import Broker

from tidegate.broker.operate.operations import Operations
from tidegate.spi import (
    Identity,
    RequestError,
    SinkCommit,
    SinkHealth,
    SinkProblem,
    SinkState,
)
from tidegate.spi.operate import (
    CompactSink,
    ListSinks,
    ShowSink,
    SinkDetails,
    SinkList,
    SinkStatus,
    SinkTurn,
    perform,
)

WHO = Identity("local:me", frozenset(), "", "", "operator")


async def shown(broker: Broker, name: str) -> SinkStatus:
    found = await perform(Operations(broker.core), WHO, ShowSink(name))
    assert isinstance(found, SinkDetails)
    return found.status


async def listed(broker: Broker) -> tuple[SinkStatus, ...]:
    found = await perform(Operations(broker.core), WHO, ListSinks())
    assert isinstance(found, SinkList)
    return found.rows


async def test_lag_is_told_in_rows_bytes_and_seconds_for_each_sink() -> None:
    async with Log(acknowledged_limit=400) as broker:
        log = broker.core.acknowledged_log
        one, two = log.reader("one"), log.reader("two")
        one.sink, two.sink = sinks = ToySink(), ToySink()
        await acknowledge(broker, "x" * 40)
        await asyncio.sleep(10)
        await acknowledge(broker, "y" * 40)
        first, second = await listed(broker)
        assert (first.name, second.name) == ("one", "two")
        assert (first.lag_rows, first.lag_bytes, first.log_rows, first.log_bytes) == (2, 80, 2, 80)
        assert first.log_share == 0.2
        assert first.lag_seconds is not None
        assert 10 <= first.lag_seconds < 11
        assert (first.store_id, first.released, first.last) == (broker.core.store_id, 0, 2)

        sinks[0].says = replace(sinks[0].says, mark=1)  # in its table, and not released yet
        await one.release(0)
        seen = await shown(broker, "one")
        assert (seen.lag_rows, seen.lag_bytes, seen.log_rows) == (1, 40, 2)
        assert seen.lag_seconds is not None
        assert seen.lag_seconds < 1, "the second row is the oldest one now"

        await one.release(2)
        seen, other = await listed(broker)
        assert (seen.lag_rows, seen.lag_bytes, seen.lag_seconds, seen.log_rows) == (0, 0, 0.0, 0)
        assert (other.lag_rows, other.lag_bytes) == (2, 80)


async def test_a_clock_that_was_set_makes_no_row_older() -> None:
    async with Log() as broker:
        broker.core.acknowledged_log.reader("lake")
        await acknowledge(broker, "a")
        await asyncio.sleep(2)
        broker.core.step_us += 3_600_000_000
        await asyncio.sleep(2)
        (seen,) = await listed(broker)
        assert seen.lag_seconds is not None
        assert 3 <= seen.lag_seconds < 6


async def test_a_list_has_the_last_problem_of_each_and_one_sink_all_of_them() -> None:
    problems = (SinkProblem(2, "later"), SinkProblem(1, "before"))
    async with Log() as broker:
        reader = broker.core.acknowledged_log.reader("lake")
        reader.sink = sink = ToySink()
        sink.says = replace(sink.says, problem="later", state=SinkState.FAILING, problems=problems)
        (row,) = await listed(broker)
        assert row.health.problems == problems[:1]
        assert (await shown(broker, "lake")).health.problems == problems
        with pytest.raises(RequestError, match="no sink 'lak'; there are: lake"):
            await shown(broker, "lak")


async def test_the_same_facts_are_metrics() -> None:
    async with Log(acknowledged_limit=400) as broker:
        reader = broker.core.acknowledged_log.reader("lake")
        assert broker.core.client_counts()["sinks.lake.state"] == "starting"
        reader.sink = sink = ToySink()
        await acknowledge(broker, "x" * 40)
        await asyncio.sleep(2)
        found = broker.core.client_counts()
        assert found["sinks.lake.rows_behind"] == 1
        assert found["sinks.lake.bytes_behind"] == 40
        assert float(found["sinks.lake.seconds_behind"]) >= 1
        assert found["sinks.lake.log.percent"] == "10.0"
        assert "sinks.lake.table.files" not in found, "nobody knows"
        commit = SinkCommit(at=7_000_000, rows=5, version=3)
        sink.says = replace(sink.says, target_files=9, last_commit=commit, staged_rows=4)
        found = broker.core.client_counts()
        assert found["sinks.lake.table.files"] == 9
        assert (found["sinks.lake.commit.at"], found["sinks.lake.commit.rows"]) == (7, 5)
        assert found["sinks.lake.staged.rows"] == 4
        assert not any("problem" in name for name in found), "it may name paths of the server"


async def test_a_sink_that_cannot_tell_its_health_is_one_that_fails(
    caplog: pytest.LogCaptureFixture, logged_errors: list[str]
) -> None:
    logged_errors.append("cannot report its health")

    class Mute(ToySink):
        def health(self) -> SinkHealth:
            raise SystemExit("a bug")

    async with Log() as broker:
        broker.core.acknowledged_log.reader("lake").sink = Mute()
        caplog.set_level(logging.ERROR)
        await asyncio.sleep(5)
        seen = await shown(broker, "lake")
        assert seen.health.state is SinkState.FAILING
        assert "cannot report its health" in seen.health.problem
    told = [record for record in caplog.records if record.name != "tidegate.broker.sink"]
    assert len(told) == 1, "said once"


class CompactingToy(ToySink):
    """Its seventh turn is the next one."""

    def compact(self) -> int:
        return 7


async def test_a_sink_is_asked_for_upkeep_if_it_has_such_a_thing() -> None:
    async with Log() as broker:
        log, operations = broker.core.acknowledged_log, Operations(broker.core)
        log.reader("lake").sink, log.reader("sea").sink = CompactingToy(), ToySink()
        log.reader("new")
        assert await perform(operations, WHO, CompactSink("lake")) == SinkTurn(7)
        for name, problem in (
            ("sea", "'sea' cannot be compacted"),
            ("new", "is not running yet"),
            ("pond", "no sink 'pond'; there are: lake, sea, new"),
        ):
            with pytest.raises(RequestError, match=problem):
                await perform(operations, WHO, CompactSink(name))
