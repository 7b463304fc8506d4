"""A collector that hangs, refuses or is gone: nobody waits, nothing grows, and it is told once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from free_ports import free_port
from opentelemetry.sdk.resources import Resource
from otlp_collector import Collector

from tidegate.spi import Message
from tidegate_traces._context import made
from tidegate_traces._options import TracesOptions
from tidegate_traces._outlet import Outlet
from tidegate_traces._spans import SEND, SpanMaker, described

MAKER = SpanMaker(Resource({}))


def span(number: int) -> object:
    context = made(number, number)
    sent = described(Message("queue://a", b"x"), number, context)
    return MAKER.make(SEND, sent, context, None, (1, 2), {})


def options(endpoint: str, **more: object) -> TracesOptions:
    values: dict[str, object] = {
        "endpoint": endpoint,
        "batch_interval": 0.02,
        "batch_max": 10,
        "queue_max": 50,
        "stop_timeout": 60.0,
        **more,
    }
    return TracesOptions(**values)  # type: ignore[arg-type]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    with Collector() as running:
        yield running


def put(outlet: Outlet, numbers: range) -> None:
    for number in numbers:
        outlet.put(span(number))  # type: ignore[arg-type]


async def until(done: object) -> None:
    """Wait, without holding the loop. The test's own time limit ends it."""
    while not done():  # type: ignore[operator]
        await asyncio.sleep(0.01)


def told(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [text for text in caplog.messages if part in text]


async def test_all_are_sent_with_the_headers_and_compressed(collector: Collector) -> None:
    outlet = Outlet(options(collector.endpoint, headers=("X-Team: harbour",), compression="none"))
    put(outlet, range(1, 26))
    await outlet.close()
    assert sorted(int(item.id, 16) for item in collector.spans) == list(range(1, 26))
    assert outlet.counts() == {
        "traces.waiting": 0,
        "traces.sent": 25,
        "traces.lost": 0,
        "traces.dropped": 0,
    }
    assert all(found["x-team"] == "harbour" for found in collector.requests)


async def test_a_collector_that_hangs_costs_spans_and_no_more(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    collector.proceed.clear()
    outlet = Outlet(options(collector.endpoint))
    put(outlet, range(1, 11))
    assert await asyncio.to_thread(collector.hanging.wait, 60)
    put(outlet, range(11, 1011))
    assert outlet.counts() == {
        "traces.waiting": 50,
        "traces.sent": 0,
        "traces.lost": 0,
        "traces.dropped": 950,
    }
    assert len(told(caplog, "spans are dropped")) == 1
    collector.proceed.set()
    await until(lambda: outlet.counts()["traces.sent"] == 60)
    put(outlet, range(2001, 2002))
    assert told(caplog, "there is room for spans again")
    await outlet.close()
    assert outlet.counts()["traces.sent"] == 61
    assert len(collector.spans) == 61


async def test_a_request_that_takes_too_long_is_lost(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.proceed.clear()
    outlet = Outlet(options(collector.endpoint, timeout=0.2))
    put(outlet, range(1, 3))
    await until(lambda: outlet.counts()["traces.lost"] == 2)
    assert len(told(caplog, "collector=failing")) == 1
    collector.proceed.set()
    await outlet.close()


async def test_a_refusal_is_told_once_and_so_is_its_end(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    collector.status = 401
    outlet = Outlet(options(collector.endpoint))
    for first in (1, 11, 21):
        put(outlet, range(first, first + 10))
        await until(lambda first=first: outlet.counts()["traces.lost"] == first + 9)
    (line,) = told(caplog, "collector=failing")
    assert "401" in line
    collector.status = 200
    put(outlet, range(31, 41))
    await until(lambda: outlet.counts()["traces.sent"] == 10)
    assert told(caplog, "collector=back lost=30")
    assert len(caplog.messages) == 2  # nothing of the SDK's
    await outlet.close()


async def test_nobody_is_there(caplog: pytest.LogCaptureFixture) -> None:
    outlet = Outlet(options(f"http://127.0.0.1:{free_port()}/v1/traces", timeout=1.5))
    put(outlet, range(1, 3))
    await until(lambda: outlet.counts()["traces.lost"] == 2)
    assert "refused" in told(caplog, "collector=failing")[0]
    await outlet.close()


async def test_the_end_waits_only_as_long_as_it_may(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.proceed.clear()
    outlet = Outlet(options(collector.endpoint, stop_timeout=0.0))
    put(outlet, range(1, 31))
    assert await asyncio.to_thread(collector.hanging.wait, 60)
    await outlet.close()
    assert told(caplog, "30 spans are lost")
    collector.proceed.set()
