"""A message that the other broker refuses goes into a queue of its own, when others behind it pass; else it is sent again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from two_gateways import produce, rule, take

from tidegate.spi import Message
from tidegate.spi.operate import BridgeRow, Drain, ListBridges, ListEvents
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_bridge._parking import Suspect, parked, parking_queue

from .test_handing_over import ask, until_done

EVERYTHING = '["connect", "publish", "retain", "subscribe", "consume", "browse", "create", "admin"]'


def refusing(tmp_path: Path) -> str:
    """TOML of a gateway that refuses what is sent to queue://out.bad."""
    (tmp_path / "acl.toml").write_text(
        f'[[rules]]\ndeny = "publish"\ndestinations = "queue://out.bad"\n[[rules]]\nallow = {EVERYTHING}\n'
    )
    return f'[[extensions]]\nplugin = "acl"\nrules = "{tmp_path / "acl.toml"}"\n'


def bridge(target: EmbeddedGateway, more: str) -> str:
    return (
        f'[[extensions]]\nplugin = "bridge"\nname = "next"\nreconnect_min = "10ms"\nreconnect_max = "10ms"\n'
        f'remote = "stomp://127.0.0.1:{target.stomp_port}"\n{more}\n'
    )


async def until(gateway: EmbeddedGateway, is_it: Any) -> BridgeRow:
    async with asyncio.timeout(60):
        while True:
            (row,) = (await ask(gateway, ListBridges())).rows
            if is_it(row):
                return row
            await asyncio.sleep(0.01)


async def test_a_refused_message_is_put_aside_when_one_behind_it_passes(tmp_path: Path) -> None:
    async with EmbeddedGateway(refusing(tmp_path)) as target:
        more = 'park_after = 3\nmessage_limit = "1kb"\n' + rule(
            "out", "out", "/queue/out.>", "queue://out.>"
        )
        async with EmbeddedGateway(bridge(target, more)) as here:
            port = here.stomp_port
            await produce(port, "/queue/out.bad", [b"bad"])
            # Alone it holds up nobody: it is sent again and again, and said.
            row = await until(here, lambda row: row.refused_attempts > 4)
            assert (row.parked, row.moved, row.on_the_way) == (0, 0, 1)
            assert f"message {row.refused}" in row.problem
            await produce(port, "/queue/out.good", [b"1", b"x" * 2000, b"2"])
            row = await until(here, lambda row: row.parked == 2)
            assert len(await take(target.stomp_port, "/queue/out.good", b"2")) == 2
            queue = "/queue/parked.next.out"
            bad, large = await take(port, queue, b"x" * 2000)
            assert bad.body == b"bad"
            assert bad.headers["original-destination"] == r"queue\c//out.bad"
            assert "publish is not allowed" in bad.headers["dead-letter-reason"]
            assert "message_limit is 1024" in large.headers["dead-letter-reason"]
            events = [row.event.value for row in (await ask(here, ListEvents())).rows]
            assert events.count("bridge-parked") == 2


@pytest.mark.long
async def test_a_hand_over_leaves_what_is_refused_in_its_parking_queue(tmp_path: Path) -> None:
    async with (
        EmbeddedGateway(refusing(tmp_path)) as target,
        EmbeddedGateway(bridge(target, "park_after = 2")) as here,
    ):
        await produce(here.stomp_port, "/queue/out.bad", [b"bad"])
        await produce(here.stomp_port, "/queue/out.good", [b"1", b"2"])
        await ask(here, Drain(hand_over="next"))
        state = await until_done(here)
        assert state.hand_over is not None
        (left,) = state.hand_over.left
        assert (left.name, left.count) == ("queue://parked.next.hand-over", 1)
        assert len(await take(target.stomp_port, "/queue/out.good", b"2")) == 2


def test_it_is_held_back_after_so_many_refusals_of_the_same_and_counted_anew_when_no_other_passes() -> (
    None
):
    suspect = Suspect(2)
    suspect.refused(7, "no")
    assert not suspect.begin(has_others=True)
    suspect.refused(8, "no")
    assert not suspect.begin(has_others=True)
    suspect.refused(8, "no")
    assert not suspect.begin(has_others=False)  # nothing waits for it
    assert suspect.begin(has_others=True)
    assert not suspect.begin(has_others=True)  # none of the others went
    assert (suspect.number, suspect.attempts) == (8, 0)
    never = Suspect(0)
    for _ in range(1000):
        never.refused(8, "no")
        assert not never.begin(has_others=True)


def test_what_is_put_aside_does_not_expire_and_says_where_it_was() -> None:
    found = parked(
        Message("topic://a", b"x", (("a", "b"),), 1, 2, retain=True), "queue://q", "topic://a", "no"
    )
    assert (found.destination, found.expires_at, found.retain) == ("queue://q", 0, False)
    assert found.headers == (
        ("a", "b"),
        ("original-destination", "topic://a"),
        ("dead-letter-reason", "no"),
    )
    assert parking_queue("b", "$hand-over") == "queue://parked.b.hand-over"
