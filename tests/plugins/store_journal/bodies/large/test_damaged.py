"""Files of large bodies and their records on the disk: the format, orphans, and damage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from journal_kit import KB, checkpoint, killed, opened, write
from large_bodies import (
    SIZE,
    add_large,
    body_files,
    content,
    download,
    files,
    message_with,
    pending,
    upload,
)
from numbered import ack

from tidegate.spi import (
    AddDestination,
    AddMessage,
    CorruptRecordError,
    LargeBody,
    Message,
    Move,
    Operation,
    StoreLockedError,
)
from tidegate_store_journal import read_large
from tidegate_store_journal.bodies.large import file_name_of
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.log.records import large_body_of
from tidegate_store_journal.write.encode import encode_batch

# ---------------------------------------------------------------------------------------- format

GOLDEN = Path(__file__).parents[2] / "golden" / "version-1-large.hex"
GOLDEN_BODY = LargeBody("00112233445566778899aabbccddeeff", 5 << 30, 0xDEADBEEF)


def golden_records() -> bytes:
    """An added, a moved and a copied large message, as records."""
    message = Message("queue://q", b"", (("a", "b"),), 5, large=GOLDEN_BODY)
    index = Index(keep_acknowledged=False)
    operations: list[Operation] = [AddMessage(7, message, (1,)), Move(2, 6, 3, 8, message)]
    payload = encode_batch(operations, 1, DATA_OFFSET, index).payload
    kind = _format.COPY | _format.LARGE_BIT
    value = _format.encode(message)
    size = 0xFFFF_FFFF
    return payload + _format.encode_record(kind, value, sequence=9, pending_list=1, body_bytes=size)


def test_bytes_of_large_messages_have_not_changed() -> None:
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    assert golden_records() == bytes.fromhex("".join(lines))


def test_the_golden_records_are_what_the_document_says() -> None:
    records = list(_format.iterate_records(golden_records(), 4))
    assert [record.type for record in records] == [129, 3, 129, 144]
    del records[1]  # what the move takes away
    assert [record.body_bytes for record in records] == [0xFFFF_FFFF] * 3
    for record in records:
        assert large_body_of(record) == GOLDEN_BODY
        assert record.payload.endswith(
            b"\x93"
            b"\xd9\x20"
            + GOLDEN_BODY.id.encode()
            + b"\xcf"
            + (5 << 30).to_bytes(8, "big")
            + b"\xce"
            + (0xDEADBEEF).to_bytes(4, "big")
            + b"\xa0\xa0\x00"  # no owner, version and time: there is no sink
        )


def test_a_record_that_says_large_and_names_no_body_is_damage() -> None:
    value = _format.encode(Message("queue://q", b""))
    data = _format.encode_record(_format.ADD | _format.LARGE_BIT, value, sequence=1)
    (record,) = _format.iterate_records(data, 1)
    with pytest.raises(_format.FormatError, match="does not name"):
        large_body_of(record)


# ------------------------------------------------------------------------------- orphans, damage


async def test_orphans_are_removed_at_the_start_and_told(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await store.close()
    directory = tmp_path / "journal" / "large-messages"
    (kept,) = body_files(tmp_path)
    (directory / file_name_of("0" * 32)).write_bytes(bytes(2048))
    (directory / "notes.txt").write_text("not ours")
    again, state = await opened(tmp_path)
    assert body_files(tmp_path) == [kept]
    assert (directory / "notes.txt").exists()
    (note,) = [note for note in state.report.notes if "large messages" in note]
    assert "1 files" in note
    assert "removed" in note
    await again.close()


async def test_a_rebuild_keeps_orphans_aside_since_their_records_may_be_lost(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await add_large(store, 2, number=2)
    await write(store, ack(2))
    await store.close()
    directory = tmp_path / "journal" / "large-messages"
    (directory / file_name_of("0" * 32)).write_bytes(bytes(2048))
    shutil.rmtree(tmp_path / "journal" / "metadata")
    again, state = await opened(tmp_path)
    assert len(body_files(tmp_path)) == 1
    assert (directory / ("0" * 32 + ".body.lost")).stat().st_size == 2048
    assert any("*.body.lost" in note for note in state.report.notes)
    await again.close()


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_with_quarantine_orphans_are_kept_only_where_something_was_damaged(
    tmp_path: Path, is_damaged: bool
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, AddDestination("queue://q", 1))
    for sequence in range(1, 4):
        await add_large(store, sequence, number=sequence)
    killed(tmp_path / "journal", tmp_path / "killed" / "journal")
    await store.close()
    directory = tmp_path / "killed" / "journal" / "large-messages"
    (directory / file_name_of("0" * 32)).write_bytes(bytes(2048))
    if is_damaged:
        (path, *_) = sorted((tmp_path / "killed" / "journal").glob("journal-*.data"))
        data = bytearray(path.read_bytes())
        data[data.index(b"queue://q", data.index(b"queue://q") + 9)] ^= 1
        path.write_bytes(data)
    again, state = await opened(tmp_path / "killed", damaged_journal_policy="quarantine")
    kept = sorted(name for name in files(tmp_path / "killed") if name.endswith(".lost"))
    assert ("0" * 32 + ".body.lost" in kept) == is_damaged
    assert len(body_files(tmp_path / "killed")) + len(kept) == 3 + is_damaged
    assert any("large messages" in note for note in state.report.notes)
    await again.close()


async def test_the_body_of_a_message_whose_record_is_damaged_is_kept_with_quarantine(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path, damaged_journal_policy="quarantine")
    await write(store, AddDestination("queue://q", 1))
    for sequence in (1, 2):
        await add_large(store, sequence, number=sequence)
    (first, _) = [stored.message.large for stored in await pending(store)]
    assert first is not None
    (path, *_) = sorted((tmp_path / "journal").glob("journal-*.data"))
    with path.open("r+b") as file:
        file.seek(file.read().index(first.id.encode()))
        file.write(b"x")
    assert [stored.sequence for stored in await pending(store)] == [2]
    await checkpoint(store)
    kept = tmp_path / "journal" / "large-messages" / f"{file_name_of(first.id)}.lost"
    assert kept.read_bytes() == content()
    assert f"are kept in {kept}" in (tmp_path / "journal" / "damage-0001.report").read_text()
    del first
    await store.close()
    again, _ = await opened(tmp_path)
    assert [stored.sequence for stored in await pending(again)] == [2]
    await again.close()


@pytest.mark.parametrize("damage", ["missing", "cut off", "flipped"])
async def test_a_damaged_body_is_told_and_never_delivered_whole(
    tmp_path: Path, damage: str
) -> None:
    store, _ = await opened(tmp_path)
    await add_large(store, 1)
    await store.close()
    (name,) = body_files(tmp_path)
    path = tmp_path / "journal" / "large-messages" / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut off":
        os.truncate(path, SIZE - 1)
    else:
        data = bytearray(path.read_bytes())
        data[SIZE // 2] ^= 1
        path.write_bytes(data)
    again, state = await opened(tmp_path)
    told = [note for note in state.report.notes if name in note]
    assert len(told) == (damage != "flipped")
    (stored,) = await pending(again)
    assert stored.message.large is not None
    with pytest.raises(CorruptRecordError, match=name):
        await download(again, stored.message.large)
    await again.close()
    with pytest.raises(CorruptRecordError, match=name):
        list(read_large(path.parent, stored.message.large))


async def test_a_tool_reads_a_body_beside_the_running_store(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    body = await upload(store)
    await write(store, AddMessage(1, message_with(body), (1,)))
    parts = list(read_large(tmp_path / "journal" / "large-messages", body, 100 * KB))
    assert b"".join(parts) == content()
    assert max(map(len, parts)) == 100 * KB
    await store.close()


async def test_two_stores_cannot_share_a_directory_of_bodies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shared = str(tmp_path / "shared")
    store, _ = await opened(tmp_path / "a", large_messages_directory=shared)
    with pytest.raises(StoreLockedError):
        await opened(tmp_path / "b", large_messages_directory=shared)
    await store.close()
