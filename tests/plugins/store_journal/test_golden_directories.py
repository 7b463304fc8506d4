"""Whole directories that the programs of every format version wrote, opened by this one.

``golden/directory-N.tar.xz`` was written by the program whose newest format was N (after a SIGKILL,
with a replay to do, and after a clean stop): data files, checkpoint (of version 1 with N = 1 and 2,
of version 2 with N = 3, of version 3 with N = 3-checkpoint-3), bindings, and with N = 3 duplicate ids, a prepared branch, a record file, a
file of a single message, and a large body. What those bytes are is in docs/journal-format.md.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, options, run

from tidegate.spi import (
    AddMessage,
    BranchId,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    RecoveredState,
    StoreContext,
    StoredMessage,
    WriteBatch,
)
from tidegate_store_journal import JournalStore

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("1", "2", "3", "3-checkpoint-3")
#: Sequences of the list of queue://orders: what was added and not acknowledged.
ORDERS = [2, 4, *range(6, 20), 40, 41, 42]


def unpacked(name: str, how: str, where: Path) -> Path:
    with tarfile.open(GOLDEN / f"directory-{name}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / how


def opened_store(where: Path) -> JournalStore:
    return JournalStore(StoreContext(where, "golden", keep_acknowledged=True), options())


async def page(store: JournalStore, pending_list: int) -> list[StoredMessage]:
    return list(await store.page_in(pending_list, 0, 1000, ANY_SIZE))


async def check(store: JournalStore, state: RecoveredState, version: int, how: str) -> None:
    assert {item.destination: item.pending_list for item in state.destinations} == {
        "queue://orders": 1,
        "queue://split": 4,
    }
    orders = await page(store, 1)
    large = [60] if version >= 3 else []
    assert [item.sequence for item in orders] == ORDERS + large
    for item in orders[: len(ORDERS)]:
        assert item.message.body.startswith(b"%d ." % item.sequence)
        assert item.message.headers == (("n", str(item.sequence)),)
        assert item.message.received_at == 5
    assert [item.sequence for item in await page(store, 2)] == [21]
    assert [item.sequence for item in await page(store, 3)] == [21, 22]
    laptop, phone = sorted(state.subscriptions, key=lambda item: item.pending_list)
    assert (laptop.client_id, laptop.name, laptop.filter) == ("laptop", "news", "topic://news.>")
    assert (phone.client_id, phone.name, phone.filter) == ("phone", "alerts/#", "topic://alerts.>")
    assert laptop.durable
    assert phone.durable
    assert [(item.client_id, item.options) for item in state.sessions] == [("phone", {"a": "b"})]
    assert state.inflight == [
        InflightRecord("phone", InflightDirection.OUT, 7, InflightState.PUBLISHED, "alerts/#", 22)
    ]
    assert [(item.destination, item.body) for item in state.retained] == [
        ("topic://alerts.fire", b"retained")
    ]
    released = 19 if how == "closed" else 0
    rows = (await store.acknowledged(released, 1000, ANY_SIZE)).rows
    assert [row.sequence for row in rows] == [1, 3, 5, 20, *range(23, 40)][released:]
    assert [row.ack_sequence for row in rows] == list(range(1, 22))[released:]
    assert all(row.message.body.startswith(b"%d ." % row.sequence) for row in rows)
    assert {row.client_id for row in rows} == {"client"}
    if version >= 3:
        await check_version_3(store, state, orders[-1])


async def check_version_3(store: JournalStore, state: RecoveredState, large: StoredMessage) -> None:
    assert [(item.destination, item.duplicate_id) for item in state.duplicate_ids] == [
        ("queue://orders", "dup-1")
    ]
    (branch,) = state.branches
    assert branch.branch_id == BranchId(1, b"one", b"\xff")
    assert [item.sequence for item in await page(store, branch.pending_list)] == [50]
    split = await page(store, 4)
    assert [len(item.message.body) for item in split] == [300, 300, 300, 3000, 3000]
    assert [item.sequence for item in split] == list(range(51, 56))
    assert large.message.large is not None
    assert store.capabilities.large_bodies is not None
    reader = store.capabilities.large_bodies.open(large.message.large)
    body = b""
    while data := await reader.read(1 << 16):
        body += data
    reader.close()
    assert body == b"L" * 5000


@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_program_of_every_format_version_wrote_is_read_and_continued(
    name: str, how: str, tmp_path: Path
) -> None:
    where = unpacked(name, how, tmp_path)
    version = int(name[0])

    async def scenario() -> None:
        store = opened_store(where)
        state = await store.open()
        # The checkpoint has an old version, or there was no marker: all is read once.
        (note,) = state.report.notes
        told = "has version 3" if name == NAMES[-1] else "has version 2"
        assert (told if version == 3 else "rebuilt from the data files") in note
        assert state.report.replayed > 0
        await check(store, state, version, how)
        await store.write(WriteBatch([AddMessage(99, Message("queue://orders", b"99"), (1,))]))
        await store.close()
        store = opened_store(where)
        state = await store.open()
        assert state.report.clean
        assert (await page(store, 1))[-1].sequence == 99
        await store.close()

    run(scenario())


@pytest.mark.parametrize("name", NAMES)
def test_the_data_files_and_side_files_of_every_format_version_are_enough(
    name: str, tmp_path: Path
) -> None:
    where = unpacked(name, "closed", tmp_path)
    version = int(name[0])
    shutil.rmtree(where / "journal" / "metadata")

    async def scenario() -> None:
        store = opened_store(where)
        await check(store, await store.open(), version, "closed")
        await store.close()

    run(scenario())


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_directories_are_of_the_version_that_they_say(name: str, tmp_path: Path) -> None:
    version = int(name[0])
    for how in ("killed", "closed"):
        journal = unpacked(name, how, tmp_path) / "journal"
        heads = {path.read_bytes()[8:10] for path in journal.glob("journal-*.data")}
        assert heads == {version.to_bytes(2, "little")}
        names = {path.name for path in journal.iterdir()}
        assert {"bindings.snapshot", "metadata"} <= names
        assert ("index-store-state" in names) == (version >= 3)
        if how == "closed":
            assert any(name.endswith(".live") for name in names)
            assert version < 3 or "duplicates.snapshot" in names
        shutil.rmtree(tmp_path / how)
