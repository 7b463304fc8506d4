"""Staging the acknowledged log into files."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import StoreClosedError, StoreIOError
from tidegate_sink_spark.staging import arrow, building, staging
from tidegate_sink_spark.staging.files import list_staged, staged_name, temporary_name
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.staging import Staging, StagingLimits


class Bench:
    """A staging over a log in memory."""

    def __init__(self, kit: Any, directory: Path, log: Any, **changes: Any) -> None:
        limits: dict[str, Any] = {
            "segment_rows": 50_000,
            "segment_bytes": 64 << 20,
            "segment_interval": 3600.0,
            "staging_bytes": 1 << 30,
        }
        write_parquet = changes.pop("write_parquet", arrow.write_parquet)
        selection = Selection(include=changes.pop("include", ()))
        self.directory = directory
        self.log = log
        self.staging = Staging(
            log,
            directory,
            StagingLimits(**{**limits, **changes}),
            builder=kit.builder_of(
                directory, log, selection=selection, write_parquet=write_parquet
            ),
            selection=selection,
        )

    def ranges(self) -> list[tuple[int, int]]:
        return [(file.lo, file.hi) for file in list_staged(self.directory)]

    def sequences(self) -> list[int]:
        """Every staged row, as read back."""
        rows: list[int] = []
        for file in list_staged(self.directory):
            rows += arrow.pq.read_table(file.path, columns=["ack_seq"])["ack_seq"].to_pylist()
        return rows


async def staged(
    bench: Bench, work: Callable[[Bench], Awaitable[None]] | None = None, mark: int = 0
) -> None:
    """Run *bench*: do *work* beside it, then drain it."""

    await bench.staging.recover(mark)
    task = asyncio.create_task(bench.staging.run())
    try:
        if work is not None:
            await work(bench)
        bench.staging.drain()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bench.staging.close()


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "RETRY_DELAY_MIN", 0.01)


async def test_a_segment_is_sealed_at_its_row_limit(kit: Any, tmp_path: Path) -> None:
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=25), segment_rows=10)
    await staged(bench)
    assert bench.ranges() == [(1, 10), (11, 20), (21, 25)]
    assert bench.sequences() == list(range(1, 26))
    assert bench.staging.position == 25
    assert bench.staging.amount.size_bytes == sum(f.size_bytes for f in list_staged(tmp_path))


async def test_segments_of_many_chunks_hold_every_row_in_order(kit: Any, tmp_path: Path) -> None:
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=5_500), segment_rows=2_500)
    await staged(bench)
    assert bench.ranges() == [(1, 2_500), (2_501, 5_000), (5_001, 5_500)]
    assert bench.sequences() == list(range(1, 5_501))


async def test_a_segment_is_sealed_at_its_byte_limit(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=6_000, make=lambda n: kit.acknowledged(n, body=b"x" * 1_000))
    bench = Bench(kit, tmp_path, log, segment_bytes=2 << 20)
    await staged(bench)
    assert bench.ranges() == [(1, 2_000), (2_001, 4_000), (4_001, 6_000)]


async def test_a_segment_is_sealed_when_its_first_row_has_waited(kit: Any, tmp_path: Path) -> None:
    async def trickle(bench: Bench) -> None:
        bench.log.grow(3)
        await kit.until(lambda: bench.ranges() == [(1, 3)])
        bench.log.grow(2)
        await kit.until(lambda: bench.ranges() == [(1, 3), (4, 5)])

    bench = Bench(kit, tmp_path, kit.MemoryLog(), segment_interval=0.05)
    await staged(bench, trickle)
    assert bench.sequences() == [1, 2, 3, 4, 5]


async def test_a_drain_seals_what_is_there_without_waiting_for_the_interval(
    kit: Any, tmp_path: Path
) -> None:
    async def idle(bench: Bench) -> None:
        bench.log.grow(7)
        await kit.until(lambda: bench.log.reads > 1)
        assert bench.ranges() == []

    bench = Bench(kit, tmp_path, kit.MemoryLog())
    await staged(bench, idle)
    assert bench.ranges() == [(1, 7)]


async def test_an_idle_log_is_not_read_again_and_again(kit: Any, tmp_path: Path) -> None:
    async def idle(bench: Bench) -> None:
        await asyncio.sleep(0.2)
        assert bench.log.reads <= 2

    await staged(Bench(kit, tmp_path, kit.MemoryLog(), segment_interval=0.01), idle)


async def test_a_restart_continues_behind_the_staged_files(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=20)
    await staged(Bench(kit, tmp_path, log))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    log.grow(5)
    bench = Bench(kit, tmp_path, log)
    await staged(bench)
    assert bench.ranges() == [(1, 20), (21, 25)]
    assert all(path.read_bytes() == content for path, content in before.items())


async def test_a_restart_without_its_files_continues_behind_the_release(
    kit: Any, tmp_path: Path
) -> None:
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=20, released=12))
    await staged(bench)
    assert bench.ranges() == [(13, 20)]


async def test_a_restart_continues_behind_the_table_when_its_mark_is_known(
    kit: Any, tmp_path: Path
) -> None:
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=20, released=12))
    await staged(bench, mark=15)
    assert bench.ranges() == [(16, 20)]


async def test_a_leftover_of_a_killed_gateway_is_removed(kit: Any, tmp_path: Path) -> None:
    (tmp_path / temporary_name(staged_name(1, 20))).write_bytes(b"PAR1 half a file")
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=20))
    await staged(bench)
    assert kit.staged_names(tmp_path) == [staged_name(1, 20)]
    assert bench.sequences() == list(range(1, 21))


async def test_rows_that_the_table_has_already_are_not_staged(kit: Any, tmp_path: Path) -> None:
    async def mark_arrives(bench: Bench) -> None:
        await bench.staging.discard_through(30)
        bench.log.grow(40)

    bench = Bench(kit, tmp_path, kit.MemoryLog())
    await staged(bench, mark_arrives)
    assert bench.ranges() == [(31, 40)]


async def test_an_open_segment_that_the_table_has_passed_is_dropped(
    kit: Any, tmp_path: Path
) -> None:
    async def mark_arrives(bench: Bench) -> None:
        bench.log.grow(10)
        await kit.until(lambda: bench.log.reads > 1)
        await bench.staging.discard_through(30)  # before more is read into the open segment
        bench.log.last = 40

    bench = Bench(kit, tmp_path, kit.MemoryLog())
    await staged(bench, mark_arrives)
    assert bench.ranges() == [(31, 40)]


async def test_a_full_disk_loses_nothing_and_is_told(kit: Any, tmp_path: Path) -> None:
    full = threading.Event()
    full.set()

    def write(path: Path, batches: Any) -> None:
        arrow.write_parquet(path, batches)
        if full.is_set():
            raise OSError(28, "No space left on device")

    async def free_some_space(bench: Bench) -> None:
        await kit.until(lambda: bench.staging.problem)
        assert "no room left" in bench.staging.problem
        assert kit.staged_names(tmp_path) == []
        assert bench.staging.position == 0
        full.clear()
        await kit.until(lambda: bench.staging.position == 25)
        assert bench.staging.problem == ""

    log = kit.MemoryLog(last=25)
    bench = Bench(kit, tmp_path, log, segment_rows=10, segment_interval=0.01, write_parquet=write)
    await staged(bench, free_some_space)
    assert bench.ranges() == [(1, 10), (11, 20), (21, 25)]
    assert bench.sequences() == list(range(1, 26))


async def test_staging_stops_at_its_limit_and_goes_on_when_the_table_follows(
    kit: Any, tmp_path: Path
) -> None:
    async def follow(bench: Bench) -> None:
        await kit.until(lambda: bench.staging.problem)
        assert "staging_max" in bench.staging.problem
        assert bench.staging.position == 20
        reads = bench.log.reads
        await asyncio.sleep(0.1)
        assert bench.log.reads == reads
        for mark, position in [(10, 30), (30, 50)]:
            await bench.staging.discard_through(mark)
            await kit.until(lambda position=position: bench.staging.position == position)
        await bench.staging.discard_through(50)
        await kit.until(lambda: bench.staging.problem == "")

    size_bytes = kit.stage(tmp_path / "measure", 1, 10).stat().st_size
    limit = size_bytes + size_bytes // 2  # the second file goes over it
    log = kit.MemoryLog(last=50)
    await staged(Bench(kit, tmp_path / "s", log, segment_rows=10, staging_bytes=limit), follow)


async def test_a_store_that_cannot_be_read_is_tried_again(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=5, failures=[StoreIOError("bad disk"), StoreIOError("bad disk")])
    problems: list[str] = []

    async def watch(bench: Bench) -> None:
        await kit.until(lambda: problems.append(bench.staging.problem) or bench.staging.position)

    bench = Bench(kit, tmp_path, log, segment_interval=0.01)
    await staged(bench, watch)
    assert bench.ranges() == [(1, 5)]
    assert any("bad disk" in problem for problem in problems)
    assert bench.staging.problem == ""


async def test_a_closed_store_ends_staging(kit: Any, tmp_path: Path) -> None:
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=5, failures=[StoreClosedError("closed")]))
    await bench.staging.recover(0)
    await asyncio.wait_for(bench.staging.run(), 60)
    await bench.staging.close()
    assert kit.staged_names(tmp_path) == []


async def test_a_log_that_is_not_dense_is_never_staged(kit: Any, tmp_path: Path) -> None:
    log = kit.MemoryLog(last=5, make=lambda n: kit.acknowledged(n + 1))
    bench = Bench(kit, tmp_path, log, segment_interval=0.01, stops_at_bad_row=True)
    await bench.staging.recover(0)
    task = asyncio.create_task(bench.staging.run())
    await kit.until(lambda: "when asked for those behind 0" in bench.staging.problem)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await bench.staging.close()
    assert kit.staged_names(tmp_path) == []


async def test_arrays_and_files_are_made_in_one_thread_off_the_loop(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    sizes: list[int] = []
    build = building.build_encoded

    def traced(runs: Any, gateway_id: str, epoch: str) -> Any:
        threads.add(threading.get_ident())
        sizes.append(sum(map(len, runs)))
        return build(runs, gateway_id, epoch)

    def write(path: Path, batches: Any) -> None:
        threads.add(threading.get_ident())
        arrow.write_parquet(path, batches)

    monkeypatch.setattr(building, "build_encoded", traced)
    monkeypatch.setattr(building, "BATCH_ROWS", 1_500)
    await staged(Bench(kit, tmp_path, kit.MemoryLog(last=3_300), write_parquet=write))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert sum(sizes) == 3_300
    assert max(sizes) < 1_500 + staging.CHUNK_ROWS


async def test_recovery_while_a_seal_is_under_way_sees_its_file(kit: Any, tmp_path: Path) -> None:
    """Cancelling the loop's side does not stop the thread; recovery must come after its work."""
    entered, go_on = threading.Event(), threading.Event()

    def slow(path: Path, batches: Any) -> None:
        entered.set()
        go_on.wait(60)
        arrow.write_parquet(path, batches)

    bench = Bench(kit, tmp_path, kit.MemoryLog(last=10), segment_rows=10, write_parquet=slow)
    await bench.staging.recover(0)
    task = asyncio.create_task(bench.staging.run())
    await kit.until(entered.is_set)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    recovering = asyncio.create_task(bench.staging.recover(0))
    go_on.set()
    await recovering
    assert bench.staging.position == 10
    await bench.staging.close()
    assert kit.staged_names(tmp_path) == [staged_name(1, 10)]


async def test_staging_is_not_absurdly_slow(kit: Any, tmp_path: Path) -> None:
    """A bound that only a wrong algorithm breaks; docs/sink-spark.md has the measured figure."""
    rows = [kit.acknowledged(n) for n in range(1, 20_001)]
    log = kit.MemoryLog(last=20_000, make=lambda n: rows[n - 1])
    started = time.process_time()
    await staged(Bench(kit, tmp_path, log))
    assert (time.process_time() - started) / 20_000 < 200e-6


async def test_only_rows_that_the_sink_takes_are_staged(kit: Any, tmp_path: Path) -> None:
    """Every third row is of orders.1; a file says how many of its range it holds."""
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=25), segment_rows=10, include=("orders.1",))
    await staged(bench)
    assert bench.sequences() == [1, 4, 7, 10, 13, 16, 19, 22, 25]
    assert [(file.lo, file.hi, file.rows) for file in list_staged(tmp_path)] == [
        (1, 10, 4),
        (11, 20, 3),
        (21, 25, 2),
    ]
    assert bench.log.releases == []


async def test_rows_that_no_sink_takes_are_released_without_a_file(
    kit: Any, tmp_path: Path
) -> None:
    bench = Bench(kit, tmp_path, kit.MemoryLog(last=25), segment_rows=10, include=("none",))
    await staged(bench)
    assert bench.ranges() == []
    assert bench.log.releases == [10, 20, 25]
    assert bench.staging.sealed == 0


async def test_what_lies_behind_a_staged_row_is_released_when_the_table_has_that_row(
    kit: Any, tmp_path: Path
) -> None:
    """Of 60 rows only the 15th is the sink's."""

    def make(n: int) -> Any:
        return kit.acknowledged(n, destination="queue://mine" if n == 15 else "queue://other")

    async def work(bench: Bench) -> None:
        await kit.until(lambda: bench.log.reads > 6)
        assert bench.log.releases == [10]
        assert bench.ranges() == [(1, 20)]
        await bench.staging.discard_through(20)
        assert bench.log.released == 60

    bench = Bench(
        kit, tmp_path, kit.MemoryLog(last=60, make=make), segment_rows=10, include=("queue://mine",)
    )
    await staged(bench, work)
    assert bench.ranges() == []


async def test_a_restart_of_a_sink_that_takes_some_continues_the_range(
    kit: Any, tmp_path: Path
) -> None:
    log = kit.MemoryLog(last=11)
    await staged(Bench(kit, tmp_path, log, segment_rows=5, include=("orders.1",)))
    assert [(file.lo, file.hi) for file in list_staged(tmp_path)] == [(1, 5), (6, 10)]
    log.grow(9)
    bench = Bench(kit, tmp_path, log, segment_rows=5, include=("orders.1",))
    await staged(bench)
    assert bench.ranges() == [(1, 5), (6, 10), (11, 15), (16, 20)]
    assert bench.sequences() == [1, 4, 7, 10, 13, 16, 19]
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    log.released = 12  # what is gone was not the sink's, or is in the table
    await staged(Bench(kit, tmp_path, log, segment_rows=50, include=("orders.1",)), mark=10)
    assert bench.ranges() == [(11, 20)]
    assert bench.sequences() == [13, 16, 19]
