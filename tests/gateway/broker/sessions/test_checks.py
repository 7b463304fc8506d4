"""Whose password is checked next."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tidegate.broker.sessions import checks
from tidegate.broker.sessions.checks import WAITER_BYTES, Checks
from tidegate.broker.sessions.failed_logins import Attempt, FailedLogins
from tidegate.spi import FlowControlError


class Bench:
    """Checks that take a second each, and who came out in which order."""

    def __init__(
        self, running_max: int = 2, waiting_max: int = 10_000, delay_s: float = 0.25
    ) -> None:
        self.failed = FailedLogins(
            free=3, delay_s=delay_s, delay_max_s=5, age_s=600, limit_bytes=4 << 20
        )
        self.checks = Checks(
            self.failed, running_max=running_max, waiting_bytes_max=waiting_max * WAITER_BYTES
        )
        self.order: list[str] = []
        self.times: dict[str, float] = {}
        self.running = 0
        self.running_most = 0

    def come(
        self,
        name: str,
        address: str = "10.0.0.1",
        username: str = "alice",
        client_id: str = "",
        *,
        right: bool = True,
        takes_s: float = 1.0,
    ) -> asyncio.Task[None]:
        attempt = Attempt(address, username, client_id)

        async def check() -> None:
            self.running += 1
            self.running_most = max(self.running, self.running_most)
            try:
                await asyncio.sleep(takes_s)
            finally:
                self.running -= 1
            now = asyncio.get_running_loop().time()
            self.order.append(name)
            self.times[name] = now
            if right:
                self.failed.succeeded(attempt)
            else:
                self.failed.failed(attempt, now)

        return asyncio.ensure_future(self.checks.run(attempt, 0, check))

    def flood(self, count: int) -> list[asyncio.Task[None]]:
        return [self.come(f"wrong{number}", right=False) for number in range(count)]

    async def over(self, *tasks: asyncio.Task[None]) -> list[object]:
        done = await asyncio.gather(*tasks, return_exceptions=True)
        self.check_nothing_is_left()
        return list(done)

    def check_nothing_is_left(self) -> None:
        checks = self.checks
        assert checks.running_count == checks.waiting_count == checks._waiting_bytes == 0
        pausing = {id(turn) for *_, turn in checks._pausing}
        for lane in checks._lanes.values():
            assert not lane.waiting
            assert lane.size_bytes == 0
            assert all(id(line) in pausing for line in lane.lines.values())
            assert lane.lines or id(lane) in pausing
        assert not any(checks._queues.values())


async def test_no_more_run_at_a_time_than_allowed_and_in_the_order_in_which_they_came() -> None:
    bench = Bench()
    await bench.over(*(bench.come(str(number)) for number in range(7)))
    assert bench.order == ["0", "1", "2", "3", "4", "5", "6"]
    assert bench.running_most == 2


async def test_addresses_have_their_turns_one_after_the_other() -> None:
    bench = Bench(running_max=1)
    tasks = [bench.come(f"a{number}") for number in range(4)]
    tasks += [bench.come(f"b{number}", "10.0.0.2") for number in range(2)]
    await bench.over(*tasks)
    assert bench.order == ["a0", "a1", "b0", "a2", "b1", "a3"]


async def test_within_an_address_users_have_their_turns_one_after_the_other() -> None:
    bench = Bench(running_max=1)
    tasks = [bench.come(f"alice{number}") for number in range(4)]
    tasks += [bench.come(f"bob{number}", username="bob") for number in range(2)]
    await bench.over(*tasks)
    assert bench.order == ["alice0", "alice1", "bob0", "alice2", "bob1", "alice3"]


async def test_the_right_one_from_elsewhere_does_not_wait_behind_a_flood() -> None:
    bench = Bench()
    flood = bench.flood(1000)
    await bench.come("right", "10.0.0.2")
    assert bench.times["right"] <= 2
    for task in flood:
        task.cancel()
    await bench.over(*flood)


async def test_the_right_one_from_the_same_address_waits_for_one_pause_at_most() -> None:
    """It comes last and is served first: those that guess stand in each other's way."""
    bench = Bench()
    flood = bench.flood(1000)
    await asyncio.sleep(60)
    begin = asyncio.get_running_loop().time()
    await bench.come("right")
    assert bench.times["right"] - begin <= 5 + 1 + 1
    assert len(bench.order) < 25  # and guessing was slow
    for task in flood:
        task.cancel()
    await bench.over(*flood)


async def test_a_known_client_of_the_same_address_and_user_waits_for_nobody() -> None:
    bench = Bench()
    await bench.come("first", client_id="mine")
    flood = bench.flood(1000)
    await asyncio.sleep(60)
    begin = asyncio.get_running_loop().time()
    await bench.come("right", client_id="mine")
    assert bench.times["right"] - begin <= 2
    for task in flood:
        task.cancel()
    await bench.over(*flood)


async def test_a_timer_that_tells_no_time_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop gives no timer back for what is due at once, but a handle without ``when``."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    class Handle:
        def __init__(self, when: float, callback: Callable[[], object]) -> None:
            timers.append(loop.call_at(when, callback))
            self.cancel = timers[-1].cancel

    found = SimpleNamespace(call_at=Handle, time=loop.time, create_future=loop.create_future)
    changed = SimpleNamespace(get_running_loop=lambda: found, CancelledError=asyncio.CancelledError)
    monkeypatch.setattr(checks, "asyncio", changed)
    bench = Bench()
    flood = bench.flood(10)
    for number in range(20):  # they come while those that guess have to wait
        await asyncio.sleep(0.3)
        await bench.come(f"o{number}", f"10.0.1.{number}", username=f"u{number}", takes_s=0.1)
    assert await bench.over(*flood) == [None] * 10
    assert timers


async def test_another_user_of_the_same_address_goes_on() -> None:
    bench = Bench()
    flood = bench.flood(1000)
    await asyncio.sleep(60)
    begin = asyncio.get_running_loop().time()
    await bench.come("right", username="bob")
    assert bench.times["right"] - begin <= 2
    for task in flood:
        task.cancel()
    await bench.over(*flood)


async def test_one_address_that_tries_many_users_has_one_check_at_a_time() -> None:
    bench = Bench(running_max=4)
    tasks = [bench.come(f"w{n}", username=f"user{n}", right=False) for n in range(60)]
    await bench.over(*tasks)
    slow = [bench.times[name] for name in bench.order[40:]]
    assert all(after - before >= 1.2 for before, after in itertools.pairwise(slow))


async def test_the_right_one_from_an_address_that_tries_many_users_comes_soon() -> None:
    """Every other turn there is the newest one's; the oldest ones have theirs as before."""
    bench = Bench()
    flood = [bench.come(f"w{n}", username=f"user{n}", right=False) for n in range(1000)]
    await asyncio.sleep(120)
    checked = len(bench.order)
    assert checked < 200
    await bench.come("right", username="bob")
    assert bench.order.index("right") <= checked + 3
    await asyncio.sleep(60)
    later = [int(name.removeprefix("w")) for name in bench.order if name != "right"]
    # From both ends: every number up to some, and every one from some.
    assert sorted(later)[: len(later) // 4] == list(range(len(later) // 4))
    assert max(later) == 999
    for task in flood:
        task.cancel()
    await bench.over(*flood)


async def test_with_the_defence_off_the_right_one_waits_behind_them_all() -> None:
    """The negative control: no delay, and everybody seems to come from one address."""
    bench = Bench(delay_s=0)
    flood = bench.flood(1000)
    right = bench.come("right")
    await bench.over(*flood, right)
    assert bench.order[-1] == "right"


async def test_strangers_have_every_fourth_turn_beside_known_clients() -> None:
    bench = Bench(running_max=1)
    await bench.come("first", client_id="mine")
    bench.order.clear()
    tasks = [bench.come("known", client_id="mine") for _ in range(8)]
    tasks += [bench.come("new", "10.0.0.2") for _ in range(2)]
    await bench.over(*tasks)
    assert bench.order.index("new") <= 4
    assert bench.order[: bench.order.index("new")] == ["known"] * bench.order.index("new")


async def test_who_leaves_while_waiting_costs_nothing() -> None:
    bench = Bench(running_max=1)
    tasks = [bench.come(str(number)) for number in range(5)]
    await asyncio.sleep(0.5)
    for number in (1, 2, 4):
        tasks[number].cancel()
    await bench.over(*tasks)
    assert bench.order == ["0", "3"]


async def test_who_leaves_just_as_its_turn_comes_gives_it_on() -> None:
    bench = Bench(running_max=1)
    first, second, third = (bench.come(str(number)) for number in range(3))
    first.add_done_callback(lambda _task: second.cancel())
    await bench.over(first, second, third)
    assert bench.order == ["0", "2"]
    assert second.cancelled()


async def test_beyond_the_limit_the_address_that_has_most_pays() -> None:
    bench = Bench(running_max=1, waiting_max=10)
    flood = bench.flood(11)  # one runs
    one = bench.come("one", "10.0.0.2")
    two = bench.come("two", "10.0.0.3")
    more = bench.flood(5)
    results = await bench.over(*flood, one, two, *more)
    refused = [result for result in results if isinstance(result, FlowControlError)]
    assert len(refused) == len(results) - 11
    assert all("try again later" in str(error) for error in refused)
    assert {"one", "two"} <= set(bench.order)
    assert isinstance(results[1], FlowControlError)  # the one that had waited longest


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_and_goes_nothing_is_lost_or_left(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(running_max=chance.randint(1, 4), waiting_max=20)
    tasks: list[asyncio.Task[None]] = []
    choose: Callable[[list[str]], str] = chance.choice
    for number in range(200):
        tasks.append(
            bench.come(
                str(number),
                choose(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
                choose(["alice", "bob"]),
                choose(["", "c"]),
                right=chance.random() < 0.3,
                takes_s=chance.random(),
            )
        )
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 2)
    await asyncio.sleep(60)
    done = [task for task in tasks if task.done()]
    assert len(done) == len(tasks), "somebody waits for ever"
    await bench.over(*tasks)
    assert bench.running_most <= 4
    asked = [task for task in tasks if not task.cancelled() and task.exception() is None]
    assert len(bench.order) == len(asked)
