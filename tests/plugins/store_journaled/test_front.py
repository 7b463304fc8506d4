"""The journal as a queue of records and one of bodies."""

from __future__ import annotations

from pathlib import Path

from numbered import add

from tidegate.spi import Durability, StoreContext
from tidegate_store_journal import JournalOptions, JournalStore
from tidegate_store_journaled._front import Front


def front(where: Path) -> Front:
    context = StoreContext(where, "test")
    options = JournalOptions(journal_max_file_length=64 << 10)
    return Front(JournalStore(context, options), where)


async def opened(where: Path) -> Front:
    found = front(where)
    await found.open()
    return found


async def test_records_come_back_with_the_number_before_them(tmp_path: Path) -> None:
    found = await opened(tmp_path)
    for sequence in (1, 2):
        await found.append([add(sequence)], Durability.SYNCED, apart=False)
    await found.append_release(9)
    await found.sync()
    identity = found.identity
    await found.close()
    found = await opened(tmp_path)
    assert (found.identity, found.records_found) == (identity, 3)
    records = [record async for record in found.records()]
    assert [(number, before) for number, before, _, _ in records] == [(1, 0), (2, 1), (3, 2)]
    assert records[1][3].operations == [add(2)]
    assert records[2][3].released == 9
    await found.discard([1, 2], [])
    assert [number async for number, _, _, _ in found.records()] == [3]
    await found.close()


async def test_bodies_that_are_apart_are_found_by_number(tmp_path: Path) -> None:
    found = await opened(tmp_path)
    number, size, references = await found.append(
        [add(n) for n in range(11, 21)], Durability.SYNCED, apart=True
    )
    assert (number, list(references)) == (11, list(range(11, 21)))
    assert size > 1000
    bodies = await found.bodies(sorted(references.values()))
    assert bodies == {place: add(n).message.body for n, place in references.items()}
    await found.discard([], [2, 3])
    assert sorted(await found.bodies([1, 2, 3, 10])) == [1, 10]
    owners = [owner async for page in found.body_owners() for owner in page]
    assert owners == [(n - 10, n) for n in range(11, 21) if n not in (12, 13)]
    await found.close()


async def test_numbers_never_fall_behind_what_the_database_knows(tmp_path: Path) -> None:
    found = await opened(tmp_path)
    found.skip_to(500)
    number, _, _ = await found.append([add(1)], Durability.SYNCED, apart=False)
    assert number == 501
    assert found.mark(7, is_open=True).journal == found.identity
    await found.close()
