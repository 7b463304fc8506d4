"""Damage in the directories of destinations, and files that are missing: named, and by policy served
around. Nothing is ever lost without a word, and nothing else is ever served than what was sent."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_crew import job
from journal_kit import ANY_SIZE, CrashStorage, ack, new_store, opened, pending, run, write
from split_kit import ALL, add, message, split_of, split_store, tidy_of, vrfile

from tidegate.spi import AddDestination, CorruptRecordError, RemoveDestination
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import crc32c
from tidegate_store_journal.split import split as _split
from tidegate_store_journal.split.records import BLOCK_BYTES, RECORD_HEADER_BYTES
from tidegate_store_journal.split.reference import encode_reference
from tidegate_store_journal.tools.verify import verify

QUARANTINE = {"damaged_journal_policy": "quarantine"}
IGNORE = {"ignore_missing_journalfiles": True}
CHECK = {"check_for_corrupt_journal_files": True}
SMALL = {"max_record_size": 1024}


async def closed_store(where: Path, *, keep: bool = False) -> None:
    """Messages 1 to 5 of q, 6 of another queue, 7 of q in a file of its own."""
    store = await split_store(where, keep=keep, **SMALL)
    await write(store, AddDestination("queue://q", 1), AddDestination("queue://other", 2))
    for sequence in range(1, 6):
        await write(store, add(sequence))
    await write(store, add(6, 2, queue="other"), add(7, size=5000))
    await store.close()


def offset_of(path: Path, number: int) -> int:
    """Where the record of message *number* begins."""
    data = path.read_bytes()
    at = data.index(b"%d ....." % number)
    return at - at % BLOCK_BYTES


def change(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def turn(path: Path, offset: int) -> None:
    change(path, offset, bytes([path.read_bytes()[offset] ^ 4]))


def report_of(where: Path, number: int = 1) -> str:
    return (where / "journal" / f"damage-{number:04d}.report").read_text()


async def refused(where: Path, **changes: Any) -> str:
    with pytest.raises(CorruptRecordError) as caught:
        await new_store(where, **{"per_destination": ALL, **SMALL, **changes}).open()
    return str(caught.value)


async def served(where: Path, *expected: int, **changes: Any) -> JournalStore:
    """Open: list 1 has *expected*, list 2 its message; and everything goes on."""
    store = await split_store(where, **{**SMALL, **changes})
    assert await pending(store) == list(expected)
    assert await pending(store, 2) == [6]
    return store


async def whole(where: Path, *expected: int) -> None:
    """Without any policy, and for whoever verifies it."""
    store = await served(where, *expected, **CHECK)
    await write(store, add(100))
    assert await pending(store) == [*expected, 100]
    await write(store, ack(100))
    await store.close()
    assert verify(where / "journal", lambda *_: None).damages == []


# ------------------------------------------------------------------------------------- a payload


def test_a_damaged_record_is_named_and_with_quarantine_the_rest_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        at = offset_of(path, 3)
        turn(path, at + 90)
        damaged = path.read_bytes()
        store = await split_store(tmp_path, **SMALL)
        assert [item.sequence for item in await store.page_in(1, 0, 10, ANY_SIZE)] == [1, 2]
        with pytest.raises(CorruptRecordError) as caught:
            await store.page_in(1, 2, 10, ANY_SIZE)
        text = str(caught.value)
        assert f"{path} at offset {at}: " in text
        assert " bytes are damaged). Restore" in text
        assert "damaged_journal_policy = 'quarantine'" in text
        await store.close()

        store = await served(tmp_path, 1, 2, 4, 5, 7, **QUARANTINE)
        kept = path.with_name(f"vrfile.{at}.damaged").read_bytes()
        assert kept == damaged[at : at + len(kept)]
        assert len(kept) > 100
        report = report_of(tmp_path)
        assert f"{path} at offset {at}: message 3 of queue://q (list 1) cannot be read" in report
        assert f"vrfile.{at}.damaged" in report
        await store.close()
        await whole(tmp_path, 1, 2, 4, 5, 7)

    run(scenario())


def test_a_start_that_checks_every_file_finds_damaged_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path, single = vrfile(tmp_path), vrfile(tmp_path).with_name("1.msg")
        at = offset_of(path, 3)
        turn(path, at + 90)
        turn(single, 3000)
        text = await refused(tmp_path, **CHECK)
        assert "2 messages of queue://q are damaged: " in text
        assert f" bytes at offset {at} (message 3)" in text
        assert "1.msg, " in text
        assert "bytes at offset 0 (message 7)" in text
        assert "Nothing was changed" in text
        store = await served(tmp_path, 1, 2, 4, 5, **CHECK, **QUARANTINE)
        assert "2 pending messages are lost because their records are damaged" in report_of(
            tmp_path
        )
        assert "queue://q (list 1): 3, 7" in report_of(tmp_path)
        assert path.with_name("1.msg.0.damaged").stat().st_size == single.stat().st_size
        await store.close()
        await whole(tmp_path, 1, 2, 4, 5)

    run(scenario())


# -------------------------------------------------------------------------- headers of records


@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, 30, 33, 38])
@pytest.mark.parametrize("name", ["vrfile", "1.msg"])
def test_a_damaged_header_of_a_record_is_put_right(tmp_path: Path, at: int, name: str) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path).with_name(name)
        sequence = 3 if name == "vrfile" else 7
        begin = offset_of(path, sequence) if name == "vrfile" else 0
        before = path.read_bytes()
        turn(path, begin + at)
        text = await refused(tmp_path, **IGNORE)
        assert f"{name}, 40 bytes at offset {begin} (message {sequence})" in text
        assert "damaged_journal_policy = 'quarantine'" in text
        store = await served(tmp_path, 1, 2, 3, 4, 5, 7, **QUARANTINE)
        assert path.read_bytes() == before
        assert "put right, so that nothing is lost" in report_of(tmp_path)
        assert path.with_name(f"{name}.{begin}.damaged").stat().st_size == RECORD_HEADER_BYTES
        await store.close()
        await whole(tmp_path, 1, 2, 3, 4, 5, 7)

    run(scenario())


@pytest.mark.parametrize("by_checkpoint", [True, False])
def test_a_block_that_is_gone_costs_its_message_and_no_other(
    tmp_path: Path, by_checkpoint: bool
) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        change(path, offset_of(path, 3), bytes(BLOCK_BYTES))
        if not by_checkpoint:
            shutil.rmtree(tmp_path / "journal" / "metadata")
        text = await refused(tmp_path, **IGNORE)
        size = path.stat().st_size - 4096
        assert f"vrfile, somewhere in the {size} bytes at offset 4096 (sequences 3)" in text
        damaged = path.read_bytes()
        store = await served(tmp_path, 1, 2, 4, 5, 7, **QUARANTINE)
        # Its other blocks are room now, but nobody knows which they were: all are kept.
        kept = path.with_name("vrfile.4096.damaged")
        assert kept.read_bytes() == damaged[4096:]
        assert f"what may be left of them is in {kept}, a copy of these bytes" in report_of(
            tmp_path
        )
        assert "1 pending messages are lost because their records are damaged" in report_of(
            tmp_path
        )
        assert "queue://q (list 1): 3" in report_of(tmp_path)
        await store.close()
        await whole(tmp_path, 1, 2, 4, 5, 7)

    run(scenario())


def test_a_file_that_is_cut_off_costs_what_was_behind_the_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        at = offset_of(path, 4)
        with path.open("r+b") as file:
            file.truncate(at + 50)  # amid its payload; 5 is gone altogether
        assert "(sequences 5)" in await refused(tmp_path)
        store = await served(tmp_path, 1, 2, 3, 7, **QUARANTINE)
        # What is written now must not lie where the cut off record still has its place.
        await write(store, *(add(sequence) for sequence in range(50, 90)))
        expected = [1, 2, 3, 7, *range(50, 90)]
        assert await pending(store) == expected
        assert "message 4 of queue://q" in report_of(tmp_path)
        await store.close()
        await whole(tmp_path, *expected)

    run(scenario())


# ------------------------------------------------------------------- headers of record files


def test_the_header_of_a_record_file_is_made_anew_from_its_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        change(path, 0, bytes(4096))
        text = await refused(tmp_path, **IGNORE)
        assert f"{path}: the header, 4096 bytes at offset 0, is damaged" in text
        assert "damaged_journal_policy = 'quarantine'" in text
        assert path.read_bytes()[:4096] == bytes(4096)
        store = await served(tmp_path, 1, 2, 3, 4, 5, 7, **QUARANTINE)
        assert "made anew from what the records say" in report_of(tmp_path)
        assert path.with_name("vrfile.0.damaged").read_bytes() == bytes(4096)
        await store.close()
        await whole(tmp_path, 1, 2, 3, 4, 5, 7)

    run(scenario())


def test_a_record_file_in_which_nothing_is_whole_is_moved_aside(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        path.write_bytes(b"?" * path.stat().st_size)
        single = path.with_name("1.msg")
        single.write_bytes(b"?" * single.stat().st_size)
        store = await served(tmp_path, **QUARANTINE)
        report = report_of(tmp_path)
        assert "no record is whole that says what it was" in report
        assert "6 pending messages are lost because their records are damaged" in report
        assert "queue://q (list 1): 1-5, 7" in report
        await write(store, add(50), add(51, size=5000))
        assert await pending(store) == [50, 51]
        await store.close()
        assert path.with_name("vrfile.damaged").read_bytes().strip(b"?") == b""
        assert path.with_name("1.msg.damaged").read_bytes().strip(b"?") == b""
        await whole(tmp_path, 50, 51)

    run(scenario())


def test_what_was_kept_outlives_the_destination(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        at = offset_of(path, 3)
        turn(path, at + 90)
        store = await served(tmp_path, 1, 2, 4, 5, 7, **QUARANTINE)
        await write(store, RemoveDestination("queue://q", 1))
        await tidy_of(store).tidy()
        assert [item.name for item in path.parent.iterdir()] == [f"vrfile.{at}.damaged"]
        await write(store, AddDestination("queue://q", 3), add(50, 3))
        assert await pending(store, 3) == [50]
        await store.close()

    run(scenario())


def test_an_error_does_not_say_that_nothing_was_changed_when_a_header_was_put_right(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        change(path, 0, bytes(4096))
        path.with_name("1.msg").unlink()
        text = await refused(tmp_path, **QUARANTINE)
        assert "files N.msg are not there" in text
        assert "Nothing was changed" not in text
        store = await served(tmp_path, 1, 2, 3, 4, 5, **IGNORE)
        await store.close()

    run(scenario())


def test_a_newer_format_and_another_store_are_no_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        await closed_store(tmp_path / "b")
        path = vrfile(tmp_path)
        shutil.copy(vrfile(tmp_path / "b"), path)
        before = path.read_bytes()
        assert "another store" in await refused(tmp_path, **QUARANTINE, **IGNORE)
        assert path.read_bytes() == before
        header = bytearray(before[:4096])
        header[8] = 2
        size = 52 + len("queue://q")
        crc = crc32c(crc32c(0, bytes(header[:48])), bytes(header[52:size]))
        change(path, 0, bytes(header[:48]) + crc.to_bytes(4, "little"))
        text = await refused(tmp_path, **QUARANTINE, **IGNORE)
        assert "format version 2; this program reads 1. Use the newer program" in text
        assert not list(path.parent.glob("*.damaged*"))

    run(scenario())


# ---------------------------------------------------------------------------------- missing files


def remove_file(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    ("remove", "left"), [(remove_file, [7]), (remove_directory, [])], ids=["file", "directory"]
)
def test_a_missing_record_file_costs_its_messages_when_that_is_allowed(
    tmp_path: Path, remove: Callable[[Path], None], left: list[int]
) -> None:
    """The file of a single message needs the seed that was in the record file, and says it."""

    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        remove(path)
        text = await refused(tmp_path, **QUARANTINE)
        assert "6 messages of queue://q are pending or not yet released, but their records" in text
        assert "(sequences 1, 2, 3, 4, 5, 7)" in text
        assert f"{path} is not there or has no records" in text
        assert "ignore_missing_journalfiles = true" in text
        store = await served(tmp_path, *left, **IGNORE)
        report = report_of(tmp_path)
        assert "lost because the files are missing that held their records" in report
        assert f"queue://q (list 1): {'1-5' if left else '1-5, 7'}" in report
        await store.close()
        await whole(tmp_path, *left)

    run(scenario())


@pytest.mark.parametrize("goes_on", [True, False])
def test_all_directories_may_be_missing_when_that_is_allowed(tmp_path: Path, goes_on: bool) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        shutil.rmtree(vrfile(tmp_path).parent.parent)
        changes = SMALL if goes_on else {"per_destination": ()}
        store = await split_store(tmp_path, **IGNORE, **changes)
        assert await pending(store) == await pending(store, 2) == []
        assert "queue://other (list 2): 6" in report_of(tmp_path)
        await store.close()

    run(scenario())


def test_a_missing_file_of_a_single_message_costs_that_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        vrfile(tmp_path).with_name("1.msg").unlink()
        text = await refused(tmp_path, **QUARANTINE)
        assert "1 messages of queue://q are pending" in text
        assert "(sequences 7): files N.msg are not there" in text
        store = await served(tmp_path, 1, 2, 3, 4, 5, **IGNORE)
        assert "queue://q (list 1): 7" in report_of(tmp_path)
        await store.close()
        await whole(tmp_path, 1, 2, 3, 4, 5)

    run(scenario())


@pytest.mark.parametrize("allowed", [True, False])
def test_a_file_that_goes_missing_while_the_store_runs(tmp_path: Path, allowed: bool) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        store = await split_store(tmp_path, **SMALL, **(IGNORE if allowed else QUARANTINE))
        path = vrfile(tmp_path).with_name("1.msg")
        path.unlink()
        if allowed:
            assert await pending(store) == [1, 2, 3, 4, 5]
            assert "message 7 of queue://q (list 1) cannot be read" in report_of(tmp_path)
        else:
            with pytest.raises(CorruptRecordError, match=r"held message 7 is missing") as caught:
                await pending(store)
            assert "ignore_missing_journalfiles" in str(caught.value)
        await store.close()

    run(scenario())


def test_both_kinds_are_told_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path)
        path = vrfile(tmp_path)
        path.with_name("1.msg").unlink()
        turn(path, offset_of(path, 3) + 9)
        vrfile(tmp_path, "other").unlink()
        text = await refused(tmp_path)
        for part in ("(sequences 7)", "(sequences 6)", "(message 3)", "quarantine", "missing_j"):
            assert part in text
        assert "Nothing was changed" in text
        store = await split_store(tmp_path, **SMALL, **QUARANTINE, **IGNORE)
        assert (await pending(store), await pending(store, 2)) == ([1, 2, 3, 4, 5], [])
        assert report_of(tmp_path).count("files N.msg are not there. They are lost.") == 1
        await store.close()

    run(scenario())


@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_rows_of_the_acknowledged_log_are_given_up_with_those_before_them(
    tmp_path: Path, what: str
) -> None:
    async def scenario() -> None:
        await closed_store(tmp_path, keep=True)
        store = await split_store(tmp_path, keep=True, **SMALL)
        await write(store, ack(2, 3, 4))
        await store.close()
        path = vrfile(tmp_path)
        if what == "missing":
            path.unlink()
        else:
            turn(path, offset_of(path, 3) + 90)
        store = await split_store(tmp_path, keep=True, **SMALL, **QUARANTINE, **IGNORE, **CHECK)
        rows = (await store.acknowledged(3 if what == "missing" else 2, 10, ANY_SIZE)).rows
        assert [row.sequence for row in rows] == ([] if what == "missing" else [4])
        released = 3 if what == "missing" else 2
        assert f"Rows 1 to {released} of the acknowledged log are lost" in report_of(tmp_path)
        await store.close()
        store = await split_store(tmp_path, keep=True, **SMALL)
        await store.close()

    run(scenario())


# ------------------------------------------------------------------------------------ other life


def test_a_record_of_a_batch_that_never_came_is_not_taken_for_the_next_of_its_number(
    tmp_path: Path,
) -> None:
    """1. Message 3 is written to the record file, and the power goes before its batch comes.
    2. Another message gets the number 3. 3. Its record is damaged. Nobody may get the first one.
    """

    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(tmp_path, storage)
        await write(store, add(1))
        split = split_of(store)

        async def never(_operations: object) -> None:
            raise ConnectionAbortedError

        with pytest.raises(ConnectionAbortedError):
            await split.write([add(2, size=3000), add(3)], never)
        after = storage.crash()
        name = next(item for item in after.list() if item.endswith("vrfile"))
        assert after.open(name).pread(1 << 20, 0).count(b"3 .....") == 1
        await store.close()
        store = await split_store(tmp_path, after)
        await write(store, add(2))
        await write(store, add(3, size=101))
        await store.close()
        data = after.open(name).pread(1 << 20, 0)
        first, last = data.index(b"3 ....."), data.rindex(b"3 .....")
        assert last > first + 1000  # the old one is still there, behind the new one
        begin = data.rindex(b"TGR1", 0, first)
        file = after.open(name)
        file.pwritev([bytes(BLOCK_BYTES)], begin)
        file.datasync()
        assert "(sequences 3)" in await refused_in(tmp_path, after)
        store, _ = await opened(tmp_path, after, per_destination=ALL, **QUARANTINE)
        assert await pending(store) == [1, 2]
        await store.close()

    run(scenario())


async def refused_in(where: Path, storage: CrashStorage) -> str:
    with pytest.raises(CorruptRecordError) as caught:
        await new_store(where, storage, per_destination=ALL).open()
    return str(caught.value)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_power_cut_at_any_moment_of_the_repair_costs_nothing_more(
    tmp_path: Path, seed: int | None
) -> None:
    async def scenario() -> None:
        storage = CrashStorage()
        store = await split_store(tmp_path, storage)
        for sequence in range(1, 6):
            await write(store, add(sequence))
        await store.close()
        name = next(item for item in storage.list() if item.endswith("vrfile"))
        data = storage.open(name).pread(1 << 20, 0)
        for offset in (
            9,  # the header of the file
            data.rindex(b"TGR1", 0, data.index(b"2 ....")) + 9,  # and that of a record: put right
            data.index(b"4 .....") + 20,  # lost
        ):
            storage.flip(name, offset)
        images: list[CrashStorage] = []

        def watch(_operation: str, file: str) -> None:
            if "vrfile" in file or "report" in file:
                images.append(storage.crash(seed))

        storage.fault = watch
        store, _ = await opened(tmp_path, storage, per_destination=ALL, **QUARANTINE, **CHECK)
        storage.fault = lambda _operation, _name: None
        assert await pending(store) == [1, 2, 3, 5]
        images.append(storage.crash(seed))
        await store.close()
        assert len(images) > 20
        for image in images:
            store, _ = await opened(tmp_path, image, per_destination=ALL, **QUARANTINE, **CHECK)
            assert await pending(store) == [1, 2, 3, 5]
            await store.close()
            assert not [item for item in image.list() if item.endswith(".tmp")]
            kept = b"".join(
                image.open(item).pread(1 << 20, 0) for item in image.list() if ".damaged" in item
            )
            assert b"TGRECORD" in kept
            assert b"4 ....." in kept

    run(scenario())


def test_a_message_that_an_older_version_put_in_a_file_of_its_own_is_missing_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reference does not say where it was; its size does."""

    def as_before(*arguments: Any, single: bool, **options: Any) -> bytes:
        return encode_reference(*arguments, **options)

    monkeypatch.setattr(_split, "encode_reference", as_before)

    async def scenario() -> None:
        await closed_store(tmp_path)
        vrfile(tmp_path).with_name("1.msg").unlink()
        assert "files N.msg are not there" in await refused(tmp_path, **QUARANTINE)
        store = await served(tmp_path, 1, 2, 3, 4, 5, **IGNORE)
        await store.close()

    run(scenario())


# ---------------------------------------------------------------------------------------- one bit


def refusal_in(error: CorruptRecordError) -> str:
    """An error has to say where, and what to do."""
    text = str(error)
    is_clear = all(part in text for part in ("vrfile", " offset ", " bytes ", "Restore", "'quaran"))
    return "refused" if is_clear else f"refused, but unclear: {text}"


async def outcome_of(where: Path, storage: CrashStorage, **changes: Any) -> str:
    """What becomes of messages 1 to 4: "harmless", "refused", or "reported: " and who is left."""
    store = new_store(where, storage, per_destination=ALL, **changes)
    try:
        await store.open()
    except CorruptRecordError as error:
        return refusal_in(error)
    left: list[int] = []
    try:
        while page := await store.page_in(1, left[-1] if left else 0, 10, ANY_SIZE):
            for item in page:
                assert item.message == message(item.sequence), "something else was served"
            left += [item.sequence for item in page]
    except CorruptRecordError as error:
        return refusal_in(error)
    finally:
        await store.close()
    is_told = any(name.endswith(".report") for name in storage.list())
    assert is_told or left == [1, 2, 3, 4]
    assert len(left) >= 3, "one bit cost more than one message"
    return "reported" if is_told else "harmless"


def outcomes_of_flips(where: Path, policy: str, begin: int, step: int) -> Counter[str]:
    """Flip every *step*-th byte of a record file from the *begin*-th on, and start."""

    async def scenario() -> Counter[str]:
        storage = CrashStorage()
        store = await split_store(where, storage)
        for sequence in range(1, 5):
            await write(store, add(sequence))
        await store.close()
        name = next(item for item in storage.list() if item.endswith("vrfile"))
        length = storage.open(name).length
        # Behind the header, its first page is zeros that nobody reads: a few of those are enough.
        offsets = [*range(64), *range(64, 4096, 512), *range(4096, length)]
        outcomes: Counter[str] = Counter()
        for offset in offsets[begin::step]:
            damaged = storage.crash()
            damaged.flip(name, offset)
            outcomes[await outcome_of(where, damaged, damaged_journal_policy=policy)] += 1
        return outcomes

    return run(scenario())


def check_outcomes(outcomes: Counter[str], policy: str, noticed_min: int) -> None:
    noticed = outcomes["refused" if policy == "refuse" else "reported"]
    assert noticed > noticed_min
    assert outcomes.total() == noticed + outcomes["harmless"]


@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
def test_a_bit_flipped_in_a_sample_of_a_record_file_is_noticed_or_harmless(
    tmp_path: Path, policy: str
) -> None:
    check_outcomes(outcomes_of_flips(tmp_path, policy, 0, 29), policy, 600 // 29)


#: Jobs of ``make crash`` that share the bytes of the file among them.
PARTS = 4


def flips_of_a_part(policy: str, part: int) -> Counter[str]:
    with tempfile.TemporaryDirectory() as where:
        return outcomes_of_flips(Path(where), policy, part, PARTS)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.crew(jobs=lambda policy: [job(flips_of_a_part, policy, part) for part in range(PARTS)])
@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
def test_a_bit_flipped_in_any_byte_of_a_record_file_is_noticed_or_harmless(
    policy: str, results: list[Counter[str]]
) -> None:
    check_outcomes(sum(results, Counter[str]()), policy, 600)
