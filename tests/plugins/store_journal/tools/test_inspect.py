"""What is in a journal: files with their records, and pending lists with their owners."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import KB, opened, write
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    Branch,
    BranchId,
    PutBranch,
    PutSubscription,
    RecordDelivery,
    Subscription,
)
from tidegate_store_journal.tools.report import report


def silent(_what: str, _done: int, _total: int) -> None: ...


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    store, _ = await opened(tmp_path, keep=True, journal_max_file_length=64 * KB)
    await write(
        store,
        AddDestination("queue://orders", 1, "ann"),
        AddDestination("topic://news", 0),
        PutSubscription(Subscription(2, "laptop", "news", "topic://news", True, owner="bob")),
    )
    for sequence in range(1, 9):
        await write(store, add(sequence, 1, 2, size=20_000))
    await write(store, add(9, 7, size=10), RecordDelivery(1, (3, 4), (1, 2)))
    await write(store, ack(1, 2), ack(*range(1, 9), pending_list=2))
    await store.close()
    return tmp_path / "journal"


def test_lists_say_whose_they_are_and_what_is_in_them(journal: Path) -> None:
    found = report(journal, silent)
    assert [
        (item.pending_list, item.kind, item.destination, item.client_id, item.subscription)
        for item in found.lists
    ] == [
        (1, "queue", "queue://orders", "", ""),
        (2, "durable subscription", "topic://news", "laptop", "news"),
        (7, "unknown list", "", "", ""),
    ]
    assert [item.principal for item in found.lists] == ["ann", "bob", ""]
    assert [
        (item.messages, item.body_bytes, item.first_sequence, item.delivered)
        for item in found.lists
    ] == [(6, 120_000, 3, 2), (0, 0, 0, 0), (1, 10, 9, 0)]


def test_the_whole_is_summed_up(journal: Path) -> None:
    found = report(journal, silent)
    assert len(found.store_id) == 32
    assert (found.batch, found.last_sequence) == (11, 9)
    assert (found.acknowledged_first, found.acknowledged_last) == (1, 10)


def test_records_are_counted_per_file(journal: Path) -> None:
    found = report(journal, silent)
    used = [file.name for file in found.files if file.state in ("used", "current")]
    assert sorted(found.records) == sorted(used)
    totals: dict[str, int] = {}
    for types in found.records.values():
        for name, count in types.items():
            totals[name] = totals.get(name, 0) + count
    assert totals["add"] == 9
    assert totals["acknowledge"] == 2
    first = found.batches[used[0]]
    assert first[0] == 1
    assert found.batches[used[1]][0] == first[1] + 1


def test_counting_can_be_left_out(journal: Path) -> None:
    found = report(journal, silent, records=False)
    assert (found.records, found.batches) == ({}, {})
    assert found.lists


def test_a_file_that_is_put_away_meanwhile_is_left_out(journal: Path) -> None:
    path = journal / "journal-0000000001.data"
    found = report(journal, lambda *_: path.unlink(missing_ok=True))
    assert "journal-0000000001.data" not in found.records
    assert "journal-0000000002.data" in found.records


async def test_the_list_of_a_prepared_branch_says_whose_it_is(tmp_path: Path) -> None:
    branch = Branch(BranchId(1, b"one", owner="ann"), 7, client_id="manager")

    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1), add(1, 7), PutBranch(branch))
    await store.close()
    found = report(tmp_path / "journal", silent)
    held = next(item for item in found.lists if item.pending_list == 7)
    assert (held.kind, held.client_id, held.messages) == ("prepared branch", "manager", 1)
    assert (held.subscription, held.principal) == (str(branch.branch_id), "ann")


@pytest.mark.parametrize("there", [True, False])
def test_counters_of_the_metadata_store_are_told(journal: Path, there: bool) -> None:
    if there:
        counters = report(journal, silent).counters
        assert counters is not None
        assert counters.checkpoints > 0
    else:
        (journal / "metadata" / "data.mdb").write_bytes(b"\xff" * 8192)
        found = report(journal, silent)
        assert found.counters is None
        assert [item.destination for item in found.lists][:2] == ["queue://orders", "topic://news"]
