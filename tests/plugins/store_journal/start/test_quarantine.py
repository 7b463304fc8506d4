"""Damage in the middle and missing files: refused with a place, or taken out and accounted for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_kit import ANY_SIZE, CrashStorage, data_files, killed, opened, pending, write
from numbered import ack, add

from tidegate.spi import AddDestination, CorruptRecordError
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.start.damage import Walked, survey
from tidegate_store_journal.tools.report import report
from tidegate_store_journal.tools.verify import verify

NAME = "journal-0000000001.data"
QUARANTINE = {"damaged_journal_policy": "quarantine"}


async def tail_of(store: JournalStore) -> int:
    """Offset behind the last batch."""
    return store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]


async def three_batches(
    directory: Path, storage: CrashStorage | None = None
) -> tuple[Path, int, int, CrashStorage | None]:
    """A journal of four batches, killed. Returns: directory, begin and end of the third."""
    store, _ = await opened(directory / "a", storage)
    await write(store, AddDestination("queue://q", 1))
    await write(store, add(1))
    begin = await tail_of(store)
    await write(store, add(2), add(3))
    end = await tail_of(store)
    await write(store, add(4), ack(1))
    await write(store, add(5))
    copy = directory / "b"
    after = None
    if storage is None:
        killed(directory / "a", copy)
    else:
        after = storage.crash()
    await store.close()
    return copy, begin, end, after


def damage(directory: Path, name: str, offset: int) -> None:
    """Flip a bit of a file."""
    path = directory / "journal" / name
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def report_of(directory: Path, number: int = 1) -> str:
    return (directory / "journal" / f"damage-{number:04d}.report").read_text()


@pytest.mark.parametrize("where", [4, 20, 60, 64, 80, 110, 200, -1])
@pytest.mark.parametrize("with_metadata", [True, False])
async def test_a_damaged_batch_is_taken_out_and_the_rest_is_served(
    tmp_path: Path, where: int, with_metadata: bool
) -> None:
    copy, begin, end, _ = await three_batches(tmp_path)
    at = begin + where if where >= 0 else end + where
    damage(copy, NAME, at)
    shutil.rmtree(copy / "journal" / "metadata")
    if with_metadata:  # the first checkpoint, of the empty store, so that all is replayed
        shutil.copytree(copy / "journal", tmp_path / "c" / "journal")
    before = (copy / "journal" / NAME).read_bytes()
    with pytest.raises(CorruptRecordError) as caught:
        await opened(copy)
    assert NAME in caught.value.location
    assert f"offset {begin}" in caught.value.location
    assert "damaged_journal_policy = 'quarantine'" in caught.value.problem
    store, state = await opened(copy, **QUARANTINE)
    assert await pending(store) == [4, 5]
    assert [item.destination for item in state.destinations] == ["queue://q"]
    assert f"{end - begin} bytes at offset {begin}" in state.report.notes[-1]
    kept = copy / "journal" / f"{NAME}.{begin}.damaged"
    assert kept.read_bytes() == before[begin:end]
    text = report_of(copy)
    assert f"{NAME}: {end - begin} bytes at offset {begin} (batch 3) were damaged" in text
    assert "sequences are among 2 to" in text
    await write(store, add(6))
    await store.close()
    # It is over: the next starts find nothing, also when they rebuild everything.
    for _ in range(2):
        store, state = await opened(copy)
        assert await pending(store) == [4, 5, 6]
        assert not [note for note in state.report.notes if "damaged" in note]
        await store.close()
        shutil.rmtree(copy / "journal" / "metadata")


@pytest.mark.parametrize(
    ("number", "said"), [(0, "how many is not known."), (3, "No message was added there.")]
)
async def test_the_report_says_what_may_have_been_in_a_damaged_batch(
    tmp_path: Path, number: int, said: str
) -> None:
    store, _ = await opened(tmp_path / "a")
    begins: list[int] = []
    for operation in (AddDestination("queue://q", 1), add(1), add(2), ack(1), ack(2)):
        begins.append(await tail_of(store))
        await write(store, operation)
    copy = killed(tmp_path / "a", tmp_path / "b")
    await store.close()
    damage(copy, NAME, begins[number] + 64)
    shutil.rmtree(copy / "journal" / "metadata")
    store, _ = await opened(copy, **QUARANTINE)
    assert said in report_of(copy)
    await store.close()


async def test_verify_and_inspect_know_what_a_quarantine_leaves(tmp_path: Path) -> None:
    copy, begin, _, _ = await three_batches(tmp_path)
    damage(copy, NAME, begin + 80)
    store, _ = await opened(copy, **QUARANTINE)
    await write(store, add(6))
    await store.close()
    journal = copy / "journal"
    found = verify(journal, lambda *_: None)
    assert not found.damages
    assert found.references == 3
    assert report(journal, lambda *_: None).records[NAME]["void"] == 1


async def test_damage_that_a_page_finds_is_dropped_and_the_list_goes_on(tmp_path: Path) -> None:
    copy, begin, _, _ = await three_batches(tmp_path)
    store, _ = await opened(copy)
    await store.close()  # now the checkpoint knows everything, and nothing is replayed
    damage(copy, NAME, begin + 64 + 36 + 40)
    store, _ = await opened(copy)
    with pytest.raises(CorruptRecordError):
        await store.page_in(1, 0, 10, ANY_SIZE)
    await store.close()
    store, _ = await opened(copy, **QUARANTINE)
    assert await pending(store) == [3, 4, 5]
    assert store.statistics().pending_messages == 3
    assert "message 2 of queue://q (list 1) cannot be read" in report_of(copy)
    await store.close()
    store, _ = await opened(copy)
    assert await pending(store) == [3, 4, 5]
    await store.close()


async def test_checking_all_files_finds_damage_that_no_replay_would_read(tmp_path: Path) -> None:
    copy, begin, end, _ = await three_batches(tmp_path)
    store, _ = await opened(copy)
    await store.close()
    damage(copy, NAME, begin + 70)
    with pytest.raises(CorruptRecordError, match=f"{end - begin} bytes at offset {begin}"):
        await opened(copy, check_for_corrupt_journal_files=True)
    store, _ = await opened(copy, check_for_corrupt_journal_files=True, **QUARANTINE)
    assert await pending(store) == [4, 5]
    assert "2 pending messages are lost because they were in a damaged part" in report_of(copy)
    assert "queue://q (list 1): 2-3" in report_of(copy)
    await store.close()
    shutil.rmtree(copy / "journal" / "metadata")
    store, _ = await opened(copy, check_for_corrupt_journal_files=True)
    assert await pending(store) == [4, 5]
    await store.close()


async def test_a_damaged_file_header_is_written_again_from_its_copy(tmp_path: Path) -> None:
    copy, _, _, _ = await three_batches(tmp_path)
    whole = (copy / "journal" / NAME).read_bytes()
    for offset in (3, 9, 20, 44, 62, 2048 + 3, 2048 + 62):
        damage(copy, NAME, offset)
        store, state = await opened(copy)
        assert await pending(store) == [2, 3, 4, 5]
        assert any("was written again from the other" in note for note in state.report.notes)
        await store.close()
        assert (copy / "journal" / NAME).read_bytes()[:4096] == whole[:4096]
    damage(copy, NAME, 3)
    damage(copy, NAME, 2048 + 3)
    with pytest.raises(CorruptRecordError, match="header"):
        await opened(copy)


async def many_files(directory: Path) -> tuple[Path, list[str]]:
    """Seven messages in four files, killed behind a checkpoint. Returns: their names."""
    store, _ = await opened(directory / "a", keep=True)
    await write(store, AddDestination("queue://q", 1))
    for sequence in range(1, 8):
        await write(store, add(sequence, size=20_000))
    await write(store, ack(1))
    used = [file.name for file in store._files.used()]  # pyright: ignore[reportPrivateUsage]
    await store.close()
    return directory / "a", used


@pytest.mark.parametrize("number", [0, 1, -1])
async def test_a_missing_data_file_is_refused_or_its_messages_are_listed(
    tmp_path: Path, number: int
) -> None:
    copy, used = await many_files(tmp_path)
    name = used[number]
    (copy / "journal" / name).unlink()
    with pytest.raises(CorruptRecordError) as caught:
        await opened(copy, keep=True)
    assert "1 data file is missing" in caught.value.problem
    assert name in caught.value.problem
    assert "pending messages" in caught.value.problem
    assert "ignore_missing_journalfiles = true" in caught.value.problem
    store, _ = await opened(copy, keep=True, ignore_missing_journalfiles=True)
    left = await pending(store)
    lost = sorted({2, 3, 4, 5, 6, 7} - set(left))
    assert lost
    assert left
    assert "are lost because the data files are missing that held them" in report_of(copy)
    assert "queue://q (list 1): " in report_of(copy)
    await write(store, add(8))
    page = await store.acknowledged(store.log_statistics().first - 1, 10, ANY_SIZE)
    assert [row.sequence for row in page.rows] == ([] if number == 0 else [1])
    await store.close()
    for _ in range(2):  # and never again, also without the metadata
        store, _ = await opened(copy, keep=True)
        assert await pending(store) == [*left, 8]
        await store.close()
        shutil.rmtree(copy / "journal" / "metadata")


async def test_the_newest_file_missing_without_metadata_needs_the_policy(tmp_path: Path) -> None:
    copy, used = await many_files(tmp_path)
    shutil.rmtree(copy / "journal" / "metadata")
    for name in used[1:]:
        (copy / "journal" / name).unlink()
    (copy / "journal" / used[0]).unlink()
    with pytest.raises(CorruptRecordError, match="ignore_missing_journalfiles"):
        await opened(copy)
    store, state = await opened(copy, ignore_missing_journalfiles=True)
    assert any("are missing at the end" in note for note in state.report.notes)
    assert await pending(store) == []
    await write(store, add(9))
    await store.close()
    shutil.rmtree(copy / "journal" / "metadata")
    store, _ = await opened(copy)
    assert await pending(store) == [9]
    await store.close()


async def test_a_file_that_is_damaged_beyond_reading_is_moved_aside_whole(tmp_path: Path) -> None:
    copy, used = await many_files(tmp_path)
    path = copy / "journal" / used[1]
    path.write_bytes(b"\xff" * path.stat().st_size)
    store, state = await opened(copy, keep=True, **QUARANTINE)
    left = await pending(store)
    assert left == [2, 3, 7]
    assert path.with_name(f"{used[1]}.damaged").exists()
    assert any("nothing in it can be read" in note for note in state.report.notes)
    await store.close()
    store, _ = await opened(copy, keep=True)
    assert await pending(store) == left
    await store.close()


@pytest.mark.parametrize("offset", [DATA_OFFSET + 5, DATA_OFFSET + 70])
@pytest.mark.parametrize("with_metadata", [True, False])
async def test_damage_at_either_end_of_any_file_is_taken_out(
    tmp_path: Path, offset: int, with_metadata: bool
) -> None:
    original, used = await many_files(tmp_path)
    for name in used[:-1]:
        copy = tmp_path / name
        shutil.copytree(original, copy)
        damage(copy, name, offset)
        if not with_metadata:
            shutil.rmtree(copy / "journal" / "metadata")
        check: dict[str, Any] = {"check_for_corrupt_journal_files": True, "keep": True}
        with pytest.raises(CorruptRecordError) as caught:
            await opened(copy, **check)
        assert name in str(caught.value)
        store, _ = await opened(copy, **check, **QUARANTINE)
        left = await pending(store)
        assert 3 <= len(left) < 7
        await store.close()
        store, _ = await opened(copy, **check)
        assert await pending(store) == left
        await store.close()


async def test_a_crash_amid_the_replacing_keeps_the_first_copy(tmp_path: Path) -> None:
    storage = CrashStorage()
    _, begin, end, after = await three_batches(tmp_path, storage)
    assert after is not None
    after.flip(NAME, begin + 70)
    whole = bytes(after.open(NAME).pread(end - begin, begin))
    replaced: list[str] = []

    def fault(call: str, name: str) -> OSError | None:
        if call == "pwritev" and name == NAME:
            replaced.append(name)
        is_cut = call == "datasync" and name == NAME and replaced
        return OSError(5, "cut") if is_cut else None

    after.fault = fault
    with pytest.raises(Exception, match="cut"):
        await opened(tmp_path, after, **QUARANTINE)
    half = after.crash(3)
    half.open(NAME).pwritev([b"\0" * 10], begin + 80)
    half.open(NAME).datasync()
    store, _ = await opened(tmp_path, half, **QUARANTINE)
    assert await pending(store) == [4, 5]
    assert half.open(f"{NAME}.{begin}.damaged").pread(1 << 20, 0) == whole
    await store.close()


async def test_a_survey_of_a_whole_journal_finds_nothing(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    for sequence in range(1, 30):  # files are used again, too
        await write(store, add(sequence, size=9000))
        await write(store, ack(sequence))
    files = store._files.used()  # pyright: ignore[reportPrivateUsage]
    assert survey([Walked(file) for file in files], 0) == ([], [])
    await store.close()


async def test_the_state_that_a_quarantine_leaves_is_reported_as_not_clean(tmp_path: Path) -> None:
    copy, begin, _, _ = await three_batches(tmp_path)
    damage(copy, NAME, begin + 70)
    shutil.rmtree(copy / "journal" / "metadata")
    store, state = await opened(copy, **QUARANTINE)
    await store.close()
    assert not state.report.clean


async def test_every_data_file_is_as_long_afterwards_as_before(tmp_path: Path) -> None:
    copy, begin, _, _ = await three_batches(tmp_path)
    lengths = [path.stat().st_size for path in data_files(copy)]
    damage(copy, NAME, begin + 5)
    store, _ = await opened(copy, **QUARANTINE)
    await store.close()
    assert [path.stat().st_size for path in data_files(copy)] == lengths
