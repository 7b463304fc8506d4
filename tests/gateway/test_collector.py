"""When the gateway's process looks for cycles, with Python's own collector and a clock of the test's."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from unittest.mock import Mock

import pytest

from tidegate import _collector
from tidegate._allocator import FREE_MIN_BYTES, WAIT_MAX_S, trim
from tidegate._collector import (
    BYTES_PER_COUNTED,
    GROWTH_MIN_BYTES,
    LOOK_EVERY_S,
    NEVER,
    REST_MIN_S,
    TIMES_REST,
    TIMES_REST_MIN,
    Collector,
    resident_bytes,
)
from tidegate.cli import _app, _main, _run, main
from tidegate.spi import ConfigError
from tidegate.testing.embedded import EmbeddedGateway

MB = 1 << 20


@pytest.fixture(autouse=True)
def collector_is_restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Cycle:
    """Only the collector finds it. Attributes: file: what it would keep open."""

    def __init__(self) -> None:
        self.itself = self


class Machine:
    """A process as its collector sees it.

    Attributes: takes_s: one collection; trim_s: one giving back; memory, counted, free: bytes.
    """

    def __init__(self, *, collect: Callable[[], int] | None = None) -> None:
        self.now = self.used = 0.0
        self.takes_s = 0.0
        self.trim_s = 0.0
        self.memory, self.counted, self.free = 100 * MB, 0, 0
        self.collections = self.trims = 0
        self._collect = collect
        self._later: Callable[[], None] | None = None
        self.collector = Collector(
            clock=lambda: self.now,
            cpu=lambda: self.used,
            resident=lambda: self.memory,
            collect=self._collects,
            give_back=self._gives_back,
        )

    def _gives_back(self) -> None:
        self.trims += 1
        self.now += self.trim_s
        self.used += self.trim_s
        self.memory -= self.free
        self.free = 0

    def keeps(self, size: int) -> None:
        """So much more that was needed for a moment."""
        self.free += size
        self.memory += size

    def _collects(self) -> int:
        self.collections += 1
        self.now += self.takes_s
        self.used += self.takes_s
        return 0 if self._collect is None else self._collect()

    def _call_later(self, delay: float, call: Callable[[], None]) -> None:
        assert delay == LOOK_EVERY_S
        assert self._later is None, "one timer at a time"
        self._later = call

    def begin(self) -> None:
        self.collector.begin(lambda: self.counted, self._call_later)

    def passes(self, seconds: float, *, busy: float = 0.0) -> int:
        """Time passes. Args: busy: share of it. Returns: collections meanwhile."""
        before = self.collections
        for _ in range(round(seconds / LOOK_EVERY_S)):
            self.now += LOOK_EVERY_S
            self.used += busy * LOOK_EVERY_S
            call, self._later = self._later, None
            assert call is not None
            call()
        return self.collections - before


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.takes_s = 0.03
    made.begin()
    return made


def old_cycle() -> weakref.ref[Cycle]:
    """One that died when it was so old that no collection of young objects finds it."""
    made = Cycle()
    for _ in range(2):
        gc.collect(1)
    return weakref.ref(made)


def live_a_while() -> list[list[int]]:
    """Make as many objects as bring on some collections of young ones."""
    young, middle, _ = gc.get_threshold()
    return [[] for _ in range(3 * young * middle)]


def test_cycles_that_die_young_are_found_as_ever() -> None:
    Collector.take_over()
    found = weakref.ref(Cycle())
    assert live_a_while()
    assert found() is None


def test_a_cycle_that_dies_old_is_found_when_the_time_has_come() -> None:
    Collector.take_over()
    machine = Machine(collect=gc.collect)
    machine.begin()
    found = old_cycle()
    assert live_a_while()
    assert found() is not None
    machine.passes(REST_MIN_S - 2)
    assert found() is not None
    machine.passes(2)
    assert found() is None


def test_a_cycle_that_dies_old_is_found_when_memory_grows() -> None:
    Collector.take_over()
    machine = Machine(collect=gc.collect)
    machine.begin()
    found = old_cycle()
    machine.memory += GROWTH_MIN_BYTES + MB
    machine.passes(LOOK_EVERY_S, busy=1.0)
    assert found() is None


def test_no_full_collection_begins_by_itself() -> None:
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    Collector.take_over()
    assert gc.get_threshold()[2] == NEVER
    gc.callbacks.append(note)
    try:
        kept = [live_a_while() for _ in range(20)]
    finally:
        gc.callbacks.remove(note)
    assert kept
    assert set(begun) == {0, 1}


def test_code_is_not_looked_at_again_and_what_comes_later_is() -> None:
    Collector.take_over()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    made = Cycle()
    assert any(each is made for each in gc.get_objects())
    assert not any(each is Machine for each in gc.get_objects())


def test_one_is_due_after_a_rest_and_then_waits_for_a_quiet_second(machine: Machine) -> None:
    assert machine.collections == 1
    rest_s = TIMES_REST * machine.takes_s
    assert machine.passes(rest_s - 2, busy=0.5) == 0
    assert machine.passes(60, busy=0.5) == 0
    assert machine.passes(1) == 1
    assert machine.passes(rest_s - 2) == 0


def test_it_does_not_wait_for_ever(machine: Machine) -> None:
    rest_s = TIMES_REST * machine.takes_s
    assert machine.passes(2 * rest_s - 2, busy=1.0) == 0
    assert machine.passes(4, busy=1.0) == 1


def test_the_longer_one_takes_the_rarer_they_are(machine: Machine) -> None:
    machine.passes(TIMES_REST * machine.takes_s + 2)
    machine.takes_s = 0.6
    machine.passes(TIMES_REST * 0.03 + 2)
    assert machine.collections == 3
    assert machine.passes(TIMES_REST * 0.6 - 10) == 0
    assert machine.passes(20) == 1


def test_what_has_grown_is_expected_to_take_longer(machine: Machine) -> None:
    machine.memory *= 4
    machine.counted = machine.memory  # it is no garbage
    assert machine.passes(4 * TIMES_REST * machine.takes_s - 2) == 0
    assert machine.passes(4) == 1


def test_memory_that_is_accounted_for_is_no_reason(machine: Machine) -> None:
    machine.counted = 1000 * MB
    machine.memory += int(BYTES_PER_COUNTED * machine.counted)
    assert machine.passes(TIMES_REST * machine.takes_s / 2, busy=1.0) == 0


def test_memory_that_nothing_accounts_for_is_one(machine: Machine) -> None:
    machine.passes(TIMES_REST_MIN * machine.takes_s + 1, busy=1.0)
    machine.memory += GROWTH_MIN_BYTES
    assert machine.passes(1, busy=1.0) == 0
    machine.memory += MB
    assert machine.passes(1, busy=1.0) == 1
    assert machine.passes(10, busy=1.0) == 0  # in vain: it was something else


def test_in_a_large_process_it_has_to_grow_by_half(machine: Machine) -> None:
    machine.memory = 1000 * MB
    machine.collector.collect()
    machine.memory += 499 * MB
    assert machine.passes(60, busy=1.0) == 0
    machine.memory += 2 * MB
    assert machine.passes(1, busy=1.0) == 1


def test_however_it_grows_they_take_a_hundredth_of_the_time(machine: Machine) -> None:
    machine.takes_s = 1.0
    began = machine.now
    collections = 0
    while machine.now < began + 3000:
        machine.memory *= 2
        collections += machine.passes(1, busy=1.0)
        machine.memory = min(machine.memory, 1 << 40)
    assert collections * machine.takes_s <= (machine.now - began) / TIMES_REST_MIN + 1


def test_free_memory_goes_back_in_a_quiet_second(machine: Machine) -> None:
    machine.keeps(FREE_MIN_BYTES)
    machine.passes(10)
    assert machine.trims == 0, "too little"
    machine.keeps(MB)
    machine.passes(WAIT_MAX_S - 2, busy=1.0)
    assert machine.trims == 0, "busy"
    machine.passes(1)
    assert (machine.trims, machine.memory) == (1, 100 * MB)
    machine.passes(100)
    assert machine.trims == 1


def test_free_memory_does_not_wait_for_ever(machine: Machine) -> None:
    machine.keeps(FREE_MIN_BYTES + MB)
    machine.passes(WAIT_MAX_S + 2, busy=1.0)
    assert (machine.trims, machine.memory) == (1, 100 * MB)


def test_memory_that_does_not_go_back_is_tried_once(machine: Machine) -> None:
    machine.memory += 60 * MB
    machine.passes(100)
    assert machine.trims == 1
    machine.memory -= 60 * MB
    machine.passes(1)
    machine.keeps(FREE_MIN_BYTES + MB)
    machine.passes(1)
    assert (machine.trims, machine.memory) == (2, 100 * MB)


def test_memory_that_is_accounted_for_is_not_free(machine: Machine) -> None:
    machine.counted = 1000 * MB
    machine.memory += int(BYTES_PER_COUNTED * machine.counted)
    machine.passes(100)
    assert machine.trims == 0
    machine.counted = 0  # it was let go of, and the allocator has it
    machine.free = machine.memory - 100 * MB
    machine.passes(1)
    assert (machine.trims, machine.memory) == (1, 100 * MB)


def test_giving_back_takes_a_hundredth_of_the_time(machine: Machine) -> None:
    machine.trim_s = 0.5
    began = machine.now
    while machine.now < began + 500:
        machine.keeps(2 * FREE_MIN_BYTES)
        machine.passes(1)
    assert 8 <= machine.trims <= 11


def test_a_long_giving_back_is_told(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.trim_s = 0.25
    machine.keeps(2 * FREE_MIN_BYTES)
    with caplog.at_level("INFO"):
        machine.passes(1)
    assert caplog.messages == ["given_back_ms=250"]


def test_what_is_free_between_what_stays_goes_back() -> None:
    """Objects of 2 KB, of which one in 64 stays, are on hardly a page that is free at the heap's end."""
    made = [bytes(2000) for _ in range(40_000)]
    kept = made[::64]
    del made
    before = resident_bytes()
    trim()
    assert kept
    assert before - resident_bytes() > 30 * MB


def test_where_memory_is_unknown_the_time_counts(machine: Machine) -> None:
    machine.memory = 0
    machine.passes(TIMES_REST * machine.takes_s + 2)
    assert machine.collections == 2
    assert machine.passes(TIMES_REST * machine.takes_s + 2) == 1


def test_a_long_one_is_told(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        machine.collector.collect()
        assert caplog.messages == []
        machine.takes_s = 0.25
        machine.collector.collect()
    assert caplog.messages == [f"collection_ms=250 found=0 resident_bytes={100 * MB}"]


def test_resident_memory_follows_what_is_made() -> None:
    before = resident_bytes()
    made = bytes(64) * MB
    assert resident_bytes() - before > len(made) // 2


def test_without_proc_nothing_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr(_collector, "open", missing, raising=False)
    assert resident_bytes() == 0


async def test_an_embedded_gateway_leaves_the_collector_alone() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    async with EmbeddedGateway():
        assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, frozen)
        assert gc.isenabled()


def test_nothing_is_collected_until_all_is_imported_and_then_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []

    def run(*_: object) -> None:
        seen.append(gc.isenabled())
        Collector.take_over()
        seen.append(gc.isenabled())

    monkeypatch.setattr(_main, "run_gateway", run)
    assert main(["run"]) == 0
    assert seen == [False, True]


def test_other_commands_collect_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(_app, "app", lambda **_: seen.append(gc.isenabled()))
    assert main(["plugins"]) == 0
    assert seen == [True]
    assert gc.isenabled()


def test_whatever_becomes_of_a_start_the_collector_is_on_behind_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> None:
        raise ConfigError("no")

    monkeypatch.setattr(_main, "run_gateway", run)
    assert main(["run"]) == 2
    assert gc.isenabled()
    assert "no" in capsys.readouterr().err


def test_the_command_takes_over_before_the_gateway_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[str] = []

    class Stub(Collector):
        @staticmethod
        def take_over() -> None:
            did.append("take over")

        def begin(self, *_: object) -> None:
            did.append("begin")

    def run(
        make: Callable[[], Coroutine[None, None, object]], started: object, manager: object
    ) -> None:
        did.append(type(asyncio.run(make())).__name__)

    async def begin_early(protocols: Iterable[str], _: object) -> None:
        did.extend(protocols)

    monkeypatch.setattr(_run, "begin_early", begin_early)
    monkeypatch.setattr(_run, "Collector", Stub)
    monkeypatch.setattr(_run, "run_until_signal", run)
    monkeypatch.setattr(_run, "configure_logging", lambda _: Mock())
    monkeypatch.setattr(_run.signal, "signal", lambda *_: None)
    _run.run_gateway(None, None)  # pyright: ignore[reportArgumentType]
    assert did == ["stomp", "mqtt", "admin", "take over", "Gateway"]
