"""The acknowledged log does not stay in memory, and is all the same there for whoever needs it."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, KB, checkpoint, killed, opened, pending, write
from numbered import ack, add

from tidegate.spi import MessageStore
from tidegate_store_journal import JournalStore
from tidegate_store_journal.index import acklog

#: The smallest that the option allows.
_ADD_SIZE = 4096


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acklog, "RESIDENT_ROWS", 12)
    monkeypatch.setattr(acklog, "PAGE_ROWS", 5)


async def consume(store: MessageStore, first: int, count: int) -> None:
    """Messages that come and are acknowledged one by one, in one batch each."""
    sequences = range(first, first + count)
    await write(store, *map(add, sequences))  # type: ignore[arg-type]
    await write(store, *map(ack, sequences))  # type: ignore[arg-type]


async def rows(store: JournalStore, after: int, limit: int = 7) -> list[tuple[int, int, bytes]]:
    """All rows behind *after*, page by page."""
    found: list[tuple[int, int, bytes]] = []
    while True:
        page = await store.acknowledged(found[-1][0] if found else after, limit, ANY_SIZE)
        if not page.rows:
            return found
        found += [
            (row.ack_sequence, row.sequence, row.message.body.split()[0]) for row in page.rows
        ]


def expected(first: int, last: int) -> list[tuple[int, int, bytes]]:
    return [(number, number, b"%d" % number) for number in range(first, last + 1)]


@pytest.mark.long
async def test_a_log_that_nobody_reads_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acklog, "RESIDENT_ROWS", 1000)
    monkeypatch.setattr(acklog, "PAGE_ROWS", 500)

    store, _ = await opened(
        tmp_path,
        keep=True,
        max_checkpoint_message_add_size=_ADD_SIZE,
        journal_max_file_length=1024 * KB,
    )
    sizes: list[int] = []
    tracemalloc.start()
    for part in range(4):
        for batch in range(10):
            await consume(store, part * 5000 + batch * 500 + 1, 500)
            await asyncio.sleep(0)
        await checkpoint(store, cleanup=True)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[3] - sizes[0] < 1 << 20, sizes
    assert (await store.acknowledged(0, 1, ANY_SIZE)).last == 20_000
    await store.close()


@pytest.mark.parametrize("seed", range(4))
async def test_rows_are_read_released_copied_and_found_again_wherever_they_are(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)

    directory = tmp_path / "0"
    limits = {"journal_compact_min_files": 2, "journal_compact_percentage": 80}
    store, _ = await opened(directory, keep=True, **limits)
    released = last = restarts = 0
    for _ in range(60):
        act = chance.randrange(7)
        if act <= 1:
            count = chance.randrange(1, 40)
            await consume(store, last + 1, count)
            last += count
        elif act == 2:
            await checkpoint(store, cleanup=True)
        elif act == 3:
            released = chance.randint(released, last)
            await store.release_acknowledged(released)
        elif act == 4:
            after = chance.randint(released, last)
            assert await rows(store, after, chance.choice((1, 7, 100))) == expected(after + 1, last)
        elif act == 5:
            await store.compact(percentage=100, progress=lambda *_: None)
        else:
            restarts += 1
            target = tmp_path / str(restarts)
            if chance.random() < 0.5:
                await checkpoint(store, cleanup=True)
                killed(directory, target)
                await store.close()
                if chance.random() < 0.5:
                    (target / "journal" / "index-store-state").unlink(missing_ok=True)
                directory = target
            else:
                await store.close()
            store, _ = await opened(directory, keep=True, **limits)
        log = store.log_statistics()
        assert (log.first, log.last) == (released + 1, last)
        assert (log.held_bytes > 0) is (released < last)
    assert await rows(store, released) == expected(released + 1, last)
    assert await pending(store) == []
    await store.release_acknowledged(last)
    assert store.log_statistics().held_bytes == store.live_bytes == 0
    await store.close()


async def test_rows_and_headers_count_as_well_as_bodies(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, *[add(number, size=0) for number in range(1, 101)])
    await write(store, *[ack(number) for number in range(1, 101)])
    assert store.log_statistics().held_bytes > 100 * 100
    await store.release_acknowledged(50)
    assert store.log_statistics().held_bytes > 50 * 100
    await store.release_acknowledged(100)
    assert store.log_statistics().held_bytes == 0
    await store.close()
