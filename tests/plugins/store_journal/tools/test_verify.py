"""Damage is found and named; what is only under way is not called damage."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from journal_kit import KB, SUPPORT, data_files, opened, write
from numbered import ack, add

from tidegate.spi import (
    AddDestination,
    Operation,
    PutSubscription,
    RecordDelivery,
    Subscription,
)
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.tools.lookon import look
from tidegate_store_journal.tools.verify import VerifyReport, differences, verify

OPTIONS = {"journal_max_file_length": 64 * KB}


def silent(_what: str, _done: int, _total: int) -> None: ...


def checked(directory: Path, sleep: Callable[[float], None] = lambda _: None) -> VerifyReport:
    return verify(directory / "journal", silent, sleep=sleep)


async def filled(where: Path, *, count: int = 40) -> JournalStore:
    """Several files; every fourth message is left, and one is in two lists."""
    store, _ = await opened(where, keep=True, **OPTIONS)
    await write(
        store,
        AddDestination("queue://q", 1),
        PutSubscription(Subscription(2, "c", "s", "topic://t", True)),
    )
    for sequence in range(1, count + 1):
        await write(store, add(sequence, 1, 2, size=5000))
        if sequence % 4:
            await write(store, ack(sequence), ack(sequence, pending_list=2))
    await write(store, RecordDelivery(1, (4,), (2,)))
    return store


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    await (await filled(tmp_path)).close()
    return tmp_path


def test_a_whole_journal_has_no_damage_and_everything_was_read(journal: Path) -> None:
    found = checked(journal)
    assert (found.damages, found.notes) == ([], [])
    assert found.files == len(data_files(journal))
    assert found.batches == 1 + 40 + 30 + 1
    assert found.records == 2 + 40 + 60 + 1
    assert found.references == 2 * 10 + 60  # pending in two lists, and rows of the log


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_was_done_to_it_a_whole_journal_has_no_damage(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)

    sequence = 0
    held: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for _ in range(3):
        store, _ = await opened(
            tmp_path,
            keep=seed % 2 == 0,
            checkpoint_interval=0.05,
            cleanup_interval=0.05,
            **OPTIONS,
        )
        for _ in range(60):
            operations: list[Operation] = []
            for _ in range(chance.randint(1, 6)):
                sequence += 1
                lists = tuple(sorted(chance.sample([1, 2, 3], chance.randint(1, 3))))
                operations.append(add(sequence, *lists, size=chance.choice((10, 3000))))
                for number in lists:
                    held[number].append(sequence)
            for number, sequences in held.items():
                gone = [one for one in sequences if chance.random() < 0.4]
                if gone:
                    operations.append(ack(*gone, pending_list=number))
                    held[number] = [one for one in sequences if one not in gone]
                elif sequences:
                    operations.append(RecordDelivery(number, (sequences[0],), (3,)))
            await write(store, *operations)
        await store.close()
    found = checked(tmp_path)
    assert (found.damages, found.notes) == ([], [])


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def ends(journal: Path) -> dict[str, int]:
    """Where the batches of each used file end."""
    from tidegate_store_journal.log.datafile import read_data_file
    from tidegate_store_journal.tools.census import Census
    from tidegate_store_journal.tools.lookon import ReadOnlyStorage

    found: dict[str, int] = {}
    for path in data_files(journal):
        storage = ReadOnlyStorage(path.parent)
        census = Census(read_data_file(storage, path.name))
        if census.batches:
            found[path.name] = census.end
    return found


@pytest.mark.long
def test_a_flipped_bit_anywhere_in_the_batches_is_found(journal: Path) -> None:
    chance = random.Random(1)
    for name, end in ends(journal).items():
        path = journal / "journal" / name
        whole = path.read_bytes()
        for offset in [
            3,
            30,
            60,
            DATA_OFFSET,
            end - 1,
            *chance.choices(range(DATA_OFFSET, end), k=6),
        ]:
            flip(path, offset)
            found = checked(journal)
            assert [item.file for item in found.damages if item.file == name], (name, offset)
            damage = next(item for item in found.damages if item.file == name)
            assert damage.offset <= offset
            assert damage.problem
            path.write_bytes(whole)
    assert checked(journal).damages == []


def test_damage_is_named_with_the_batch_where_it_begins(journal: Path) -> None:
    name, end = next(iter(ends(journal).items()))
    flip(journal / "journal" / name, DATA_OFFSET + 70)
    found = checked(journal)
    assert (found.damages[0].file, found.damages[0].offset) == (name, DATA_OFFSET)
    assert "a batch is damaged, and" in found.damages[0].problem
    assert f"at offset {DATA_OFFSET} (batch 1)" in found.damages[0].problem
    assert end > DATA_OFFSET


def test_two_places_are_both_named(journal: Path) -> None:
    names = list(ends(journal))
    flip(journal / "journal" / names[0], 30)
    flip(journal / "journal" / names[1], DATA_OFFSET + 90)
    assert {item.file for item in checked(journal).damages} >= set(names[:2])


def test_a_missing_data_file_that_something_needs_is_named(journal: Path) -> None:
    name = next(iter(ends(journal)))
    (journal / "journal" / name).unlink()
    found = checked(journal)
    assert [item.file for item in found.damages] == [name]
    assert "missing" in found.damages[0].problem


def test_a_journal_that_ends_before_its_checkpoint_is_damaged(journal: Path) -> None:
    name, end = list(ends(journal).items())[-1]
    flip(journal / "journal" / name, end - 1)
    (damage,) = checked(journal).damages
    assert damage.file == name
    assert "was on disk once" in damage.problem


async def test_a_torn_tail_is_a_note_and_no_damage(tmp_path: Path) -> None:
    await (await filled(tmp_path)).close()
    name, end = list(ends(tmp_path).items())[-1]
    path = tmp_path / "journal" / name
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"TGB1 half a batch")
    found = checked(tmp_path)
    assert found.damages == []
    assert [f"{name} at offset {end}: a torn batch" in note for note in found.notes] == [True]


def test_damaged_metadata_is_named_with_the_command_that_mends_it(journal: Path) -> None:
    path = journal / "journal" / "metadata" / "data.mdb"
    data = bytearray(path.read_bytes())
    data[4096 * 2 :: 512] = b"\xff" * len(data[4096 * 2 :: 512])
    path.write_bytes(data)
    found = checked(journal)
    assert [item.file for item in found.damages] == ["metadata/data.mdb"]
    assert "rebuild-index" in found.damages[0].problem
    assert found.references == 80  # as the data files have them


def test_metadata_that_is_not_there_is_a_note(journal: Path) -> None:
    for path in (journal / "journal" / "metadata").iterdir():
        path.unlink()
    found = checked(journal)
    assert found.damages == []
    assert "no metadata store" in found.notes[0]
    assert found.references == 80


def test_metadata_that_says_something_else_than_the_data_files_is_damage(journal: Path) -> None:
    saved = look(journal / "journal").index
    rebuilt = look(journal / "journal", rebuilt=True).index
    assert list(differences(saved, rebuilt)) == []
    assert saved.list_of(1).pop_sealed((4,)) != [None]
    saved.destinations["queue://other"] = AddDestination("queue://other", 5)
    assert list(differences(saved, rebuilt)) == [
        "message 4 of list 1 is pending in the data files, not in it",
        "destination queue://other is only in it",
    ]
    assert list(differences(rebuilt, saved)) == [
        "message 4 of list 1 is pending in it, not in the data files",
        "destination queue://other is only in the data files",
    ]


async def test_a_damaged_live_list_is_named(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, **OPTIONS)
    await write(store, AddDestination("queue://q", 1))
    for sequence in range(1, 40):
        await write(store, add(sequence, size=5000))
    await write(store, ack(*range(2, 12)))
    for sequence in range(40, 60):
        await write(store, add(sequence, size=5000))
    await write(store, ack(*range(20, 60)))
    await store.close()
    store, _ = await opened(tmp_path, **OPTIONS)
    await write(store, AddDestination("queue://r", 2))
    await store.close()
    assert checked(tmp_path).damages == []
    packed = b"\x78\x01"  # what it begins with (RFC 1950)
    for path in sorted((tmp_path / "journal").glob("bindings-*.data")):
        at = path.read_bytes().find(packed)
        if at > 0:
            break
    flip(path, at + 10)
    assert [item.file for item in checked(tmp_path).damages] == [path.name]


# ------------------------------------------------------------------------- beside a gateway


async def test_a_file_whose_end_moves_is_being_written_and_not_damaged(tmp_path: Path) -> None:
    store = await filled(tmp_path, count=2)
    path = data_files(tmp_path)[0]
    half = path.read_bytes()
    for sequence in range(3, 6):
        await write(store, add(sequence, size=1000))
    await store.close()
    whole = path.read_bytes()
    path.write_bytes(half)
    path = data_files(tmp_path)[0]
    half = path.read_bytes()
    begin = next(n for n in range(DATA_OFFSET, len(whole)) if whole[n] != half[n])
    batch = whole.find(b"TGB1", begin + 4)
    later = bytearray(half)
    later[batch : batch + 800] = whole[batch : batch + 800]  # the second before the first
    path.write_bytes(later)
    for name in (tmp_path / "journal" / "metadata").iterdir():
        name.unlink()  # it knows how far the journal came
    for name in (tmp_path / "journal").glob("bindings-*"):
        name.unlink()
    looks = 0

    def written_meanwhile(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            path.write_bytes(whole)

    found = checked(tmp_path, written_meanwhile)
    assert found.damages == []
    assert looks >= 4


def test_a_file_that_is_put_away_while_it_is_read_is_not_damaged(journal: Path) -> None:
    name = next(iter(ends(journal)))
    path = journal / "journal" / name
    flip(path, DATA_OFFSET + 70)  # what its next life has written over it

    def put_away(_seconds: float) -> None:
        if path.exists():
            path.rename(path.with_suffix(".free"))

    found = checked(journal, put_away)
    assert all(item.offset == 0 for item in found.damages if item.file == name)


WRITER = """
    import asyncio, os, sys
    from pathlib import Path
    sys.path[:0] = sys.argv[2].split(os.pathsep)
    from journal_kit import KB, opened, write
    from numbered import ack, add
    from tidegate.spi import AddDestination

    async def main():
        store, _ = await opened(Path(sys.argv[1]), journal_max_file_length=64 * KB,
                                checkpoint_interval=0.02, cleanup_interval=0.02,
                                per_destination=tuple(sys.argv[3:]))
        await write(store, AddDestination("queue://q", 1))
        await write(store, *[add(n, size=2000) for n in range(1, 30)])
        print("ready", flush=True)
        sequence = 30
        while await asyncio.to_thread(sys.stdin.readline):
            for _ in range(40):
                await write(store, *[add(n, size=500) for n in range(sequence, sequence + 20)])
                await write(store, ack(*range(sequence, sequence + 20)))
                sequence += 20
        await store.close()
        print(sequence, flush=True)

    asyncio.run(main())
"""


@pytest.mark.parametrize("per_destination", [(), ("queue://>",)], ids=["journal", "directories"])
def test_beside_a_store_that_writes_compacts_and_reuses_files_there_is_no_false_alarm(
    tmp_path: Path, per_destination: tuple[str, ...]
) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(WRITER),
            str(tmp_path),
            SUPPORT,
            *per_destination,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "ready\n"
        found: list[VerifyReport] = []
        for _ in range(6):
            # So much, and then a rest: who looks may be so slow that it would never see the end.
            writer.stdin.write("go on\n")
            writer.stdin.flush()
            found.append(verify(tmp_path / "journal", silent))
        writer.stdin.close()
        assert int(writer.stdout.read()) > 30  # it went on meanwhile
    assert [item.damages for item in found] == [[]] * 6
    assert all(item.references >= 29 or item.notes for item in found)
    assert checked(tmp_path).damages == []
