"""While a gateway is drained its bridges bring nothing in, and go on taking out what is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from two_gateways import produce, rule, take

from tidegate.spi.operate import BridgeRow, Drain, ListBridges, ListEvents, ShowOverview, Undrain
from tidegate.testing.embedded import EmbeddedGateway

from .test_connected import said
from .test_exchange import running
from .test_handing_failed import ask as ask_world
from .test_handing_over import ask, numbered, two, until_done

RULES = rule("in", "in", "/queue/in", "queue://in") + rule(
    "out", "out", "/queue/out", "queue://out"
)


async def rows(gateway: EmbeddedGateway) -> dict[str, BridgeRow]:
    return {row.rule: row for row in (await ask(gateway, ListBridges())).rows}


async def until_connected(gateway: EmbeddedGateway, *names: str) -> None:
    async with asyncio.timeout(60):
        while {name for name, row in (await rows(gateway)).items() if row.server} != set(names):
            await asyncio.sleep(0.005)


async def test_rules_in_pause_without_a_complaint_and_rules_out_go_on() -> None:
    async with two(RULES) as (here, target):
        await until_connected(here, "in", "out")
        await produce(here.stomp_port, "/queue/out", [*numbered(200), b"end"])
        await ask(here, Drain(timeout_s=0))
        await until_connected(here, "out")
        found = (await rows(here))["in"]
        assert "the gateway is drained" in found.paused
        assert (found.server, found.problem, found.failures) == ("", "", 0)
        await produce(target.stomp_port, "/queue/in", [*numbered(3), b"end"])
        there = await take(target.stomp_port, "/queue/out", b"end")
        assert [one.body for one in there] == [*numbered(200), b"end"]
        async with asyncio.timeout(60):
            while (await ask(here, ShowOverview())).backlog > 1:  # the mark of `produce`
                await asyncio.sleep(0.01)
        assert (await rows(here))["in"].moved == 0
        events = await said(here)
        assert "bridge-lost" not in events
        assert events.count("bridge-paused") == 1
        await ask(here, Undrain())
        await until_connected(here, "in", "out")
        assert len(await take(here.stomp_port, "/queue/in", b"end")) == 4
        row = (await rows(here))["in"]
        assert (row.paused, row.moved, row.failures) == ("", 4, 0)


async def test_a_hand_over_has_queues_for_itself_and_rules_out_of_topics_go_on() -> None:
    news = rule("news", "out", "/topic/t.>", "topic://t.>")
    async with two(RULES + news) as (here, target):
        await until_connected(here, "in", "out", "news")
        await produce(here.stomp_port, "/queue/out", [*numbered(300), b"end"])
        await produce(here.stomp_port, "/topic/t.a", numbered(20))
        await ask(here, Drain(timeout_s=0, hand_over="next"))
        await until_done(here)
        found = await rows(here)
        assert "the hand-over takes" in found["out"].paused
        assert found["news"].paused == ""
        there = await take(target.stomp_port, "/queue/out", b"end")
        assert [one.body for one in there] == [*numbered(300), b"end"]
        async with asyncio.timeout(60):
            while (await rows(here))["news"].moved < 20:
                await asyncio.sleep(0.01)
        events = [row.event.value for row in (await ask(here, ListEvents())).rows]
        assert "bridge-lost" not in events
        await ask(here, Drain(timeout_s=0))  # without the hand-over
        await until_connected(here, "out", "news")
        await ask(here, Undrain())
        await until_connected(here, "in", "out", "news")


@pytest.mark.long
async def test_what_comes_by_a_reload_during_a_drain_heeds_it(tmp_path: Path) -> None:
    inwards = rule("in", "in", "/queue/in", "queue://in")
    async with running(tmp_path) as world:
        await ask_world(world, Drain(timeout_s=0))
        await world.reload(world.bridge("b", inwards))
        assert "the gateway is drained" in world.rows()["in"].paused
        outwards = rule("out", "out", "/queue/out", "queue://out")
        await world.reload(world.bridge("b", inwards, outwards, more="window = 9"))
        await world.connected("out")
        assert "the gateway is drained" in world.rows()["in"].paused
        await ask_world(world, Undrain())
        await world.connected("in", "out")
