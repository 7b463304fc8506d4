"""What keeps a data file, said by destination, list and message; and the share that is alive."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, opened, write
from numbered import ack, add

from tidegate.spi import (
    SEQUENCES_MAX,
    AddDestination,
    CorruptRecordError,
    PutSubscription,
    RemoveDestination,
    StoreIOError,
    Subscription,
)
from tidegate_store_journal import FileReport, JournalStore, describe, inspect, why
from tidegate_store_journal.tools import lookon

OPTIONS = {"journal_compact_min_files": 0, "journal_max_file_length": 64 * KB}


async def pinned(where: Path, *, keep: bool = False) -> JournalStore:
    """A store whose first file is kept by a queue, a durable subscription, and a lost list."""
    store, _ = await opened(where, keep=keep, **OPTIONS)
    await write(
        store,
        AddDestination("queue://orders", 1),
        PutSubscription(Subscription(2, "laptop", "news", "topic://news.>", True)),
        add(1, 1, size=1000),
        add(2, 1, 2, size=1000),
        add(3, 2, size=1000),
        add(4, 7, size=1000),
        add(5, 1, size=50_000),
    )
    for sequence in range(6, 12):
        await write(store, add(sequence, 1, size=50_000))
    await write(store, ack(*range(5, 12)), ack(3, pending_list=2))
    return store


async def test_a_pinned_file_names_destination_list_and_messages(tmp_path: Path) -> None:
    await (await pinned(tmp_path)).close()
    report = why(tmp_path / "journal", "journal-0000000001.data")
    assert [
        (item.kind, item.destination, item.client_id, item.subscription, item.pending_list)
        for item in report.holders
    ] == [
        ("queue", "queue://orders", "", "", 1),
        ("durable subscription", "topic://news.>", "laptop", "news", 2),
        ("unknown list", "", "", "", 7),
    ]
    assert [list(item.sequences) for item in report.holders] == [[1, 2], [2], [4]]
    assert report.references == 4
    # Message 2 counts once for the file and in each of its lists.
    sizes = [item.live_bytes for item in report.holders]
    assert report.live_bytes == sum(sizes) - sizes[1]
    assert 0.045 < report.live_share < 0.06
    text = describe(report)
    assert "journal-0000000001.data: used" in text
    assert "queue queue://orders (list 1): messages 1, 2 (2, " in text
    assert "topic://news.> client laptop name news (list 2): messages 2 (1, " in text


async def test_rows_that_no_sink_released_are_named_as_the_reason(tmp_path: Path) -> None:
    store = await pinned(tmp_path, keep=True)
    await store.release_acknowledged(7)
    await store.close()
    report = why(tmp_path / "journal", "journal-0000000001.data")
    holder = report.holders[-1]
    assert (holder.kind, list(holder.sequences)) == ("acknowledged", [8])
    assert "no sink has released rows 8" in describe(report)


async def test_inspect_lists_every_file_with_its_share_and_state(tmp_path: Path) -> None:
    await (await pinned(tmp_path)).close()
    reports = inspect(tmp_path / "journal")
    names = sorted(path.name for path in (tmp_path / "journal").glob("journal-*[ae]"))
    assert sorted(report.name for report in reports) == names
    states = [report.state for report in reports]
    assert states[0] == "used"
    assert states.count("current") == 1
    assert "spare" in states
    assert "free" in states
    assert all(not report.holders for report in reports)
    assert [report.live_bytes > 0 for report in reports] == [True] + [False] * (len(reports) - 1)
    free = next(report for report in reports if report.state == "free")
    assert "used again" in describe(why(tmp_path / "journal", free.name))


async def test_a_file_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    await (await pinned(tmp_path)).close()
    with pytest.raises(StoreIOError, match=r"it has: journal-0000000001\.data"):
        why(tmp_path / "journal", "journal-0000009999.data")
    with pytest.raises(StoreIOError, match="nothing"):
        inspect(tmp_path / "nothing")


async def test_only_the_first_sequences_are_named(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await write(store, *[add(item) for item in range(1, 101)])
    await store.close()
    (report,) = [item for item in inspect(tmp_path / "journal") if item.references]
    (holder,) = why(tmp_path / "journal", f"some/where/{report.name}").holders
    assert holder.messages == 100
    assert list(holder.sequences) == list(range(1, SEQUENCES_MAX + 1))
    assert "20, … (100, " in describe(why(tmp_path / "journal", report.name))


async def test_without_metadata_the_data_files_say_the_same(tmp_path: Path) -> None:
    await (await pinned(tmp_path)).close()
    journal = tmp_path / "journal"
    before = why(journal, "journal-0000000001.data")
    for path in (journal / "metadata").iterdir():
        path.unlink()
    assert why(journal, "journal-0000000001.data") == before


async def test_a_removed_destination_keeps_nothing(tmp_path: Path) -> None:
    store = await pinned(tmp_path)
    await write(store, RemoveDestination("queue://orders", 1))
    await store.close()
    report = why(tmp_path / "journal", "journal-0000000001.data")
    assert [item.pending_list for item in report.holders] == [2, 7]


async def test_nothing_is_written(tmp_path: Path) -> None:
    await (await pinned(tmp_path)).close()
    journal = tmp_path / "journal"

    def contents() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in journal.rglob("*")
            if path.is_file() and path.name != "lock.mdb"  # LMDB's table of readers
        }

    before = contents()
    why(journal, "journal-0000000001.data")
    assert contents() == before


SCRIPT = """
import sys
from pathlib import Path
from tidegate.spi import StoreIOError
from tidegate_store_journal import describe, inspect, why

def looked_at(journal):
    while True:
        report = next(report for report in inspect(journal) if report.references)
        try:
            return why(journal, report.name)
        except StoreIOError as error:
            if "it has: " not in str(error):
                raise
            # The file was put away between the two.

for line in sys.stdin:
    print(describe(looked_at(Path(sys.argv[1]))).replace(chr(10), " | "), flush=True)
"""


@pytest.mark.parametrize("changes", [True, False])
async def test_what_looks_damaged_is_looked_at_again_while_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    await (await pinned(tmp_path)).close()
    journal, read, calls = tmp_path / "journal", lookon.read_bindings, itertools.count(1)

    def read_late(*arguments: Any, **options: Any) -> Any:
        number = next(calls)
        if changes and number > 8:
            return read(*arguments, **options)
        if changes:
            (journal / f"written-{number}").touch()
        raise CorruptRecordError("it was half of what it is now", location="bindings")

    monkeypatch.setattr(lookon, "read_bindings", read_late)
    if changes:
        assert why(journal, "journal-0000000001.data").references == 4
    else:
        with pytest.raises(CorruptRecordError):
            inspect(journal)
        assert next(calls) == 6


async def test_it_works_beside_a_gateway_that_writes_compacts_and_uses_files_again(
    tmp_path: Path,
) -> None:
    """In a process of its own, as the command is."""

    store, _ = await opened(tmp_path, checkpoint_interval=0.05, cleanup_interval=0.05)
    await write(store, AddDestination("queue://orders", 1), add(1, size=1000))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        str(tmp_path / "journal"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: list[str] = []
    sequence = 1
    async with asyncio.timeout(60):
        for _ in range(10):
            process.stdin.write(b"look\n")
            answer = asyncio.create_task(process.stdout.readline())
            for _ in range(50):  # no more: who looks may be so slow that it would never see the end
                sequence += 1
                await write(store, add(sequence, size=9000))
                await write(store, ack(sequence))
            lines.append((await answer).decode())
        process.stdin.close()
        assert await process.wait() == 0
    await store.close()
    assert len(lines) == 10
    for line in lines:
        assert "queue queue://orders (list 1): messages 1" in line


def test_a_share_of_nothing_is_zero() -> None:
    assert FileReport("journal-0000000001.free", 1, "free", 0, 0, 0).live_share == 0.0
