"""Compaction of one destination by command: nothing is lost, and the room is given back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from journal_kit import ack, pending, run, write
from split_kit import add, split_store, vrfile

from tidegate.spi import CorruptRecordError, StoreIOError, StoreLockedError
from tidegate_store_journal import compact
from tidegate_store_journal.split.records import BLOCK_BYTES


async def fill(where: Path, **options: object) -> None:
    """A hundred messages of which ten stay, and large ones of which one stays."""
    store = await split_store(where, max_record_size=5000, **options)
    await write(store, *(add(sequence, size=1000) for sequence in range(1, 101)))
    await write(store, *(add(sequence, size=9000) for sequence in range(101, 106)))
    gone = [sequence for sequence in range(1, 101) if sequence % 10] + [101, 102, 103, 104]
    await write(store, ack(*gone))
    await store.close()


LEFT = [*range(10, 101, 10), 105]


@pytest.mark.parametrize("keep", [True, False])
def test_what_lives_stays_and_the_rest_goes(tmp_path: Path, keep: bool) -> None:
    async def scenario() -> None:
        await fill(tmp_path, keep=keep)
        before = vrfile(tmp_path).stat().st_size
        done = compact(tmp_path / "journal", "queue://q")
        assert done.messages == (105 if keep else 11)
        assert done.bytes_after <= done.bytes_before
        if not keep:
            assert vrfile(tmp_path).stat().st_size < before / 5
            assert [path.name for path in vrfile(tmp_path).parent.glob("*.msg")] == ["5.msg"]
        store = await split_store(tmp_path, keep=keep)
        assert await pending(store) == LEFT
        if keep:
            page = await store.acknowledged(0, 1000, 1 << 40)
            assert len(page.rows) == 94
        await write(store, add(200))
        assert await pending(store) == [*LEFT, 200]
        await store.close()

    run(scenario())


def test_an_acknowledgement_that_was_not_checkpointed_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, *(add(sequence) for sequence in range(1, 11)))
        await write(store, ack(1, 2, 3))
        shutil.copytree(tmp_path / "journal", tmp_path / "killed" / "journal")
        await store.close()
        done = compact(tmp_path / "killed" / "journal", "queue://q")
        assert done.messages == 7
        store = await split_store(tmp_path / "killed")
        assert await pending(store) == list(range(4, 11))
        await store.close()

    run(scenario())


def test_a_running_gateway_keeps_it_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, add(1))
        with pytest.raises(StoreLockedError):
            compact(tmp_path / "journal", "queue://q")
        await store.close()

    run(scenario())


def test_a_destination_without_a_directory_is_named(tmp_path: Path) -> None:
    run(fill(tmp_path))
    with pytest.raises(StoreIOError, match=r"queue://other has no directory.*queue#q"):
        compact(tmp_path / "journal", "queue://other")
    with pytest.raises(StoreIOError, match="no journal"):
        compact(tmp_path / "nothing", "queue://q")


def test_damage_changes_nothing(tmp_path: Path) -> None:
    run(fill(tmp_path))
    path = vrfile(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(b"20 ....") + 500
    data[at] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptRecordError, match="message 20") as caught:
        compact(tmp_path / "journal", "queue://q")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == bytes(data)
    assert not path.with_name("vrfile.tmp").exists()
    assert len(data) % BLOCK_BYTES == 0
