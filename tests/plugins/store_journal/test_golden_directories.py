"""Whole directories that a program of format version 1 wrote, opened by this one: see golden_kit."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from golden_kit import (
    BRANCH,
    GOLDEN,
    INFLIGHT,
    LAPTOP,
    ORDERS,
    PHONE,
    RELEASED,
    RETAINED,
    ROWS,
    SESSION,
    SHARED,
    opened_store,
)
from journal_kit import ANY_SIZE

from tidegate.spi import (
    AddMessage,
    Message,
    RecoveredDestination,
    RecoveredState,
    StoredMessage,
    WriteBatch,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.tools.verify import verify


def unpacked(how: str, where: Path) -> Path:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(where, filter="data")
    return where / how


async def page(store: JournalStore, pending_list: int) -> list[StoredMessage]:
    return list(await store.page_in(pending_list, 0, 1000, ANY_SIZE))


async def check(store: JournalStore, state: RecoveredState, how: str) -> None:
    assert sorted(state.destinations, key=lambda item: item.pending_list) == [
        RecoveredDestination("queue://orders", 1, "ann", producers_paused=True),
        RecoveredDestination("queue://split", 4, consumers_paused=True),
    ]
    orders = await page(store, 1)
    assert [item.sequence for item in orders] == ORDERS
    split = await page(store, 4)
    assert [len(item.message.body) for item in split] == [300, 300, 300, 3000, 3000]
    for item in (*orders[:-1], *split):
        assert item.message.body.startswith(b"%d ." % item.sequence)
        assert item.message.headers == (("n", str(item.sequence)),)
        assert item.message.received_at == 5
    assert [item.sequence for item in await page(store, 2)] == [21]
    assert [item.sequence for item in await page(store, 3)] == [21, 22]
    assert sorted(state.subscriptions, key=lambda item: item.pending_list) == [
        LAPTOP,
        PHONE,
        SHARED,
    ]
    assert (list(state.sessions), list(state.inflight)) == ([SESSION], [INFLIGHT])
    assert list(state.retained) == [RETAINED]
    assert list(await store.recovered_branches()) == [BRANCH]
    assert [item.sequence for item in await page(store, BRANCH.pending_list)] == [50]
    (known,) = await store.recovered_duplicate_ids()
    assert (known.destination, known.duplicate_id) == ("queue://orders", "dup-1")
    released = RELEASED if how == "closed" else 0
    rows = (await store.acknowledged(released, 1000, ANY_SIZE)).rows
    assert [row.sequence for row in rows] == ROWS[released:]
    assert [row.ack_sequence for row in rows] == list(range(1, len(ROWS) + 1))[released:]
    assert {row.client_id for row in rows} == {"client"}
    large = orders[-1].message.large
    bodies = store.capabilities.large_bodies
    assert large is not None
    assert bodies is not None
    reader = bodies.open(large)
    body = b""
    while data := await reader.read(1 << 16):
        body += data
    reader.close()
    assert body == b"L" * 5000


@pytest.mark.parametrize("how", ["killed", "closed"])
async def test_what_a_program_of_this_format_version_wrote_is_read_and_continued(
    how: str, tmp_path: Path
) -> None:
    where = unpacked(how, tmp_path)
    assert verify(where / "journal", lambda *_: None).damages == []

    store = opened_store(where)
    state = await store.open()
    assert state.report.notes == ()
    assert (state.report.counts["replayed"] > 0) == (how == "killed")
    await check(store, state, how)
    await store.write(WriteBatch([AddMessage(99, Message("queue://orders", b"99"), (1,))]))
    await store.close()
    store = opened_store(where)
    state = await store.open()
    assert state.report.clean
    assert (await page(store, 1))[-1].sequence == 99
    await store.close()


@pytest.mark.parametrize("how", ["killed", "closed"])
async def test_the_data_files_are_enough(how: str, tmp_path: Path) -> None:
    where = unpacked(how, tmp_path)
    shutil.rmtree(where / "journal" / "metadata")

    store = opened_store(where)
    await check(store, await store.open(), how)
    await store.close()


def test_the_golden_directories_are_of_version_1(tmp_path: Path) -> None:
    for how in ("killed", "closed"):
        journal = unpacked(how, tmp_path) / "journal"
        heads = {path.read_bytes()[8:10] for path in journal.rglob("*.data")}
        assert heads == {b"\1\0"}
