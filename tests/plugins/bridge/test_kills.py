"""Either gateway, and the bridge's process, are killed while messages are on the way: nothing is lost, and what comes twice
is what docs/migrating says."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from .two_gateways import Pair, produce, rule, take

COUNT = 3000
WINDOW = 100


def scenario(directory: Path, scheme: str, kills: int, seed: int) -> tuple[list[int], list[int]]:
    """What has come in, and out, in order, while something is killed *kills* times."""
    remote_in, remote_out = (
        ("/queue/in", "/queue/out") if scheme == "stomp" else ("t/in", "$queue/out")
    )
    rules = [
        rule("in", "in", remote_in, "queue://in"),
        rule("out", "out", remote_out, "queue://out"),
    ]
    chance = random.Random(seed)
    with Pair(directory, scheme, rules, f"window = {WINDOW}") as pair:
        pair.said("event=bridge-connected", 2)
        source = "/queue/in" if scheme == "stomp" else "/topic/t.in"
        bodies = [b"%d" % number for number in range(COUNT)]

        async def send() -> None:
            await asyncio.gather(
                produce(pair.old.stomp_port, source, bodies),
                produce(pair.new.stomp_port, "/queue/out", bodies),
            )

        asyncio.run(send())
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 0.3))
            victim = chance.choice(("old", "new", "bridge"))
            if victim == "bridge":
                pair.kill_bridge()
            else:
                gateway = pair.old if victim == "old" else pair.new
                gateway.kill()
                gateway.start()

        async def receive() -> tuple[list[int], list[int]]:
            last = bodies[-1]
            came_in, went_out = await asyncio.gather(
                take(pair.new.stomp_port, "/queue/in", last),
                take(pair.old.stomp_port, "/queue/out", last),
            )
            return [int(one.body) for one in came_in], [int(one.body) for one in went_out]

        return asyncio.run(receive())


#: A few of them each time, and many of another seed with the crash tests.
ROUNDS = [
    pytest.param(3, 1, id="few", marks=pytest.mark.long),
    *(pytest.param(10, seed, id=f"many-{seed}", marks=pytest.mark.crash) for seed in (2, 3, 4)),
]


@pytest.mark.parametrize(("kills", "seed"), ROUNDS)
def test_stomp_loses_nothing_and_repeats_nothing_between_gateways(
    tmp_path: Path, kills: int, seed: int
) -> None:
    came_in, went_out = scenario(tmp_path, "stomp", kills, seed)
    assert came_in == list(range(COUNT))
    assert went_out == list(range(COUNT))


@pytest.mark.parametrize(("kills", "seed"), ROUNDS)
def test_mqtt_loses_nothing_and_repeats_at_most_a_window_a_kill(
    tmp_path: Path, kills: int, seed: int
) -> None:
    came_in, went_out = scenario(tmp_path, "mqtt", kills, seed)
    assert list(dict.fromkeys(came_in)) == list(range(COUNT))
    assert len(came_in) <= COUNT + kills * WINDOW
    assert went_out == list(range(COUNT))
