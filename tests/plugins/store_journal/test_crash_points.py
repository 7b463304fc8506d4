"""Power cuts at every kind of sync, on a disk that loses, tears and garbles what was not synced.

Two loads: one that consumes in order, and a *sparse* one that leaves a few messages in every data
file for long, so that files are compacted, used again and archived all the time.

The load is recorded as the list of states that the store went through; whatever is found after the
cut must be one of them, and not one from before the last confirmation. At the end of this file are
some hundred points of the recorded schedules that ``make crash`` runs by the ten thousand
(tests/crash/test_crash_schedules.py).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from crash_crew import Job, amount, job
from journal_crash import EAGER as EAGER_OPTIONS
from journal_crash import LARGE_NAME, Profile, fast_directory, problem_at, record
from journal_kit import ANY_SIZE, ack, add, checkpoint, opened, pending, with_maps, with_ring
from metadata_fates import Fate, fate_of

from tidegate.spi import Durability, Operation, StoreError, WriteBatch
from tidegate.testing.faulty_storage import Faults, FaultyDisk, FaultyStorage
from tidegate_store_journal import JournalStore
from tidegate_store_journal.log.format import decode_file_header

LISTS = (1, 2)
State = tuple[tuple[int, ...], ...]
#: Compaction as eager as it can be.
EAGER = {"journal_compact_min_files": 3, "journal_compact_percentage": 50}


@dataclass
class History:
    """States after each batch; *confirmed* is the index of the last one known to be durable."""

    states: list[State]
    confirmed: int = 0
    sequence: int = 0
    released: int = 0
    lists: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    rows: list[int] = field(default_factory=list[int])

    def state(self) -> State:
        return (*(tuple(self.lists[list_id]) for list_id in LISTS), tuple(self.rows))


async def observed(store: JournalStore) -> History:
    """What is in the store, read through the contract."""
    lists = {list_id: await pending(store, list_id) for list_id in LISTS}
    first = store.log_statistics().first
    page = await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)
    numbers = [row.ack_sequence for row in page.rows]
    assert numbers == list(range(first, first + len(numbers)))
    for row in page.rows:
        assert row.message.body.split()[0] == b"%d" % row.sequence
    return History([], released=first - 1, lists=lists, rows=[row.sequence for row in page.rows])


Load = Callable[[JournalStore, History, random.Random], Awaitable[None]]


async def load(store: JournalStore, history: History, chance: random.Random) -> None:
    """Random batches until the power goes (or a hundred)."""
    for _ in range(100):
        operations: list[Operation] = []
        for _ in range(chance.randrange(3)):
            history.sequence += 1
            lists = chance.choice([(1,), (2,), LISTS])
            size = chance.choice([5, 800, 20_000])
            operations.append(add(history.sequence, *lists, size=size))
            for list_id in lists:
                history.lists[list_id].append(history.sequence)
        list_id = chance.choice(LISTS)
        taken = history.lists[list_id][: chance.randrange(6)]
        if taken:
            del history.lists[list_id][: len(taken)]
            history.rows += taken
            operations.append(ack(*taken, pending_list=list_id))
        if not operations:
            continue
        history.states.append(history.state())
        durability = chance.choice(list(Durability))
        await store.write(WriteBatch(operations, durability))
        if durability is Durability.SYNCED:
            history.confirmed = len(history.states) - 1
        if chance.random() < 0.1:
            await checkpoint(store, cleanup=True)
            history.confirmed = len(history.states) - 1


def is_after(found: History, history: History) -> bool:
    """*found* is a state of *history* that is not older than the last confirmation.

    Rows that were released before the cut may be there again or not.
    """
    if found.released > history.released:
        return False
    for lists_and_rows in history.states[history.confirmed :]:
        *lists, rows = lists_and_rows
        if [tuple(found.lists[list_id]) for list_id in LISTS] == lists and tuple(
            found.rows
        ) == rows[len(rows) - len(found.rows) :]:
            return True
    return False


async def sparse_load(store: JournalStore, history: History, chance: random.Random) -> None:
    """As :func:`load`, but one message in eight stays, and rows are released now and then."""
    staying: set[int] = set()
    for _ in range(150):
        operations: list[Operation] = []
        for _ in range(1 + chance.randrange(4)):
            history.sequence += 1
            lists = chance.choice([(1,), (1,), (2,), LISTS])
            size = chance.choice([5, 1500, 6000, 20_000])
            operations.append(add(history.sequence, *lists, size=size))
            if chance.random() < 0.125:
                staying.add(history.sequence)
            for list_id in lists:
                history.lists[list_id].append(history.sequence)
        for list_id in LISTS:
            taken = [item for item in history.lists[list_id] if item not in staying]
            taken = taken[: chance.randrange(9)]
            if taken:
                gone = set(taken)
                history.lists[list_id] = [i for i in history.lists[list_id] if i not in gone]
                history.rows += taken
                operations.append(ack(*taken, pending_list=list_id))
        if len(staying) > 40:
            staying -= set(chance.sample(sorted(staying), 20))
        history.states.append(history.state())
        durability = chance.choice(list(Durability))
        await store.write(WriteBatch(operations, durability))
        if durability is Durability.SYNCED:
            history.confirmed = len(history.states) - 1
        if chance.random() < 0.2:
            last = store.log_statistics().last
            history.released = max(history.released, last - chance.randrange(8))
            await store.release_acknowledged(history.released)


async def live_and_crash(
    directory: Path,
    seed: int,
    live: Load = load,
    syncs: int = 60,
    *,
    metadata: bool = False,
    **options: object,
) -> str:
    """Four lives that each end in a power cut. Returns: what was wrong, "" when nothing was."""
    chance = random.Random(seed)
    disk = FaultyDisk(seed, metadata_directory=directory / "metadata" if metadata else None)
    history = History([], lists={list_id: [] for list_id in LISTS})
    history.states.append(history.state())
    for _ in range(4):
        storage = with_ring(disk.start(Faults(cut_at_sync=chance.randrange(1, syncs))), seed)
        if options.get("journal_type") == "MAPPED":
            storage = with_maps(storage)
        store = None
        try:
            store, _ = await opened(directory, storage, keep=True, **options)
            await live(store, history, chance)
        except (StoreError, OSError):
            assert storage.is_off
        disk.cut_power()
        if store is not None:
            await store.close()
        storage = disk.start()
        store, state = await opened(directory, storage, keep=True)
        found = await observed(store)
        if not is_after(found, history):
            await store.close()
            return f"{found} is none of {history.states[history.confirmed :]}"
        # And it works as before: the next life begins here.
        found.sequence = max(state.last_sequence, *found.rows, 0)
        if found.rows:
            middle = found.released + chance.randrange(len(found.rows) + 1)
            await store.release_acknowledged(middle)
            found.rows = found.rows[middle - found.released :]
            found.released = middle
        found.states = [found.state()]
        history = found
        await store.close()
    return ""


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


def policy_of(seed: int) -> dict[str, object]:
    """Each seed puts dead files away in another way."""
    return {
        **EAGER,
        "archive_data_logs": seed % 4 == 3,
        "journal_pool_files": (-1, 3, 6, -1)[seed % 4],
    }


@pytest.mark.parametrize("seed", range(16))
async def test_after_a_power_cut_amid_compaction_the_store_is_in_a_state_that_it_went_through(
    tmp_path: Path, seed: int
) -> None:
    changes = {"metadata": seed % 3 == 0, **policy_of(seed)}
    assert await live_and_crash(tmp_path, seed, sparse_load, 150, **changes) == ""


#: Seeds of one job of ``make crash``.
BLOCK = 25


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
        options={
            **EAGER_OPTIONS,
            "preset": "flatfile",
            "per_destination": ("queue://>",),
            "max_record_size": 8000,
            "filepool_limit": 3,
        },
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
