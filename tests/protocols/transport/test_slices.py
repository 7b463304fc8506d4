"""One connection's share of the loop: who waits, who passes, and what ends it."""

import asyncio
from collections.abc import Callable

import pytest

from tidegate_protocols.transport import STEP_PACKETS, Share, _slices


class Link:
    peer = "127.0.0.1:1"
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Work:
    """So many packets to handle; notes in *log* who handled how many."""

    def __init__(self, log: list[tuple[str, int]], name: str, packets: int) -> None:
        self.log, self.name, self.left = log, name, packets
        self.link = Link()
        self.changes: list[bool] = []
        self.share = Share(self.link, self.step, self.changed)  # pyright: ignore[reportArgumentType]
        self.on_step: Callable[[], None] = lambda: None

    def step(self, count_max: int) -> bool:
        taken = min(count_max, self.left)
        self.left -= taken
        self.log.append((self.name, taken))
        self.on_step()
        return self.left > 0

    def changed(self) -> None:
        self.changes.append(self.share.is_waiting)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a look at the clock adds to it; starts with nothing."""
    step = [0.0]
    now = [0.0]

    def look() -> float:
        now[0] += step[0]
        return now[0]

    monkeypatch.setattr(_slices, "perf_counter", look)
    monkeypatch.setattr(_slices, "SLICE_S", 0.003)
    return step


async def turns(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_fits_one_step_is_done_at_once(clock: list[float]) -> None:
    clock[0] = 9.0
    work = Work([], "a", 1)
    work.share.run()
    assert work.log == [("a", 1)]
    assert work.changes == []


async def test_within_a_slice_nobody_waits(clock: list[float]) -> None:
    work = Work([], "a", 10 * STEP_PACKETS)
    work.share.run()
    assert work.left == 0
    assert work.changes == []


async def test_behind_its_slice_a_connection_waits_for_its_turn(clock: list[float]) -> None:
    clock[0] = _slices.SLICE_S
    work = Work([], "a", 1000)
    work.share.run()
    assert work.share.is_waiting
    assert 0 < work.left < 1000
    left = work.left
    work.share.run()  # more has come: it has to wait all the same
    assert work.left == left
    for _ in range(1000):
        before = work.left
        await turns()
        assert before - work.left <= STEP_PACKETS
        if not work.share.is_waiting:
            break
    assert work.left == 0
    assert work.changes == [True, False]


async def test_what_a_newcomer_has_taken_is_taken_from_the_next_turn(clock: list[float]) -> None:
    """With both in full, a fast producer had the loop for twice as long as a slice says."""
    clock[0] = _slices.SLICE_S / 3
    log: list[tuple[str, int]] = []
    work = Work(log, "a", 1000)
    work.share.run()
    steps = [len(log)]
    for _ in range(3):
        log.clear()
        await turns()
        steps.append(len(log))
    assert steps == [2, 1, 2, 2]


async def test_those_that_wait_take_turns_and_who_has_just_come_passes_them(
    clock: list[float],
) -> None:
    clock[0] = _slices.SLICE_S
    log: list[tuple[str, int]] = []
    works = [Work(log, name, 500) for name in "abc"]
    for work in works:
        work.share.run()
    assert [work.share.is_waiting for work in works] == [True, True, True]
    log.clear()
    served = 0
    for _ in range(60):
        await turns()
        small = Work(log, "small", 1)
        small.share.run()
        served += small.left == 0
    assert served == 60
    order = [name for name, _ in log if name != "small"]
    assert order[:6] == ["a", "b", "c", "a", "b", "c"]
    # One slice of each turn of the loop, however many wait.
    between = "".join("." if name == "small" else name for name, _ in log).split(".")
    assert max(map(len, between)) == 1


async def test_costly_packets_make_shorter_steps_until_they_cost_less(clock: list[float]) -> None:
    clock[0] = 8 * _slices.STEP_S
    work = Work([], "a", 10_000)
    work.share.run()
    await turns(3)
    assert work.log[0] == ("a", STEP_PACKETS)
    assert work.log[-1][1] == 1
    clock[0] = 0.0
    await turns(3)
    assert work.left == 0
    assert work.log[-2][1] == STEP_PACKETS


async def test_a_read_of_few_costly_packets_makes_the_next_one_wait(clock: list[float]) -> None:
    clock[0] = 2 * _slices.STEP_S * STEP_PACKETS
    work = Work([], "a", 50)
    work.share.run()
    assert work.log == [("a", 50)]
    work.left = 50
    work.share.run()
    assert work.share.is_waiting
    assert work.log[1] == ("a", 1)


async def test_who_is_stopped_does_nothing_more(clock: list[float]) -> None:
    clock[0] = _slices.SLICE_S
    work = Work([], "a", 1000)
    work.share.run()
    left = work.left
    work.share.stop()
    await turns(5)
    assert work.left == left
    assert work.changes == [True]


async def test_who_is_held_goes_on_in_its_turn_when_it_is_released(clock: list[float]) -> None:
    work = Work([], "a", 10 * STEP_PACKETS)
    work.on_step = work.share.hold
    work.share.run()
    assert work.log == [("a", STEP_PACKETS)]
    work.share.run()
    await turns(5)
    assert work.log == [("a", STEP_PACKETS)]
    assert work.changes == []
    work.on_step = lambda: None
    work.share.release()
    assert work.share.is_waiting
    await turns(1)
    assert work.left == 0
    assert work.changes == [True, False]
    work.share.release()
    assert work.changes == [True, False]


async def test_what_fails_in_its_turn_ends_that_connection_alone(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    clock[0] = _slices.SLICE_S
    log: list[tuple[str, int]] = []
    bad, good = Work(log, "bad", 1000), Work(log, "good", 1000)
    bad.share.run()
    good.share.run()

    def fail() -> None:
        raise ZeroDivisionError

    bad.on_step = fail
    clock[0] = 0.0
    await turns(5)
    assert bad.link.is_aborted
    assert bad.changes == [True, False]
    assert good.left == 0
    assert not good.link.is_aborted
    assert "handler failed, connection aborted peer=127.0.0.1:1" in caplog.text


async def test_what_nothing_catches_leaves_the_others_their_turns(clock: list[float]) -> None:
    """A SystemExit passes through the loop; whoever waited then waited for ever."""
    waiting = _slices._Waiting(lambda turn: scheduled.append(turn))
    scheduled: list[Callable[[], None]] = []

    def exits() -> None:
        raise SystemExit(3)

    works = [Work([], name, 3 * STEP_PACKETS) for name in "ab"]
    works[0].on_step = exits
    for work in works:
        work.share.is_waiting = True
        waiting.add(work.share)
    with pytest.raises(SystemExit):
        scheduled.pop()()
    clock[0] = 0.0
    scheduled.pop()()
    assert works[1].left == 0


def test_without_a_loop_there_is_nobody_to_keep_waiting(clock: list[float]) -> None:
    clock[0] = _slices.SLICE_S
    work = Work([], "a", 1000)
    work.share.run()
    assert work.left == 0
    assert work.changes == []
