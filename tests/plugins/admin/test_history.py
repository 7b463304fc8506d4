"""The history of samples: rings of records in a file of a fixed size."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi.operate import GatewayState, Latency, Overview, Room, Traffic
from tidegate_admin.server.history import COLUMNS, FILE_BYTES, RANGES, Ring, Sampler, shown
from tidegate_admin.server.history._columns import RATES, together

DOCS = Path(__file__).resolve().parents[3] / "docs"
#: A moment at which a record of each ring begins.
BEGIN = 1_800_000_000 // 600 * 600
NO = Room(0, 0)
NONE = Traffic(0, 0.0)
NOTHING = Overview(
    *("gw", "1", "id", 0, 0.0, GatewayState.RUNNING, "", ()),
    *(NONE, NONE, NONE, NONE, NONE, Latency(0, 0, 0), NO),
    *(0, 0, 0, 0, NO, None, NO, NO, NO, NO, NO, 0, {}),
)


def values(number: float) -> tuple[float, ...]:
    return tuple(number for _ in COLUMNS)


def series(ring: Ring, name: str, now: float, column: str = "backlog") -> list[float | None]:
    return list(shown(ring, name, now).series[column])


def written(path: Path, *times: float) -> Ring:
    ring = Ring(path)
    for number, at in enumerate(times, 1):
        ring.add(at, 5.0, values(number))
    ring.keep(ring.changes())
    ring.close()
    return ring


def read(path: Path) -> Ring:
    ring = Ring(path)
    ring.load()
    return ring


@pytest.mark.parametrize("name", RANGES)
def test_a_range_ends_now_and_what_nobody_saw_is_a_gap(name: str) -> None:
    ring = Ring(Path("nowhere"))
    _, step_s, count = RANGES[name]
    now = BEGIN + 7
    for back in (count, count - 1, 3, 1, 0):
        ring.add(now - back * step_s, 5.0, values(back))
    found = shown(ring, name, now)
    assert (found.range, found.step_s) == (name, step_s)
    assert found.first_at == (BEGIN - (count - 1) * step_s) * 1_000_000
    assert set(found.series) == set(COLUMNS)
    for line in found.series.values():
        assert len(line) == count
        seen = {count - 1 - number: value for number, value in enumerate(line) if value is not None}
        assert seen == {0: 0, 1: 1, 3: 3, count - 1: count - 1}


def test_of_a_step_there_is_the_mean_of_rates_and_the_worst_of_all_else() -> None:
    ring = Ring(Path("nowhere"))
    for second, number in ((0, 1.0), (5, 3.0)):
        ring.add(BEGIN + second, 5.0, values(number))
    ring.add(BEGIN + 10, 10.0, values(5.0))
    fine, coarse = shown(ring, "1h", BEGIN + 10), shown(ring, "7d", BEGIN + 10)
    for column in COLUMNS:
        worst = 1 if column == "disk_free_bytes" else 3
        assert fine.series[column][-2:] == (2 if column in RATES else worst, 5)
        worst = 1 if column == "disk_free_bytes" else 5
        assert coarse.series[column][-1] == (3.5 if column in RATES else worst)


def test_what_is_not_known_is_null_and_makes_nothing_unknown() -> None:
    unknown = tuple(math.nan if name not in RATES else 0.0 for name in COLUMNS)
    assert together(5, values(1), 5, unknown)[len(RATES) :] == values(1)[len(RATES) :]
    assert together(5, unknown, 5, values(1))[len(RATES) :] == values(1)[len(RATES) :]
    ring = Ring(Path("nowhere"))
    ring.add(BEGIN, 5.0, unknown)
    assert series(ring, "1h", BEGIN)[-1] is None
    assert series(ring, "1h", BEGIN, "published")[-1] == 0


def test_the_file_has_a_fixed_size_is_the_users_alone_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "history"
    day = [BEGIN - 86_400 + 30 * number for number in range(2881)]
    was = written(path, *day)
    assert path.stat().st_size == FILE_BYTES
    assert f"{FILE_BYTES / 1024:.0f} KiB" in (DOCS / "admin.md").read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = read(path)
    for name in RANGES:
        assert shown(ring, name, BEGIN) == shown(was, name, BEGIN)
    assert None not in series(ring, "24h", BEGIN)
    # And goes on in the same record.
    ring.add(BEGIN + 1, 5.0, values(9000))
    assert series(ring, "1h", BEGIN, "published")[-1] == (2881 + 9000) / 2


@given(place=st.integers(0, 155), mask=st.integers(1, 255))
def test_a_torn_record_is_a_gap_and_no_other_is(
    tmp_path_factory: pytest.TempPathFactory, place: int, mask: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "history"
    written(path, BEGIN, BEGIN + 10)
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<q", BEGIN))
    data[at + place] ^= mask
    path.write_bytes(data)
    ring = read(path)
    assert series(ring, "1h", BEGIN + 10)[-2:] == [None, 2]
    assert series(ring, "24h", BEGIN + 10)[-1] == 2
    ring.add(BEGIN, 5.0, values(7))
    assert series(ring, "1h", BEGIN + 10)[-2:] == [7, 2]


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_other_columns(path: Path) -> None:
    written(path, BEGIN)
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    written(path, BEGIN)
    os.truncate(path, FILE_BYTES - 1)


def begun_and_not_finished(path: Path) -> None:
    path.write_bytes(bytes(FILE_BYTES))


@pytest.mark.parametrize("damage", [empty, of_other_columns, cut_off, begun_and_not_finished])
def test_a_file_that_is_none_is_begun_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "history"
    damage(path)
    path.chmod(0o644)
    ring = read(path)
    assert set(series(ring, "1h", BEGIN)) == {None}
    ring.add(BEGIN, 5.0, values(1))
    ring.keep(ring.changes())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert series(read(path), "1h", BEGIN)[-1] == 1


def test_a_clock_that_was_set_back_or_forward_leaves_gaps_and_no_lies() -> None:
    ring = Ring(Path("nowhere"))
    ring.add(BEGIN + 10 * 86_400, 5.0, values(1))
    ring.add(BEGIN, 5.0, values(2))
    assert [value for value in series(ring, "7d", BEGIN) if value is not None] == [2]
    assert [value for value in series(ring, "7d", BEGIN + 20 * 86_400) if value is not None] == []


def test_one_process_keeps_the_file_and_another_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first, second = Ring(path), Ring(path)
    first.add(BEGIN, 5.0, values(1))
    first.keep(first.changes())
    second.add(BEGIN + 10, 5.0, values(2))
    second.keep(second.changes())
    assert series(read(path), "1h", BEGIN + 10)[-2:] == [1, None]
    first.close()
    second.add(BEGIN + 20, 5.0, values(3))
    second.keep(second.changes())
    assert series(read(path), "1h", BEGIN + 20)[-3:] == [1, None, 3]
    second.close()


def test_who_does_not_keep_the_file_shows_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first, second = Ring(path), Ring(path)
    first.add(BEGIN, 5.0, values(1))
    first.keep(first.changes())
    second.add(BEGIN + 10, 5.0, values(2))
    first.add(BEGIN + 10, 5.0, values(4))
    first.keep(first.changes())
    found = second.keep(second.changes())
    assert found is not None
    second.add(BEGIN + 20, 5.0, values(7))  # while the file was read
    second.adopt(found)
    assert series(second, "1h", BEGIN + 20)[-3:] == [1, 4, 7]
    assert first.keep(first.changes()) is None
    first.close()


def test_who_takes_over_shows_and_keeps_what_was_written_while_it_waited(tmp_path: Path) -> None:
    """A standby is started long before it is the master, with the file as it was then."""
    path = tmp_path / "history"
    written(path, BEGIN)
    master, standby = read(path), read(path)
    for step in range(1, 4):
        master.add(BEGIN + 10 * step, 10.0, values(10 * step))
    master.keep(master.changes())
    master.close()
    standby.add(BEGIN + 35, 5.0, values(99))
    standby.add(BEGIN + 40, 5.0, values(50))
    found = standby.keep(standby.changes())
    assert found is not None
    standby.adopt(found)
    for ring in (standby, read(path)):
        assert series(ring, "1h", BEGIN + 40)[-5:] == [1, 10, 20, 30, 50]
        # Of the ten minutes the master had seen more.
        assert series(ring, "7d", BEGIN + 40)[-1] == 30
    standby.add(BEGIN + 50, 5.0, values(60))
    assert standby.keep(standby.changes()) is None
    standby.close()
    assert series(read(path), "7d", BEGIN + 50)[-1] == 60


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "history").symlink_to(other)
    ring = Ring(tmp_path / "history")
    ring.add(BEGIN, 5.0, values(1))
    with pytest.raises(OSError, match="symbolic link"):
        ring.keep(ring.changes())
    assert other.read_text() == "mine"


# --- the sampler ---------------------------------------------------------------------------------


def seen(started_at: int, uptime_s: float, published: int, **more: object) -> Overview:
    traffic = Traffic(published, 77.0)
    return msgspec.structs.replace(
        NOTHING, started_at=started_at, uptime_s=uptime_s, published=traffic, **more
    )


class World:
    """Attributes: looks: what is seen, one after the other; at: seconds."""

    def __init__(self, path: Path, *looks: Overview | None) -> None:
        self.looks: list[Overview | None] = list(looks)
        self.at = BEGIN
        self.ring = Ring(path)
        self.sampler = Sampler(self.ring, self.look, lambda: self.at)

    async def look(self) -> Overview | None:
        self.at += 10
        return self.looks.pop(0)

    async def run(self) -> None:
        while self.looks:
            is_running = self.looks[0] is not None
            assert await self.sampler.sample() is is_running
            await self.sampler.kept()

    def published(self) -> list[float | None]:
        return series(self.ring, "1h", self.at, "published")


async def test_rates_are_between_two_samples_of_one_run(tmp_path: Path) -> None:
    world = World(
        tmp_path / "history",
        *(seen(1, 100.0, 1000), seen(1, 110.0, 1500), None, None, seen(1, 140.0, 1500)),
        *(seen(2, 3.0, 30), seen(2, 13.0, 40)),
    )
    await world.run()
    assert world.published()[-7:] == [77, 50, None, None, 0, 77, 1]
    assert series(read(tmp_path / "history"), "1h", world.at, "published")[-1] == 1
    world.ring.close()


async def test_what_is_seen_goes_to_its_column(tmp_path: Path) -> None:
    found = seen(
        *(1, 100.0, 5),
        confirmation=Latency(3, 1.5, 9.25),
        connections=Room(4, 0),
        backlog=6,
        store=Room(7, 0),
        disk_free=8,
        memory_bytes=9,
        held=Room(10, 0),
        in_flight=Room(11, 0),
        stored_memory=Room(12, 0),
        unstored_memory=Room(13, 0),
        temporary=Room(14, 0),
    )
    world = World(tmp_path / "history", found)
    await world.run()
    last = {name: line[-1] for name, line in shown(world.ring, "15m", world.at).series.items()}
    assert last == {
        "published": 77,
        **dict.fromkeys(("confirmed", "delivered", "acknowledged", "dropped"), 0),
        "confirmation_p50_ms": 1.5,
        "confirmation_p99_ms": 9.25,
        "connections": 4,
        "backlog": 6,
        "store_bytes": 7,
        "disk_free_bytes": 8,
        "memory_bytes": 9,
        "held_bytes": 10,
        "in_flight_bytes": 11,
        "stored_memory_bytes": 12,
        "unstored_memory_bytes": 13,
        "temporary_bytes": 14,
    }
    world.ring.close()


async def test_without_a_disk_there_is_a_history_in_memory_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    world = World(folder / "history", *(seen(1, 10.0 * number, 0) for number in range(1, 4)))
    with caplog.at_level(logging.WARNING):
        await world.run()
    assert world.published()[-3:] == [77, 0, 0]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the history of samples is kept in memory only"
    ]
    folder.mkdir()
    world.looks = [seen(1, 50.0, 0)]
    await world.run()
    assert series(read(folder / "history"), "1h", world.at, "published")[-4:] == [77, 0, 0, 0]
    world.ring.close()


async def test_a_disk_that_hangs_ends_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "history", *(seen(1, 10.0 * number, 0) for number in range(1, 4)))
    goes_on = asyncio.Event()
    begun = 0

    async def to_thread(*_: object) -> None:
        nonlocal begun
        begun += 1
        await goes_on.wait()

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    for _ in range(3):
        await world.sampler.sample()
        await asyncio.sleep(0)
    assert begun == 1
    assert world.published()[-3:] == [77, 0, 0]
    goes_on.set()
    await world.sampler.kept()
