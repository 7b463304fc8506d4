"""Either gateway, and the bridge's process, are killed while messages are on the way: nothing is lost, and what comes twice
is what docs/migrating says."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from two_gateways import Pair, produce, rule, take

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


@pytest.mark.crash
def test_a_hand_over_loses_and_repeats_nothing_whoever_is_killed(tmp_path: Path) -> None:
    """The command is given again when it ends because its gateway was killed."""
    chance = random.Random(5)
    queues, each = 20, COUNT
    with Pair(tmp_path, "stomp", (), f"window = {WINDOW}") as pair:

        async def fill() -> None:
            port, bodies = pair.new.stomp_port, [b"%d" % number for number in range(each)]
            await asyncio.gather(*[produce(port, f"/queue/q{n}", bodies) for n in range(queues)])

        asyncio.run(fill())
        command = [sys.executable, "-m", "tidegate", "drain", "--timeout", "0s"]
        command += ["--hand-over", "moving", "--config", str(pair.new.config)]
        is_over, kills = threading.Event(), 0
        told: list[subprocess.CompletedProcess[str]] = []

        def drain() -> None:
            while not told or told[-1].returncode:
                told.append(subprocess.run(command, capture_output=True, text=True, check=False))
            is_over.set()

        draining = threading.Thread(target=drain)
        draining.start()
        while not is_over.wait(chance.uniform(0.2, 1.5)) and kills < 12:
            kills += 1
            victim = chance.choice(("old", "new", "bridge"))
            if victim == "bridge":
                pair.kill_bridge()
            else:
                gateway = pair.old if victim == "old" else pair.new
                gateway.kill()
                gateway.start()
        draining.join(timeout=300)
        assert is_over.is_set(), told[-1].stderr
        assert kills >= 3
        assert "handed over" in told[-1].stdout

        async def receive() -> list[list[int]]:
            last = b"%d" % (each - 1)
            port = pair.old.stomp_port
            found = await asyncio.gather(*[take(port, f"/queue/q{n}", last) for n in range(queues)])
            return [[int(one.body) for one in some] for some in found]

        for came in asyncio.run(receive()):
            assert came == list(range(each))


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
