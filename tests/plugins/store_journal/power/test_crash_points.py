"""Power cuts at every kind of sync, on a disk that loses, tears and garbles what was not synced.

The lives and their loads are those of ``power_cuts``. At the end of this file are
some hundred points of the recorded schedules that ``make crash`` runs by the ten thousand
(tests/crash/test_crash_schedules.py).
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import uvloop
from crash_crew import Job, amount, job
from journal_crash import fast_directory, problem_at, record
from journal_kit import opened, with_maps
from journal_load import EAGER as EAGER_OPTIONS
from journal_load import FOLDERS, LARGE_NAME, Profile
from metadata_fates import Fate, fate_of
from power_cuts import (
    BLOCK,
    LISTS,
    History,
    is_after,
    live_and_crash,
    load,
    observed,
    policy_of,
    sparse_load,
)

from tidegate.testing.faulty_storage import FaultyDisk, FaultyStorage
from tidegate_store_journal.log.format import decode_file_header


@pytest.mark.parametrize("seed", range(40))
async def test_after_a_power_cut_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    assert await live_and_crash(tmp_path, seed) == ""


#: ASYNCIO as it is, with requests that are pieces of batches, and with batches that gather first.
ASYNCIO: tuple[dict[str, Any], ...] = (
    {"journal_type": "ASYNCIO"},
    {"journal_type": "ASYNCIO", "journal_buffer_size": 4096, "journal_max_io": 3},
    {"journal_type": "ASYNCIO", "journal_buffer_timeout": 0.001, "journal_buffer_size": 8192},
    {"journal_buffer_timeout": 0.001},
)


@pytest.mark.parametrize("seed", range(24))
async def test_after_a_power_cut_amid_requests_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    """The requests of a batch are carried out in any order."""
    assert await live_and_crash(tmp_path, seed, **ASYNCIO[seed % len(ASYNCIO)]) == ""


@pytest.mark.parametrize("seed", range(8))
async def test_after_a_power_cut_amid_requests_and_compaction_it_is_as_well(
    tmp_path: Path, seed: int
) -> None:
    changes: dict[str, Any] = {**policy_of(seed), **ASYNCIO[seed // 2 % 3]}
    assert await live_and_crash(tmp_path, seed, sparse_load, 150, **changes) == ""


@pytest.mark.parametrize("seed", range(24))
async def test_after_a_power_cut_amid_mapped_pages_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    """Pages are written back in any order, each as it was at any moment."""
    live, syncs, policy = ((load, 60, {}), (sparse_load, 150, policy_of(seed)))[seed % 2]
    options = {**policy, "journal_type": "MAPPED"}
    assert await live_and_crash(tmp_path, seed, live, syncs, **options) == ""


@pytest.mark.parametrize("seed", range(16))
async def test_after_a_power_cut_amid_compaction_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    changes = {"metadata": seed % 3 == 0, **policy_of(seed)}
    assert await live_and_crash(tmp_path, seed, sparse_load, 150, **changes) == ""


def problems_amid_compaction(first: int) -> dict[int, str]:
    """Four lives each for BLOCK seeds from *first* on. Returns: what was wrong, by seed."""
    problems: dict[int, str] = {}
    with fast_directory(Path(tempfile.gettempdir())) as name:
        for seed in range(first, first + BLOCK):
            metadata = seed % 3 == 0
            cut = live_and_crash(
                Path(name, str(seed)), seed, sparse_load, 150, metadata=metadata, **policy_of(seed)
            )
            if problem := uvloop.run(cut):
                problems[seed] = problem
    return problems


def jobs_amid_compaction() -> list[Job]:
    blocks = range(amount(6, 40))
    return [job(problems_amid_compaction, 1000 + BLOCK * block) for block in blocks]


@pytest.mark.crash
@pytest.mark.crew(jobs=jobs_amid_compaction)
def test_many_power_cuts_amid_compaction(results: list[dict[int, str]]) -> None:
    assert [problems for problems in results if problems] == []


def problems_amid_requests(first: int) -> dict[int, str]:
    """The same for batches that are carried out as requests, in any order."""
    problems: dict[int, str] = {}
    with fast_directory(Path(tempfile.gettempdir())) as name:
        for seed in range(first, first + BLOCK):
            changes = ASYNCIO[seed % len(ASYNCIO)]
            where = Path(name, str(seed))
            if seed % 2:
                cut = live_and_crash(where, seed, **changes)
            else:
                changes = {**policy_of(seed), **changes}
                cut = live_and_crash(where, seed, sparse_load, 150, **changes)
            if problem := uvloop.run(cut):
                problems[seed] = problem
    return problems


def jobs_amid_requests() -> list[Job]:
    blocks = range(amount(4, 16))
    return [job(problems_amid_requests, 5000 + BLOCK * block) for block in blocks]


@pytest.mark.crash
@pytest.mark.crew(jobs=jobs_amid_requests)
def test_many_power_cuts_amid_requests(results: list[dict[int, str]]) -> None:
    assert [problems for problems in results if problems] == []


@pytest.mark.parametrize("seed", range(4))
async def test_the_sparse_load_compacts_and_uses_files_again(tmp_path: Path, seed: int) -> None:
    """Otherwise the crash points would prove nothing about either."""
    disk = FaultyDisk(seed)
    storage = disk.start()
    store, _ = await opened(tmp_path, storage, keep=True, **policy_of(seed))
    history = History([], lists={list_id: [] for list_id in LISTS})
    await sparse_load(store, history, random.Random(seed))
    await store.close()
    compactor = store._compactor  # pyright: ignore[reportPrivateUsage]
    assert compactor.copied_messages > 20
    names = storage.list()
    reused = [name for name in names if name.endswith(".data") and is_reused(storage, name)]
    archived = [name for name in names if name.startswith("archive/")]
    assert len(archived) > 10 if seed % 4 == 3 else reused
    # And everything is still there in the end.
    store, _ = await opened(tmp_path, disk.start(), keep=True)
    history.states = [history.state()]
    history.confirmed = 0
    assert is_after(await observed(store), history)
    await store.close()


def is_reused(storage: FaultyStorage, name: str) -> bool:
    return decode_file_header(storage.open(name).pread(64, 0)).reused


@pytest.mark.long
async def test_without_syncs_the_same_check_finds_losses(tmp_path: Path) -> None:
    """The negative control: a check that cannot fail proves nothing."""
    controls: tuple[dict[str, Any], ...] = (
        {"journal_disk_sync_strategy": "never"},
        {"journal_datasync": False},
        {"journal_sync_non_transactional": False},
        {"journal_disk_sync_strategy": "never", "journal_type": "ASYNCIO"},
        {"journal_disk_sync_strategy": "never", "journal_type": "MAPPED"},
    )
    for changes in controls:
        problems = [await live_and_crash(tmp_path, seed, **changes) for seed in range(10)]
        assert any(problems), changes


RECORDED = (
    Profile("steady", small=0.5, unordered=0.3),
    Profile("sparse", batches=100, sizes=(5, 1500, 20_000), staying=0.125, options=EAGER_OPTIONS),
    Profile("no metadata", small=0.2, sizes=(5, 9000), metadata=False),
    Profile(
        "mapped",
        batches=80,
        sizes=(5, 1500, 20_000),
        staying=0.125,
        options={**EAGER_OPTIONS, "journal_type": "MAPPED"},
        prepare=with_maps,
    ),
    Profile(
        "folders",
        sizes=(5, 1500, 20_000),
        staying=0.125,
        unordered=0.3,
        checkpoints=0.2,
        options=FOLDERS,
    ),
    Profile("streamed", sizes=(5, 1500, 30_000), streamed=0.3, staying=0.1, unordered=0.3),
)
BY_NAME = {profile.name: profile for profile in RECORDED}
#: Of `make test`; with the others they are in `make long`, and at every point in `make crash`.
_USUAL = ("steady", "sparse")


#: What must have happened to files in a load, by name of the profile: kind and a part of the name.
EXERCISED = {
    "mapped": (("store", ""), ("write", "")),
    "folders": (
        ("create", ".data.tmp"),  # files that are begun: by batches, and by compaction
        ("create", "|queue#dlq|journal-"),
        ("rename", "|queue#q|journal-"),  # into the pool, and out of it
        ("unlink", "|queue#gone|journal-"),  # a directory that nothing lives in any more
    ),
    "streamed": (
        ("create", f"{LARGE_NAME}|"),
        ("rename", ".free"),  # the file of one body taken over by another
        ("unlink", f"{LARGE_NAME}|"),
    ),
}


@pytest.mark.parametrize("name", EXERCISED)
async def test_the_recorded_loads_do_what_they_are_for(tmp_path: Path, name: str) -> None:
    """Otherwise their crash points would prove nothing about it."""

    with fast_directory(tmp_path) as place:
        directory = Path(place)
        recording, _ = await record(directory / "run", 5, BY_NAME[name])
        changes = recording.changes
        for kind, part in EXERCISED[name]:
            count = sum(item.kind == kind and part in item.name for item in changes)
            assert count > (1 if part.endswith(".tmp") else 0), (kind, part)


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(item, id=item.name, marks=[] if item.name in _USUAL else [pytest.mark.long])
        for item in RECORDED
    ],
)
async def test_at_any_change_of_a_recorded_run_the_power_may_go(
    tmp_path: Path, profile: Profile
) -> None:
    with fast_directory(tmp_path) as name:
        directory = Path(name)
        recording, model = await record(directory / "run", 5, profile)
        count = 0
        for point in recording.points([5]):
            if point.is_at_sync or point.number % 20 == 0:
                count += 1
                fate = fate_of(point) if profile.metadata else Fate.UNUSED
                problem = await problem_at(point, model, directory / "m", profile, fate=fate)
                assert not problem, (
                    f"before change {point.number} ({point.kind}, {fate}): {problem}"
                )
        assert count > 80


@pytest.mark.parametrize(
    ("name", "without"),
    [("sparse", "sync"), ("sparse", "names"), ("mapped", "flush"), ("folders", "sync")],
)
async def test_on_a_disk_that_lies_the_same_points_find_losses(
    tmp_path: Path, name: str, without: str
) -> None:
    with fast_directory(tmp_path) as place:
        directory = Path(place)
        profile = BY_NAME[name]
        recording, model = await record(directory / "run", 5, profile)
        caught = 0
        for point in recording.points([5], without=without):
            if point.number > 30 and point.number % 15 == 0:
                problem = await problem_at(point, model, directory / "m", profile, fate=Fate.KEPT)
                caught += bool(problem)
        assert caught > 5
