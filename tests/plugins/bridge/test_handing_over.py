"""A drained gateway hands its queues over to another one: in order, once, and what it leaves is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from two_gateways import produce, rule, take
from wire import StompClient

from tidegate.cli import main
from tidegate.spi import Identity, RequestError
from tidegate.spi.operate import (
    Drain,
    DrainState,
    GatewayState,
    HandOverPhase,
    LeftKind,
    ListEvents,
    PauseDestination,
    ShowDrain,
    ShowOverview,
    Undrain,
    perform,
)
from tidegate.testing.embedded import EmbeddedGateway

ME = Identity("local:me", frozenset(), "", "", "operator")
LARGE = b"\x00\x01" * 300_000


@asynccontextmanager
async def two(
    rules: str = "", options: str = ""
) -> AsyncIterator[tuple[EmbeddedGateway, EmbeddedGateway]]:
    """The one that is drained, with a bridge `next`, and the next one."""
    async with EmbeddedGateway() as target:
        config = (
            f'[[extensions]]\nplugin = "bridge"\nname = "next"\nreconnect_min = "20ms"\nreconnect_max = "50ms"\n'
            f'remote = "stomp://127.0.0.1:{target.stomp_port}"\n{options}\n{rules}'
        )
        async with EmbeddedGateway(config) as here:
            yield here, target


async def ask(gateway: EmbeddedGateway, request: Any) -> Any:
    return await perform(gateway.gateway._desk.operator, ME, request)


async def until_done(gateway: EmbeddedGateway) -> DrainState:
    async with asyncio.timeout(60):
        while True:
            state: DrainState = await ask(gateway, ShowDrain())
            assert state.hand_over is not None
            if state.hand_over.phase is HandOverPhase.DONE:
                return state
            await asyncio.sleep(0.01)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_every_queue_goes_in_order_and_what_stays_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with two(rule("out", "out", "/queue/there.>", "queue://here.>"), "window = 7") as (
        here,
        target,
    ):
        port = here.stomp_port
        for queue in ("a", "b", "DLQ.a", "here.x"):
            await produce(port, f"/queue/{queue}", [*numbered(30), LARGE], color="red")
        await produce(port, "/queue/paused", numbered(3))
        await ask(here, PauseDestination("queue://paused"))
        client = await StompClient.connect(port, **{"client-id": "c"})
        durable = {"durable-subscription-name": "news"}
        client.send("SUBSCRIBE", destination="/topic/t", id="1", receipt="1", **durable)
        await client.receipt("1")
        await client.aclose()
        await produce(port, "/topic/t", numbered(2))
        await produce(port, "/topic/kept", [b"x"], retain="true")
        config = here.data_directory / "gw.toml"
        config.write_text(f'[broker]\ndata_directory = "{here.data_directory}"\n')
        command = ["drain", "--hand-over", "next", "--config", str(config)]
        assert await asyncio.to_thread(main, command) == 8  # a queue has something still
        said = capsys.readouterr()
        assert "by bridge next (tidegate/" in said.out
        assert "left here: queue queue://paused: 3: its consumers are paused" in said.out
        assert "left here: subscription c news: 2" in said.out
        assert "left here: retained: 1" in said.out
        assert "queues with messages that were not handed over: 1" in said.err
        for queue in ("a", "b", "DLQ.a", "there.x"):
            found = await take(target.stomp_port, f"/queue/{queue}", LARGE)
            assert [one.body for one in found] == [*numbered(30), LARGE]
            assert found[0].headers["color"] == "red"
        state = await until_done(here)
        assert (state.connections, state.hand_over and state.hand_over.messages) == (0, 0)
        assert (await ask(here, ShowOverview())).backlog == 5
        events = [row.event.value for row in (await ask(here, ListEvents())).rows]
        assert {"hand-over-begun", "hand-over-done"} <= set(events)
        after = await ask(here, Undrain())
        assert (after.is_draining, after.hand_over) == (False, None)
        assert (await ask(here, ShowOverview())).state is GatewayState.RUNNING


@pytest.mark.long
async def test_undrain_ends_it_and_every_message_is_at_one_of_the_two() -> None:
    async with two(options="window = 50") as (here, target):
        await produce(here.stomp_port, "/queue/a", numbered(2000))
        await ask(here, Drain(hand_over="next"))
        async with asyncio.timeout(60):
            while not (await ask(here, ShowDrain())).hand_over.moved:
                await asyncio.sleep(0)
        state = await ask(here, Undrain())
        assert not state.is_draining
        await produce(here.stomp_port, "/queue/a", [b"end"])
        await produce(target.stomp_port, "/queue/a", [b"end"])
        there = [one.body for one in await take(target.stomp_port, "/queue/a", b"end")][:-1]
        rest = [one.body for one in await take(here.stomp_port, "/queue/a", b"end")][:-1]
        assert there
        assert there + rest == numbered(2000)
        events = [row.event.value for row in (await ask(here, ListEvents())).rows]
        assert "hand-over-ended" in events
        # And again, to its end.
        await produce(here.stomp_port, "/queue/a", numbered(5))
        await ask(here, Drain(hand_over="next"))
        await until_done(here)
        assert (await ask(here, ShowOverview())).backlog == 0


async def test_a_bridge_that_cannot_is_refused_before_anybody_is_sent_away() -> None:
    mqtt = '[[extensions]]\nplugin = "bridge"\nname = "other"\nremote = "mqtt://127.0.0.1:1"\n'
    async with two(rules=mqtt) as (here, _):
        with pytest.raises(RequestError, match="its bridges: next, other"):
            await ask(here, Drain(hand_over="nex"))
        with pytest.raises(RequestError, match="speaks MQTT"):
            await ask(here, Drain(hand_over="other"))
        state = await ask(here, ShowDrain())
        assert not state.is_draining
        assert [(one.name, bool(one.problem)) for one in state.bridges] == [
            ("next", False),
            ("other", True),
        ]
        assert state.bridges[1].remote == "mqtt://127.0.0.1:1"


@pytest.mark.long
async def test_a_queue_that_the_bridge_may_not_take_is_named_and_the_others_go(
    tmp_path: Path,
) -> None:
    rights = tmp_path / "acl.toml"
    everything = [
        "connect",
        "publish",
        "retain",
        "subscribe",
        "consume",
        "browse",
        "create",
        "delete",
        "admin",
    ]
    rights.write_text(
        '[[rules]]\ndeny = "consume"\nprincipals = "bridge"\ndestinations = "queue://b"\n'
        f"[[rules]]\nallow = {everything}\n"
    )
    acl = f'[[extensions]]\nplugin = "acl"\nrules = "{rights}"\n'
    async with two(rules=acl) as (here, target):
        for queue in "abc":
            await produce(here.stomp_port, f"/queue/{queue}", [*numbered(3), b"end"])
        await ask(here, Drain(hand_over="next"))
        state = await until_done(here)
        assert state.hand_over is not None
        (left,) = [one for one in state.hand_over.left if one.kind is LeftKind.QUEUE]
        assert (left.name, left.count) == ("queue://b", 4)
        assert "bridge 'next' may not take it" in left.why
        for queue in "ac":
            assert len(await take(target.stomp_port, f"/queue/{queue}", b"end")) == 4
