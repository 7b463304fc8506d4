"""A hand-over whose bridge is removed or changed by a reload has failed, with a reason; it can be asked for again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from two_gateways import produce, rule, take

from tidegate.spi.operate import (
    Drain,
    HandOver,
    HandOverPhase,
    ListEvents,
    ShowDrain,
    Undrain,
    perform,
)

from .test_exchange import World, running
from .test_handing_over import ME

ELSEWHERE = rule("out", "out", "/queue/there", "queue://a")
IN = rule("in", "in", "/queue/in", "queue://in")


def nobody(*rules: str) -> str:
    """A bridge to where nobody listens."""
    return (
        f'[[extensions]]\nplugin = "bridge"\nname = "b"\nreconnect_min = "10ms"\n'
        f'remote = "stomp://127.0.0.1:{free_port()}"\n' + "\n".join(rules)
    )


async def ask(world: World, request: Any) -> Any:
    return await perform(world.gateway._desk.operator, ME, request)


async def until(world: World, *phases: HandOverPhase) -> HandOver:
    async with asyncio.timeout(60):
        while True:
            found: HandOver | None = (await ask(world, ShowDrain())).hand_over
            assert found is not None
            if found.phase in phases:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.long
async def test_a_bridge_that_a_reload_removes_fails_it_and_it_can_be_asked_for_again(
    tmp_path: Path,
) -> None:
    there = nobody()
    async with running(tmp_path, lambda world: there) as world:
        await produce(world.port, "/queue/a", [b"1", b"2", b"end"])
        await ask(world, Drain(hand_over="b"))
        await until(world, HandOverPhase.MOVING)
        assert await world.reload() == (["removed: bridge b"], [])
        found = await until(world, HandOverPhase.FAILED)
        assert (found.moved, found.messages, found.queues) == (0, 4, 2)  # with `produce`'s mark
        assert (found.problem, found.server) == ("bridge 'b' has ended", "")
        assert "give `drain --hand-over` again" in found.remedy
        events = [row.event.value for row in (await ask(world, ListEvents())).rows]
        assert events.count("hand-over-failed") == 1
        assert (await ask(world, ShowDrain())).is_draining  # and nobody is let in
        await world.reload(world.bridge("b"))
        await ask(world, Drain(hand_over="b"))
        found = await until(world, HandOverPhase.DONE, HandOverPhase.FAILED)
        assert (found.phase, found.moved) == (HandOverPhase.DONE, 4)
        assert len(await take(world.target.stomp_port, "/queue/a", b"end")) == 3
        assert (await ask(world, Undrain())).hand_over is None


@pytest.mark.long
async def test_other_options_or_rules_out_fail_it_and_rules_in_do_not(tmp_path: Path) -> None:
    there = nobody()
    async with running(tmp_path, lambda world: there) as world:
        await produce(world.port, "/queue/a", [b"1", b"end"])
        await ask(world, Drain(hand_over="b"))
        await until(world, HandOverPhase.MOVING)
        await world.reload(there + IN)
        await asyncio.sleep(0)
        assert (await until(world, *HandOverPhase)).phase is HandOverPhase.MOVING
        await world.reload(there + IN + ELSEWHERE)
        found = await until(world, HandOverPhase.FAILED)
        assert found.problem == "bridge 'b' was changed by a reload"
        assert "give `drain --hand-over b` again" in found.remedy
        await ask(world, Drain(hand_over="b"))
        await until(world, HandOverPhase.MOVING)
        await world.reload(world.bridge("b", ELSEWHERE))
        await until(world, HandOverPhase.FAILED)
        await ask(world, Drain(hand_over="b"))
        await until(world, HandOverPhase.DONE)
        assert len(await take(world.target.stomp_port, "/queue/there", b"end")) == 2
