"""Lives of a journal store that loads of ``journal_load`` lead, power cuts at their ends, and what must be there then.

Whatever is found after a cut must be one of the states that the model has noted, message by message
and byte by byte, and none from before the last confirmation.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from journal_load import (
    ANY_SIZE,
    LARGE_NAME,
    LISTS,
    Model,
    Profile,
    is_as_sent,
    load,
    message,
    small_state,
    store_of,
)
from metadata_fates import Fate, put_metadata

from tidegate.spi import (
    AddDestination,
    AddMessage,
    RecoveredState,
    StoreError,
    WriteBatch,
)
from tidegate.testing.crash_schedules import CrashPoint, Recording
from tidegate.testing.faulty_storage import Faults, FaultyDisk, FaultyStorage
from tidegate_store_journal import JournalStore

# -------------------------------------------------------------------------------------- comparing


async def problem_of(
    store: JournalStore, recovered: RecoveredState, model: Model, confirmed: int
) -> str:
    """Compare what is in *store* with the states from *confirmed* on. Returns: "" when it is one.

    The index of that state is ``model.found`` then.
    """
    lists: list[tuple[int, ...]] = []
    for list_id in LISTS:
        sequences: list[int] = []
        while page := await store.page_in(list_id, sequences[-1] if sequences else 0, 50, ANY_SIZE):
            for item in page:
                if not await is_as_sent(store, item.sequence, item.message, model):
                    return f"message {item.sequence} of list {list_id} is not what was sent"
                sequences.append(item.sequence)
        lists.append(tuple(sequences))
    first = store.log_statistics().first
    page_of_rows = await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)
    rows: list[tuple[int, int]] = []
    for number, row in enumerate(page_of_rows.rows):
        if row.ack_sequence != first + number:
            return f"row {row.ack_sequence} of the acknowledged log comes where {first + number} should"
        if not await is_as_sent(store, row.sequence, row.message, model):
            return f"acknowledged message {row.sequence} is not what was sent"
        rows.append((row.sequence, row.pending_list))
    if first - 1 > model.released:
        return f"rows up to {first - 1} are gone, only {model.released} were released"
    small = await small_state(store, recovered)
    for index, state in enumerate(model.states[confirmed:], confirmed):
        if (
            state.lists == tuple(lists)
            and len(state.rows) == first - 1 + len(rows)
            and state.rows[first - 1 :] == tuple(rows)
            and state.small == small
        ):
            model.found = index
            return ""
    wanted = model.states[confirmed]
    return (
        f"found {[len(item) for item in lists]} messages, rows {first}..{first + len(rows) - 1}, "
        f"small state {'as' if small == wanted.small else 'not as'} confirmed; that is none of "
        f"the {len(model.states) - confirmed} states from the confirmed one on, which has "
        f"{[len(item) for item in wanted.lists]} messages and {len(wanted.rows)} rows"
    )


async def orphans_of(store: JournalStore, storage: FaultyStorage) -> str:
    """Files of streamed bodies that no message needs. Returns: "" when there is none."""
    needed: set[str] = set()
    for list_id in LISTS:
        for item in await store.page_in(list_id, 0, 1_000_000, ANY_SIZE):
            if item.message.large is not None:
                needed.add(item.message.large.id)
    first = store.log_statistics().first
    for row in (await store.acknowledged(first - 1, 1_000_000, ANY_SIZE)).rows:
        if row.message.large is not None:
            needed.add(row.message.large.id)
    files = storage.folder(LARGE_NAME).list()
    there = {name.removesuffix(".body") for name in files if name.endswith(".body")}
    if there != needed:
        return f"{len(there - needed)} files of large bodies are there that no message needs"
    return ""


# ------------------------------------------------------------------------------------- recordings


def disk_of(directory: Path, seed: int, profile: Profile) -> FaultyDisk:
    """One for a store in *directory*."""
    return FaultyDisk(seed, metadata_directory=directory / "metadata" if profile.metadata else None)


async def record(
    directory: Path, seed: int, profile: Profile, **options: Any
) -> tuple[Recording, Model]:
    """Run a load of *profile* once, and write down what happens to its disk."""
    recording = Recording()
    model = Model()
    disk = disk_of(directory, seed, profile)
    with recording.of(disk):
        store = store_of(profile, directory, disk.start(), **options)
        if profile.metadata:
            _keep_metadata(store, directory / "metadata" / "data.mdb", recording)
        await store.open()
        await load(store, model, random.Random(seed), profile, recording.promise)
        await store.close()
    return recording, model


def _keep_metadata(store: JournalStore, path: Path, recording: Recording) -> None:
    """Every checkpoint that LMDB committed goes into the recording."""
    metadata = store._metadata  # pyright: ignore[reportPrivateUsage]
    save = metadata.save

    def save_and_keep(*args: Any) -> None:
        save(*args)
        recording.keep({"data.mdb": path.read_bytes()})

    metadata.save = save_and_keep  # type: ignore[method-assign]  # a hook for this test only


async def problem_at(
    point: CrashPoint,
    model: Model,
    directory: Path,
    profile: Profile,
    *,
    fate: Fate,
    keep: Path | None = None,
) -> str:
    """Start again after the cut at *point* and compare. Returns: what is wrong, "" when nothing is.

    By the point's number and seed: every third start is cut off by another power cut, at one of
    its first syncs; every fourth store must also take more messages and hold them after that.
    *fate*: what became of the metadata store. *keep*: the files as they were after the cut go there
    when something is wrong.
    """
    chance = random.Random(f"{point.number}.{point.seed}")
    put_metadata(point, fate, directory)
    disk = point.disk(None if fate is Fate.UNUSED else directory)
    try:
        problem = await _recover_and_compare(disk, point, model, directory, profile, chance)
    except (StoreError, OSError, AssertionError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem and keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for name, data in point.disk().read_all().items():  # the same disk once more
            (keep / name).parent.mkdir(parents=True, exist_ok=True)
            (keep / name).write_bytes(data)
        put_metadata(point, fate, keep / "metadata")
    return problem


async def _recover_and_compare(
    disk: FaultyDisk,
    point: CrashPoint,
    model: Model,
    directory: Path,
    profile: Profile,
    chance: random.Random,
) -> str:
    if chance.random() < 1 / 3:
        faults = Faults(cut_at_sync=chance.randrange(1, 12))
        store = store_of(profile, directory, disk.start(faults))
        with contextlib.suppress(StoreError, OSError):
            await store.open()
        disk.cut_power()
        await store.close()
    storage = disk.start()
    found: list[int] = []
    new = 0
    async with until_power_cut(disk, store_of(profile, directory, storage)) as (store, state):
        problem = await problem_of(store, state, model, point.promised)
        problem = problem or await orphans_of(store, storage)
        if not problem and chance.random() < 1 / 4:
            found = [item.sequence for item in await store.page_in(1, 0, 100_000, ANY_SIZE)]
            new = max(model.sequence, *found, 0) + 1
            await store.write(WriteBatch([AddMessage(new, message(new, 300), (1,))]))
    if new:
        again = store_of(profile, directory, disk.start())
        async with until_power_cut(disk, again) as (store, _):
            after = [item.sequence for item in await store.page_in(1, 0, 100_000, ANY_SIZE)]
        if after != [*found, new]:
            problem = f"a message that was added after the recovery is not there: {after[-3:]}"
    return problem


@contextlib.asynccontextmanager
async def until_power_cut(
    disk: FaultyDisk, store: JournalStore
) -> AsyncIterator[tuple[JournalStore, RecoveredState]]:
    """*store*, open, until the power goes at the end: it writes nothing more when it closes."""
    state = await store.open()
    try:
        yield store, state
    finally:
        disk.cut_power()
        await store.close()


def repeat_text(profile: Profile, seed: int, point: CrashPoint, fate: Fate, problem: str) -> str:
    """A failure for the report."""
    return (
        f"load {profile.name!r} seed {seed}, power cut before change {point.number} "
        f"({point.kind}), fate seed {point.seed}, metadata store {fate.value}: {problem}"
    )


# ------------------------------------------------------------------------------------ live faults


async def _load_until_it_fails(
    directory: Path, seed: int, profile: Profile, storage: FaultyStorage, model: Model
) -> JournalStore:
    """Returns: the store, which is not closed."""
    store = store_of(profile, directory, storage)
    with contextlib.suppress(StoreError, OSError):
        await store.open()
        await load(store, model, random.Random(seed), profile)
    return store


async def live_with_faults(
    directory: Path, seed: int, profile: Profile, faults: Faults
) -> tuple[str, FaultyStorage]:
    """Run a load on a disk that fails as told, cut the power at its end, start again, compare.

    Returns: what is wrong, and the storage of the run (for its counts).
    """
    disk, model = disk_of(directory, seed, profile), Model()
    storage = disk.start(faults)
    store = await _load_until_it_fails(directory, seed, profile, storage, model)
    disk.cut_power()
    await store.close()
    store = store_of(profile, directory, disk.start())
    problem = await problem_of(store, await store.open(), model, model.confirmed)
    await store.close()
    return problem, storage


async def restart_after_faults(
    directory: Path, seed: int, profile: Profile, faults: Faults
) -> tuple[str, FaultyStorage]:
    """As :func:`live_with_faults`, but the program is started again before the power goes.

    So it reads what a failed sync left in memory, and the disk never got it; every third time the
    system has dropped that from memory. Then a load goes on, without faults, and the power goes at
    one of its first syncs (every third time), or behind it: whatever was confirmed by the first
    program or the second must be there.
    """
    chance = random.Random(f"restart {seed}")
    disk, model = disk_of(directory, seed, profile), Model()
    storage = disk.start(faults)
    store = await _load_until_it_fails(directory, seed, profile, storage, model)
    if chance.random() < 0.5:
        disk.kill()
    await store.close()
    disk.kill()
    if chance.random() < 1 / 3:
        disk.drop_caches()
    cut = chance.randrange(1, 40) if chance.random() < 1 / 3 else 0
    try:
        store = store_of(profile, directory, disk.start(Faults(cut_at_sync=cut)))
        problem = await _go_on(disk, store, model, chance, profile)
        if not problem:
            store = store_of(profile, directory, disk.start())
            async with until_power_cut(disk, store) as (store, state):
                problem = await problem_of(store, state, model, model.confirmed)
                problem = problem and f"after the power cut: {problem}"
    except (StoreError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    return problem, storage


async def _go_on(
    disk: FaultyDisk, store: JournalStore, model: Model, chance: random.Random, profile: Profile
) -> str:
    """The second life: compare, and run a load until the power goes. Returns: what is wrong."""
    problem = ""
    try:
        state = await store.open()
        problem = await problem_of(store, state, model, model.confirmed)
        if not problem:
            model.go_on_from_found()
            await load(store, model, chance, profile._replace(batches=profile.batches // 2))
    except (StoreError, OSError):
        if disk.is_on:
            raise
    finally:
        disk.cut_power()
        await store.close()
    return problem and f"after the restart: {problem}"


async def live_with_few_handles(
    directory: Path, seed: int, profile: Profile, error: int
) -> tuple[str, int]:
    """Run a load during which now and then nothing can be opened any more, for some batches.

    What is refused then may be refused; once files can be opened again the store must take batches
    as before, without a restart. Returns: what is wrong, and how many batches were written.
    """
    chance = random.Random(f"handles {seed}")
    disk = disk_of(directory, seed, profile)
    model = Model()
    storage = disk.start(Faults(open_error=error))
    store = store_of(profile, directory, storage)
    problem = ""

    def limit(number: int) -> None:
        if number % 10 == 5:
            storage.open_max = max(1, storage.open_count + chance.randrange(2))
        elif number % 10 == 8:
            storage.open_max = 0

    try:
        await store.open()
        await load(store, model, random.Random(seed), profile, before_each=limit)
        storage.open_max = 0
        model.states.append(model.state())
        await store.write(WriteBatch([AddDestination("queue://last", 9)]))
        model.small["destination", "queue://last"] = (9, "")
        model.states[-1] = model.state()
        model.confirmed = len(model.states) - 1
    except (StoreError, OSError) as failure:
        problem = f"with files to open again: {type(failure).__name__}: {failure}"
    disk.cut_power()
    await store.close()
    if not problem:
        store = store_of(profile, directory, disk.start())
        problem = await problem_of(store, await store.open(), model, model.confirmed)
        await store.close()
    return problem, len(model.states)


def fast_directory(fallback: Path) -> tempfile.TemporaryDirectory[str]:
    """A directory in memory where there is one: LMDB's own syncs take most of the time else."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return tempfile.TemporaryDirectory(prefix="tidegate-", dir=memory if usable else fallback)
