"""Building segments in a process of its own: the same files, and nothing lost when it dies."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tidegate.spi import EncodedRows, encode_rows
from tidegate_sink_spark.staging import arrow, process, staging
from tidegate_sink_spark.staging.building import BuilderGoneError
from tidegate_sink_spark.staging.dead import DeadLetter
from tidegate_sink_spark.staging.files import list_staged
from tidegate_sink_spark.staging.further import FurtherSetup
from tidegate_sink_spark.staging.process import ProcessBuilder, Setup
from tidegate_sink_spark.staging.reading import decoded
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.staging import Staging, StagingLimits


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "staged"
    made.mkdir()
    return made


@pytest.fixture
async def builder(directory: Path) -> AsyncIterator[ProcessBuilder]:
    made = ProcessBuilder(Setup(str(directory), "gw", "store-1"))
    yield made
    await made.close()
    assert made.pid == 0


def runs(kit: Any, first: int, last: int) -> list[EncodedRows]:
    return encode_rows([kit.acknowledged(n) for n in range(first, last + 1)])


def numbers(directory: Path) -> list[int]:
    found: list[int] = []
    for file in list_staged(directory):
        found += arrow.pq.read_table(file.path, columns=["ack_seq"])["ack_seq"].to_pylist()
    return found


async def stage(
    log: Any,
    directory: Path,
    builder: ProcessBuilder,
    work: Callable[[Staging], Awaitable[None]] | None = None,
    **changes: Any,
) -> Staging:
    limits = StagingLimits(1_500, 64 << 20, 3600.0, 1 << 30)
    staged = Staging(log, directory, limits, builder=builder, **changes)
    await staged.recover(0)
    task = asyncio.create_task(staged.run())
    try:
        if work is not None:
            await work(staged)
        staged.drain()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await staged.close()
    return staged


async def test_a_process_makes_the_same_files_as_a_thread(
    kit: Any, directory: Path, tmp_path: Path, builder: ProcessBuilder
) -> None:
    async def in_between(staged: Staging) -> None:
        await kit.until(lambda: staged.position >= 1_500)
        assert psutil.Process(builder.pid).nice() > psutil.Process().nice()
        await staged.discard_through(1_500)

    staged = await stage(kit.MemoryLog(last=3_700), directory, builder, in_between)
    assert numbers(directory) == list(range(1_501, 3_701))
    assert (staged.position, staged.amount.rows) == (3_700, 2_200)
    assert staged.amount.size_bytes == sum(
        file.path.stat().st_size for file in list_staged(directory)
    )
    other = tmp_path / "other"
    setup = Setup(str(other), "gw", "store-1")
    in_thread = Staging(
        kit.MemoryLog(last=3_700),
        other,
        StagingLimits(1_500, 64 << 20, 3600.0, 1 << 30),
        builder=kit.thread_builder(setup),
    )
    await in_thread.recover(1_500)
    in_thread.drain()
    await in_thread.run()
    await in_thread.close()
    assert kit.staged_names(other) == kit.staged_names(directory)
    for one, two in zip(list_staged(directory), list_staged(other), strict=True):
        assert arrow.pq.read_table(one.path) == arrow.pq.read_table(two.path)


@pytest.mark.long
async def test_a_process_that_is_killed_loses_nothing(
    kit: Any, directory: Path, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "RETRY_DELAY_MIN", 0.001)
    problems: list[str] = []

    async def kill(staged: Staging) -> None:
        await kit.until(lambda: staged.waiting.rows == 1_000)  # in the open segment, all at rest
        first = psutil.Process(builder.pid)
        first.kill()
        await kit.until(lambda: builder.pid == 0)
        log.grow(2_000)
        await kit.until(lambda: staged.position >= 1_500)
        assert problems
        assert staged.problem == ""
        psutil.Process(builder.pid).kill()  # perhaps while it works
        log.grow(3_000)

    log = kit.MemoryLog(last=1_000)
    await stage(log, directory, builder, kill, on_problem=problems.append)
    assert numbers(directory) == list(range(1, 6_001))
    assert all("read again" in problem for problem in problems)


async def test_a_segment_is_never_sealed_by_a_process_that_knows_only_a_part_of_it(
    kit: Any, directory: Path, builder: ProcessBuilder
) -> None:
    await builder.add(1, runs(kit, 1, 5))
    psutil.Process(builder.pid).kill()
    await kit.until(lambda: builder.pid == 0)
    with pytest.raises(BuilderGoneError, match="has ended"):
        await builder.add(1, runs(kit, 6, 10))
    await builder.add(2, runs(kit, 6, 10))
    await builder.build(2)
    with pytest.raises(BuilderGoneError, match=r"5 rows are held of 1 to 10 instead of 10"):
        await builder.seal(2, 1, 10, 10, [])
    assert list_staged(directory) == []


async def test_rows_are_accounted_with_their_bytes(kit: Any, directory: Path) -> None:
    builder = kit.builder_of(directory, kit.MemoryLog(), selection=Selection(("queue://a",)))

    async def size(segment: int, *rows: tuple[str, bytes, tuple[tuple[str, str], ...]]) -> int:
        made = [
            kit.acknowledged(n, destination=f"queue://{name}", body=body, headers=headers)
            for n, (name, body, headers) in enumerate(rows, 1)
        ]
        return (await builder.add(segment, encode_rows(made))).size_bytes

    small = await size(1, ("a", b"", ()))
    assert await size(2, ("a", b"x" * 1_000, ())) >= small + 1_000
    assert await size(3, ("a", b"", (("ab", "cde"),))) >= small + 5
    assert await size(4, ("b", b"x", ()), ("a", b"", ()), ("b", b"y", ())) == small
    await builder.close()


async def test_what_was_open_is_forgotten_with_the_next_segment(
    kit: Any, directory: Path, builder: ProcessBuilder
) -> None:
    await builder.add(1, runs(kit, 1, 5))
    added = await builder.add(2, runs(kit, 11, 14))
    assert (added.taken, added.bad) == (4, ())
    assert added.acked_at == kit.acknowledged(11).acked_at
    assert await builder.build(2) == ()
    file = await builder.seal(2, 11, 14, 4, [])
    assert (file.rows, file.dead, file.path.parent) == (4, 0, directory)
    assert file.size_bytes == file.path.stat().st_size
    assert numbers(directory) == [11, 12, 13, 14]


async def test_a_call_that_is_cancelled_comes_to_its_end_before_the_next(
    kit: Any, directory: Path, builder: ProcessBuilder
) -> None:
    await builder.add(1, runs(kit, 1, 5))
    await builder.build(1)
    sealing = asyncio.create_task(builder.seal(1, 1, 5, 5, []))
    await asyncio.sleep(0)
    sealing.cancel()
    await asyncio.gather(sealing, return_exceptions=True)
    await builder.settled()
    assert numbers(directory) == [1, 2, 3, 4, 5]
    assert (await builder.add(2, runs(kit, 6, 7))).taken == 2


@pytest.mark.parametrize("room", [4_096, process.ROOM_BYTES])
async def test_pages_are_whole_whether_they_fit_the_shared_memory_or_not(
    kit: Any, directory: Path, monkeypatch: pytest.MonkeyPatch, builder: ProcessBuilder, room: int
) -> None:
    """And while an answer is owed, what is in that memory stays."""
    monkeypatch.setattr(process, "ROOM_BYTES", room)
    assert (await builder.add(1, runs(kit, 1, 3))).taken == 3
    assert (await builder.add(1, runs(kit, 4, 400))).taken == 397
    first, second, third = await asyncio.gather(
        builder.add(1, runs(kit, 401, 410)),
        builder.add(1, runs(kit, 411, 413)),
        builder.add(1, runs(kit, 414, 900)),
    )
    assert (first.taken, second.taken, third.taken) == (10, 3, 487)
    assert (await builder.build(1), (await builder.seal(1, 1, 900, 900, [])).rows) == ((), 900)
    assert numbers(directory) == list(range(1, 901))


async def test_a_disk_that_says_no_keeps_the_segment(
    kit: Any, directory: Path, builder: ProcessBuilder
) -> None:
    await builder.add(1, runs(kit, 1, 5))
    await builder.build(1)
    away = directory.rename(directory.with_name("away"))
    with pytest.raises(FileNotFoundError):
        await builder.seal(1, 1, 5, 5, [])
    away.rename(directory)
    assert (await builder.seal(1, 1, 5, 5, [])).rows == 5


async def test_selection_columns_and_dead_letters_are_the_process_s_own(
    kit: Any, directory: Path
) -> None:
    further = FurtherSetup({"n": "long header:n"}, stops=True)
    setup = Setup(str(directory), "gw", "store-1", ("queue://a",), further=further)
    rows = [kit.acknowledged(n) for n in range(1, 5)]
    for number, (name, value) in enumerate([("a", "1"), ("b", "2"), ("a", "x"), ("a", "4")]):
        message = msgspec.structs.replace(
            rows[number].message, destination=f"queue://{name}", headers=(("n", value),)
        )
        rows[number] = msgspec.structs.replace(rows[number], message=message)
    builder = ProcessBuilder(setup)
    assert (await builder.add(1, encode_rows(rows))).taken == 3
    (bad,) = await builder.build(1)
    assert (bad.ack_sequence, "column n" in bad.reason) == (3, True)
    letter = DeadLetter(5, "it cannot be read", None, b"raw", 7)
    file = await builder.seal(1, 1, 5, 4, [letter])
    await builder.close()
    assert (file.rows, file.dead) == (2, 2)
    table = arrow.pq.read_table(file.path)
    assert table["n"].to_pylist() == [1, 4]
    dead = kit.rows_of([file.dead_path])
    assert [row["ack_seq"] for row in dead] == [3, 5]


def test_a_message_that_cannot_be_decoded_is_a_dead_letter(kit: Any) -> None:
    rows = [msgspec.structs.replace(kit.acknowledged(n), acked_at=5) for n in (1, 2, 3)]
    (run,) = encode_rows(rows)
    found = decoded([run])
    assert (list(found.rows), found.letters) == (rows, [])
    broken = msgspec.structs.replace(run, messages=[run.messages[0], b"\xc1", run.messages[2]])
    found = decoded([broken])
    assert [row.ack_sequence for row in found.rows] == [1, 3]
    (letter,) = found.letters
    assert (letter.ack_sequence, letter.raw) == (2, b"\xc1")
    assert "cannot be decoded" in letter.reason
    assert letter.known is not None
    assert letter.known.acked_at == 5


async def test_a_process_that_rests_is_started_again(
    kit: Any, directory: Path, builder: ProcessBuilder
) -> None:
    assert builder.pid == 0
    await builder.rest()
    await builder.add(1, runs(kit, 1, 2))
    first = psutil.Process(builder.pid)
    await builder.rest()
    assert builder.pid == 0
    assert not first.is_running()
    assert (await builder.add(2, runs(kit, 3, 3))).taken == 1


async def test_staging_lets_the_process_rest_when_nothing_comes(
    kit: Any, directory: Path, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REST_INTERVAL", 0.05)

    async def idle(staged: Staging) -> None:
        await kit.until(lambda: staged.position == 1_500)
        await kit.until(lambda: builder.pid == 0)
        log.grow(1_500)
        await kit.until(lambda: staged.position == 3_000)

    log = kit.MemoryLog(last=1_500)
    await stage(log, directory, builder, idle)
    assert numbers(directory) == list(range(1, 3_001))


async def test_a_process_that_cannot_start_says_why(
    kit: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        process, "COMMAND", (sys.executable, "-c", "import sys; sys.exit('no pyarrow here')")
    )
    builder = ProcessBuilder(Setup(str(directory), "gw", "store-1"))
    with pytest.raises(BuilderGoneError, match=r"code 1: no pyarrow here"):
        await builder.add(1, runs(kit, 1, 1))
    monkeypatch.setattr(process, "COMMAND", ("/nowhere/python",))
    with pytest.raises(BuilderGoneError, match="no process can be started"):
        await builder.add(2, runs(kit, 1, 1))
    await builder.close()


_ORPHAN = """
import sys, time, os, pathlib
from tidegate_sink_spark.staging import arrow, worker, process
from tidegate.spi import AcknowledgedMessage, Message, encode_rows
segment = worker.make_segment(process.Setup(sys.argv[1], "gw", "store-1"), 1 << 30)
row = AcknowledgedMessage(1, 1, Message("queue://q", b"x", received_at=1), 1, 1, 1, "", "", "")
segment.add(1, encode_rows([row]))
segment.build(1)
segment.seal(1, 1, 1, 1, [])
"""


async def test_without_its_gateway_no_file_gets_its_name(directory: Path) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", _ORPHAN, str(directory))
    assert await child.wait() == 0
    assert list_staged(directory) == []
    assert [entry.suffix for entry in directory.iterdir()] == [".tmp"]


def test_what_a_dead_letter_says_survives_the_way(kit: Any) -> None:
    letter = DeadLetter(5, "why", kit.acknowledged(5), b"raw", 7)
    sent = process.frame(process.Seal(1, 5, 5, 1, [letter]))[process.LENGTH_BYTES :]
    question = process.decode_question(sent)
    assert isinstance(question, process.Seal)
    assert question.letters == [letter]
