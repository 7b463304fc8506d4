"""Surveys of damaged journals, and the short share of ``make crash``'s bit flips."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_crash import fast_directory
from journal_flips import TINY, make_journal, outcome_of_flip, places
from journal_kit import opened, write
from journal_load import Model
from numbered import ack, add

from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import DATA_OFFSET
from tidegate_store_journal.start.damage import Damage, Walked, survey


def files_of(store: JournalStore) -> list[Any]:
    return store._files.used()  # pyright: ignore[reportPrivateUsage]


async def tail_of(store: JournalStore) -> int:
    return store._appender.tail.offset  # pyright: ignore[reportPrivateUsage]


def damage(store: JournalStore, number: int, offset: int) -> None:
    """Turn a bit of the *number*-th file while the store is open: nobody reads it now."""
    handle = files_of(store)[number].handle
    handle.pwritev([bytes([handle.pread(1, offset)[0] ^ 1])], offset)


def damages_of(store: JournalStore, known_batch: int = 0) -> list[Damage]:
    return survey([Walked(file) for file in files_of(store)], known_batch)[0]


def found(store: JournalStore) -> list[tuple[int, int, int, int, int]]:
    """(file, begin, end, first batch, last batch) of each damage."""
    return [
        (item.file.file_id, item.begin, item.end, item.first_batch, item.last_batch)
        for item in damages_of(store)
    ]


async def test_a_stretch_is_as_long_as_the_batches_that_it_hits(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path)
    ends = [await tail_of(store)]
    for sequence in range(1, 6):
        await write(store, add(sequence))
        ends.append(await tail_of(store))
    assert ends[0] == DATA_OFFSET
    damage(store, 0, ends[1] + 80)
    assert found(store) == [(1, ends[1], ends[2], 2, 2)]
    damage(store, 0, ends[2] + 3)
    assert found(store) == [(1, ends[1], ends[3], 2, 3)]
    damage(store, 0, ends[0] + 3)
    assert found(store) == [(1, ends[0], ends[3], 1, 3)]  # no whole batch lies between
    await store.close()


async def test_the_newest_batch_may_be_torn_and_is_no_damage_unless_it_is_known(
    tmp_path: Path,
) -> None:
    store, _ = await opened(tmp_path)
    await write(store, add(1))
    begin = await tail_of(store)
    await write(store, add(2))
    damage(store, 0, begin + 80)
    assert found(store) == []
    known = damages_of(store, 2)
    assert [(item.begin, item.first_batch) for item in known] == [(begin, 2)]
    await store.close()


async def test_a_survey_says_what_was_in_the_damaged_part(tmp_path: Path) -> None:
    store, _ = await opened(tmp_path, keep=True)
    await write(store, add(1), add(2))
    begin = await tail_of(store)
    await write(store, add(3), add(4, 2), ack(1))
    await write(store, ack(2), add(5))
    await write(store, add(6))
    damage(store, 0, begin + 64 + 36 + 50)  # in message 3
    [item] = damages_of(store)
    assert isinstance(item, Damage)
    assert item.sequences == range(3, 6)
    await store.close()


@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
@pytest.mark.parametrize("rebuilds", [True, False], ids=["rebuilt", "with metadata"])
async def test_a_wrong_bit_anywhere_is_noticed_or_harmless(
    tmp_path: Path, policy: str, rebuilds: bool
) -> None:
    with fast_directory(tmp_path) as name:
        directory = Path(name)
        original = directory / "original"
        model: Model = await make_journal(original, TINY)
        if rebuilds:
            shutil.rmtree(original / "journal" / "metadata")
        for name, offset in random.Random(policy).sample(places(original), 60):
            result = await outcome_of_flip(
                original, directory / "work", name, offset, model, damaged_journal_policy=policy
            )
            assert result in ("harmless", "refused", "reported"), (name, offset, result)
