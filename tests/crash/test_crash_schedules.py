"""The journal store loses power at every sync of recorded loads, and between the syncs.

`make crash` runs all of it and writes what was done to ``build/crash-report.md``. A failure names
its seeds and the point, and leaves the files as the power cut left them in ``build/crash-failures``.
The ordinary suite runs some hundred points of the same kind (tests/plugins/store_journal).
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import journal_kit
import pytest
from crash_crew import Job, amount, job
from journal_crash import (
    fast_directory,
    live_with_faults,
    live_with_few_handles,
    problem_at,
    record,
    repeat_text,
    restart_after_faults,
)
from journal_load import EAGER, Profile
from journal_load import FOLDERS as FOLDER_OPTIONS
from metadata_fates import Fate, fate_of

from tidegate.testing.crash_schedules import CrashReport
from tidegate.testing.faulty_storage import Call, Faults
from tidegate_store_journal.log.walk import Unproven

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
TEMPORARY = Path(tempfile.gettempdir())
REPORT = ROOT / "build" / "crash-report.md"
FAILURES = ROOT / "build" / "crash-failures"

SPARSE = Profile(
    "sparse: compaction, files used again",
    batches=120,
    sizes=(5, 1500, 6000, 20_000),
    staying=0.125,
    unordered=0.1,
    options=EAGER,
)
MAP = SPARSE._replace(
    name="map: journal_type MAPPED, pages in any order",
    options={**EAGER, "journal_type": "MAPPED"},
    prepare=journal_kit.with_maps,
)
FOLDERS = SPARSE._replace(
    name="folders: flatfile, a directory for each queue",
    batches=80,
    unordered=0.3,
    checkpoints=0.2,
    options={
        **FOLDER_OPTIONS,
        "filepool_cleanratio": 50,
        "message_cleanup": True,
    },
)
STREAMED = SPARSE._replace(
    name="streamed: large bodies in files of their own",
    batches=80,
    sizes=(5, 1500, 30_000),
    unordered=0.3,
    streamed=0.3,
)
BULK = Profile(
    "bulk: much small state, files of the bindings used again",
    batches=120,
    sizes=(5, 300),
    small=0.9,
    retained_bytes=9000,
    checkpoints=0.3,
)
PROFILES = (
    Profile("steady: consumed in order", small=0.1),
    Profile(
        "state: sessions, packet ids, retained, duplicate ids",
        batches=120,
        sizes=(5, 300),
        small=0.8,
        checkpoints=0.15,
    ),
    BULK,
    Profile("unordered: dropped, moved, expired", unordered=0.8, staying=0.1),
    Profile("long: batches with data files of their own", sizes=(5, 90_000), batches=40),
    SPARSE,
    SPARSE._replace(
        name="archive: dead files are moved away", options={**EAGER, "archive_data_logs": True}
    ),
    SPARSE._replace(name="pool: three files are kept", options={**EAGER, "journal_pool_files": 3}),
    SPARSE._replace(
        name="ring: journal_type ASYNCIO, requests in any order",
        options={**EAGER, "journal_type": "ASYNCIO"},
        prepare=lambda storage: journal_kit.with_ring(storage, 1),
    ),
    MAP,
    FOLDERS,
    STREAMED,
    SPARSE._replace(name="no metadata: every start rebuilds", metadata=False),
)
BY_KEY = {profile.name.split(":")[0]: profile for profile in PROFILES}
SEEDS = range(amount(3, 6))
POINTS_MIN = 30_000
#: Every how many points of a recording a control is checked: it fails soon or never.
CONTROL_STEP = 7


COVERED = """\
journal types: NIO in every schedule but two, ASYNCIO in "ring", MAPPED in "map"
layouts: one journal for all; a directory for each destination (preset flatfile) in "folders"
large messages: streamed to files of their own in "streamed"
calls that fail: in the loads of "sparse", "map", "folders" and "streamed"; slow syncs: in "sparse"
the restart after a power cut has the options of the schedule, with its journal type"""
CHECKS = """\
every message that a confirmed batch added is there, byte by byte, in its order and its lists
each batch is there whole or not at all, and none without those before it
no acknowledged message is pending again
the acknowledged log has each row once, without a gap, with the message that was acknowledged
destinations, subscriptions, sessions, packet ids, retained messages and duplicate ids are of the
    same state
of the metadata store there was, by seed, the last commit, or it was one checkpoint older, had a wrong bit,
    had a page that was older in part, was gone, or was not used
one start in three was cut off by another power cut, at one of its first syncs
no file of a streamed body is there that no message needs
one store in four took another message afterwards, and still had it after a third cut"""


@pytest.fixture(scope="module")
def report() -> Iterator[CrashReport]:
    """Filled by the tests of this module and written at the end, whatever they found."""
    report = CrashReport("Crash schedules of the journal store")
    report.repeating += [
        "Once more: make crash ARGS='tests/crash/test_crash_schedules.py -k NAME', NAME being what",
        "stands before the colon of a schedule, or a call such as `rename`; its loads have the seeds",
        f"{SEEDS.start} to {SEEDS.stop - 1}. Files as a cut left them, when something was wrong:",
        "build/crash-failures/NAME-SEED-POINT-FATE.",
    ]
    report.covered += COVERED.split("\n")
    report.checks += CHECKS.replace("\n    ", " ").split("\n")
    yield report
    report.write(REPORT)
    print(f"\n{report.points} crash points, {len(report.failures)} failures: {REPORT}")


# What follows in pairs: a job, which runs in a process of its own (tests/_support/runner/crash_crew.py) and
# returns the report of its part, and the test that adds these up.


def schedule(key: str, seed: int) -> CrashReport:
    """Cut the power at every change of the load of one profile and seed."""
    profile = BY_KEY[key]
    report = CrashReport(key)

    async def scenario(directory: Path) -> None:
        recording, model = await record(directory / "run", seed, profile)
        report.tally(profile.name).recordings += 1
        for point in recording.points([10 * seed], more_at_syncs=[10 * seed + 1]):
            fate = fate_of(point) if profile.metadata else Fate.UNUSED
            problem = await problem_at(
                point,
                model,
                directory / "start",
                profile,
                fate=fate,
                keep=FAILURES / f"{key}-{seed}-{point.number}-{point.seed}",
            )
            if problem:
                problem = repeat_text(profile, seed, point, fate, problem)
            report.add(profile.name, point, problem)

    with fast_directory(TEMPORARY) as name:
        asyncio.run(scenario(Path(name)))
    report.stop()
    return report


def schedules(key: str) -> list[Job]:
    return [job(schedule, key, seed) for seed in SEEDS]


@pytest.mark.crew(jobs=schedules)
@pytest.mark.parametrize("key", BY_KEY)
def test_nothing_confirmed_is_lost_at_any_change_of_the_disk(
    key: str, results: list[CrashReport], report: CrashReport
) -> None:
    for part in results:
        report.merge(part)
    tally = report.tally(BY_KEY[key].name)
    assert tally.failures == []
    assert tally.at_syncs > 200, "the load was too small to prove anything"


class Control(NamedTuple):
    """A load without syncs. Attributes: without: see Recording.points; options: of the store."""

    key: str
    name: str
    without: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    profile: Profile = SPARSE


NEVER = {"journal_disk_sync_strategy": "never"}
CONTROLS = (
    Control("never", "journal_disk_sync_strategy = 'never'", options=NEVER),
    Control("data", "a disk that does not sync data", "sync"),
    Control("names", "a disk that does not sync names", "names"),
    Control(
        "map-never", "journal_disk_sync_strategy = 'never' with MAPPED", options=NEVER, profile=MAP
    ),
    Control("map-flush", "a disk that syncs writes, but no mapped page", "flush", profile=MAP),
    Control(
        "folders-data", "directories of destinations without synced data", "sync", profile=FOLDERS
    ),
    Control(
        "folders-names",
        "directories of destinations without synced names",
        "names",
        profile=FOLDERS,
    ),
    Control("bulk-data", "small state without synced data", "sync", profile=BULK),
    Control("bulk-names", "small state without synced names", "names", profile=BULK),
    Control("streamed-data", "large bodies without synced data", "sync", profile=STREAMED),
    Control("streamed-names", "large bodies without synced names", "names", profile=STREAMED),
)


CONTROL_BY_KEY = {item.key: item for item in CONTROLS}


def controlled(key: str) -> CrashReport:
    """Check some points of a load without syncs."""
    control = CONTROL_BY_KEY[key]
    profile = control.profile
    report = CrashReport(key)

    async def scenario(directory: Path) -> None:
        recording, model = await record(directory / "run", 1, profile, **control.options)
        points = recording.points([1], without=control.without)
        for point in islice(points, 20, None, CONTROL_STEP):
            problem = await problem_at(point, model, directory / "start", profile, fate=Fate.KEPT)
            report.add(control.name, point, problem, is_control=True)

    with fast_directory(TEMPORARY) as name:
        asyncio.run(scenario(Path(name)))
    report.stop()
    return report


@pytest.mark.crew(jobs=lambda key: [job(controlled, key)])
@pytest.mark.parametrize("key", CONTROL_BY_KEY)
def test_without_syncs_the_same_check_finds_losses(
    key: str, results: list[CrashReport], report: CrashReport
) -> None:
    """The negative control: a check that cannot fail proves nothing."""
    report.merge(results[0])
    tally = report.tally(CONTROL_BY_KEY[key].name, is_control=True)
    assert len(tally.failures) > tally.points // 4, (
        f"{len(tally.failures)} of {tally.points} points were caught"
    )


CALLS = {
    Call.WRITE: (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    Call.SYNC: (errno.EIO, errno.ENOSPC),
    Call.PREALLOCATE: (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    Call.CREATE: (errno.ENOSPC, errno.EDQUOT, errno.EMFILE),
    Call.RENAME: (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    Call.SYNC_DIRECTORY: (errno.EIO,),
}


CALL_BY_KEY = {call.name.lower(): call for call in CALLS}


def failing_calls(call_key: str, key: str) -> CrashReport:
    """The n-th call of its kind fails, for every n up to 25 and some later ones."""
    call = CALL_BY_KEY[call_key]
    profile = BY_KEY[key]._replace(batches=50)
    errors = " or ".join(errno.errorcode[number] for number in CALLS[call])
    report = CrashReport(key)
    tally = report.tally(f"the n-th {call.value} fails with {errors}")

    async def scenario(directory: Path) -> None:
        for number in CALLS[call]:
            for nth in [*range(1, 26), *range(30, 130, 10)]:
                faults = Faults(errors={(call, nth): number})
                where = directory / f"{number}-{nth}"
                problem, storage = await live_with_faults(where, nth, profile, faults)
                if storage.count_of(call) < nth:
                    break  # the load makes no more calls of this kind
                tally.points += 1
                if problem:
                    tally.failures.append(
                        f"load {profile.name!r} seed {nth}, {call.value} number {nth} fails with "
                        f"{errno.errorcode[number]}: {problem}"
                    )

    with fast_directory(TEMPORARY) as name:
        asyncio.run(scenario(Path(name)))
    tally.recordings = tally.points
    report.stop()
    return report


@pytest.mark.crew(jobs=lambda call, key: [job(failing_calls, call, key)])
@pytest.mark.parametrize("call", CALL_BY_KEY)
@pytest.mark.parametrize("key", ["sparse", "map", "folders", "streamed"])
def test_a_call_that_fails_at_any_time_loses_nothing_confirmed(
    call: str, key: str, results: list[CrashReport], report: CrashReport
) -> None:
    [part] = results
    report.merge(part)
    assert part.failures == []
    assert part.points >= 10, "too few calls of this kind to prove anything"


RESTART_NAME = "a sync fails, a restart, and the power goes later"
#: Schedules whose loads have syncs that fail, or too few handles, one job each.
LIVE_KEYS = ("steady", "state", "long", "sparse", "map", "folders", "streamed")


def restarts(key: str) -> CrashReport:
    """The n-th sync fails; a program that reads what the disk never got goes on."""
    profile = BY_KEY[key]._replace(batches=50)
    report = CrashReport(key)
    tally = report.tally(RESTART_NAME)

    async def scenario(directory: Path) -> None:
        for nth in range(1, amount(101, 401)):
            faults = Faults(errors={(Call.SYNC, nth % 100 or 100): errno.EIO})
            problem, storage = await restart_after_faults(
                directory / str(nth), nth, profile, faults
            )
            if storage.count_of(Call.SYNC) < (nth % 100 or 100):
                continue  # it had so many syncs only after the restart
            tally.points += 1
            if problem:
                tally.failures.append(
                    f"load {profile.name!r} seed {nth}, sync {nth % 100}: {problem}"
                )

    with fast_directory(TEMPORARY) as name:
        asyncio.run(scenario(Path(name)))
    tally.recordings = tally.points
    report.stop()
    return report


@pytest.mark.crew(jobs=lambda: [job(restarts, key) for key in LIVE_KEYS])
def test_after_a_failed_sync_and_a_restart_the_power_loses_nothing_confirmed(
    results: list[CrashReport], report: CrashReport
) -> None:
    """Fault 2: bytes are replayed that are in memory only; their pages are clean, so that a sync of
    them does nothing. What is confirmed on top of them is lost with them, or the start fails.
    """
    assert [problem for part in results for problem in part.failures] == []
    assert all(part.points >= 10 for part in results), "too few syncs to prove anything"
    for part in results:
        report.merge(part)


RESTART_CONTROL = "a restart that relies on what it read back"


def credulous_restarts(key: str) -> CrashReport:
    """The same without writing again what was read back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unproven, "rewrite", lambda _self: None)
        report = restarts(key)
    report.controls[RESTART_CONTROL] = report.tallies.pop(RESTART_NAME)
    return report


@pytest.mark.crew(jobs=lambda: [job(credulous_restarts, key) for key in ("steady", "sparse")])
def test_a_restart_that_relies_on_what_it_read_back_loses_messages(
    results: list[CrashReport], report: CrashReport
) -> None:
    """The negative control of the test above."""
    for part in results:
        report.merge(part)
    assert len(report.tally(RESTART_CONTROL, is_control=True).failures) > 5


HANDLES_NAME = "for some batches no file can be opened (EMFILE, ENFILE)"


def few_handles(key: str) -> CrashReport:
    """Now and then nothing can be opened; afterwards the store works on without a restart."""
    profile = BY_KEY[key]._replace(batches=50)
    report = CrashReport(key)
    tally = report.tally(HANDLES_NAME)

    async def scenario(directory: Path) -> None:
        for seed in range(amount(20, 100)):
            error = (errno.EMFILE, errno.ENFILE)[seed % 2]
            problem, count = await live_with_few_handles(
                directory / str(seed), seed, profile, error
            )
            assert problem or count > 20, "too few batches to prove anything"
            tally.points += 1
            if problem:
                tally.failures.append(f"load {profile.name!r} seed {seed}: {problem}")

    with fast_directory(TEMPORARY) as name:
        asyncio.run(scenario(Path(name)))
    tally.recordings = tally.points
    report.stop()
    return report


@pytest.mark.crew(jobs=lambda: [job(few_handles, key) for key in LIVE_KEYS])
def test_when_files_can_be_opened_again_the_store_works_on(
    results: list[CrashReport], report: CrashReport
) -> None:
    """Fault 17: running out of descriptors makes the store read-only until a restart."""
    assert [problem for part in results for problem in part.failures] == []
    for part in results:
        report.merge(part)


SLOW_NAME = "slow syncs, and the power goes in the middle of one"


def slow_syncs(seeds: list[int]) -> CrashReport:
    """Every third sync is slow, and the power goes while they are under way."""
    report = CrashReport(SLOW_NAME)
    tally = report.tally(SLOW_NAME)

    async def scenario(directory: Path, seed: int) -> None:
        for cut in range(4 + seed, 140, 20):
            slow = dict.fromkeys(range(1, 200, 3), 0.004)
            faults = Faults(cut_at_sync=cut, slow_syncs=slow)
            problem, _ = await live_with_faults(directory / str(cut), seed, SPARSE, faults)
            tally.points += 1
            tally.at_syncs += 1
            if problem:
                tally.failures.append(f"seed {seed}, cut at sync {cut}: {problem}")

    for seed in seeds:
        with fast_directory(TEMPORARY) as name:
            asyncio.run(scenario(Path(name), seed))
    tally.recordings = tally.points
    report.stop()
    return report


@pytest.mark.crew(
    jobs=lambda: [job(slow_syncs, [*range(begin, begin + 5)]) for begin in (0, 5, 10, 15)]
)
def test_a_sync_that_is_slow_when_the_power_goes_confirms_nothing(
    results: list[CrashReport], report: CrashReport
) -> None:
    for part in results:
        report.merge(part)
    assert report.tally(SLOW_NAME).failures == []


def test_there_were_enough_crash_points(report: CrashReport) -> None:
    """Runs last. Fails when somebody makes the loads smaller (or selects single tests)."""
    assert report.points >= POINTS_MIN
    assert report.failures == []
    assert len(report.controls) == len(CONTROLS) + 1  # and that of the restarts
