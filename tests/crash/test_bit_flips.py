"""A bit is wrong in any byte of any file of a closed journal: it is noticed, or it does not matter.

Every byte of a tiny journal has its turn, each with one bit (which one depends on the offset); of a
larger one, with files used again and compacted, a sample by seed. The ordinary suite runs a short
sample (tests/plugins/store_journal/start/test_damage.py).
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_crew import Job, job
from journal_crash import fast_directory
from journal_flips import (
    CARRIED,
    PROFILE,
    TINY,
    copy_journal,
    flip,
    make_journal,
    outcome,
    outcome_of_flip,
    padding,
    places,
)
from metadata_kit import (
    contents,
    everything,
    state,
    write,
)
from numbered import ack, add

from tidegate.spi import Message, RecordDelivery, SetRetained
from tidegate_store_journal.checkpoint.marker import take_marker
from tidegate_store_journal.checkpoint.metadata import LmdbMetadata, MetadataError
from tidegate_store_journal.index import changes as _changes
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.storage import DirectoryStorage

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
TEMPORARY = Path(tempfile.gettempdir())
REPORT = ROOT / "build" / "bit-flip-report.md"
FINE = {"harmless", "refused", "reported"}
SAMPLE = 250
#: Jobs that share the bytes of a test among them.
PARTS = 4
#: Journals, and the files in them whose every byte has its turn.
FILES = {
    "tiny": (TINY, ("journal-", "index-store-state")),
    "carried": (CARRIED, ("bindings-",)),
    "compacted": (PROFILE, ("",)),
}

#: Outcomes with their numbers, what was wrong, and how many bytes all parts have together.
Part = tuple[Counter[str], list[str], int]


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, Counter[str]]]:
    """Outcomes by test; written at the end, whatever they are."""
    found: dict[str, Counter[str]] = {}
    yield found
    lines = ["# One wrong bit in a closed journal", "", "| flipped | outcomes |", "| --- | --- |"]
    for name, outcomes in found.items():
        told = ", ".join(f"{kind} {count}" for kind, count in outcomes.most_common())
        lines.append(f"| {name} | {told} |")
    lines += [
        "",
        "*refused*: the start names file and offset. *reported*: the start or the page says what is",
        "damaged and the rest is served. *harmless*: nothing changed for anybody. Never: something",
        "else was served than what was sent, or less without a word.",
    ]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def total(results: list[Part]) -> Counter[str]:
    """All outcomes. Fails when one of them is not fine."""
    assert [problem for _, problems, _ in results for problem in problems] == []
    return sum((outcomes for outcomes, _, _ in results), Counter[str]())


# What follows in pairs: a job, which runs in a process of its own (tests/_support/runner/crash_crew.py) and
# takes each PARTS-th byte, and the test that adds these up.


def flips(
    profile_name: str, policy: str, rebuilds: bool, step: int, sample: int, part: int
) -> Part:
    """Flip one byte after the other: each *step*-th of the files that the profile is for, or a *sample*
    of all."""
    outcomes: Counter[str] = Counter()
    problems: list[str] = []

    async def scenario(directory: Path) -> int:
        original = directory / "original"
        profile, prefix = FILES[profile_name]
        model = await make_journal(original, profile)
        if rebuilds:
            shutil.rmtree(original / "journal" / "metadata")
        where = places(original)
        if sample:
            where = random.Random(7).sample(where, sample)
        else:
            where = [item for item in where if item[0].startswith(prefix)]
            assert len(where) > 4000
        where = where[::step]
        for name, offset in where[part::PARTS]:
            options: dict[str, Any] = {"damaged_journal_policy": policy}
            work = directory / "work"
            result = await outcome_of_flip(original, work, name, offset, model, **options)
            outcomes[result if result in FINE else "NOT NOTICED"] += 1
            if result not in FINE:
                problems.append(f"{name} offset {offset}: {result}")
        return len(where)

    with fast_directory(TEMPORARY) as name:
        count = asyncio.run(scenario(Path(name)))
    return outcomes, problems, count


def step_of(policy: str, rebuilds: bool) -> int:
    """The journal alone: every byte. With the other policy, or what is also in the checkpoint, a
    share of them: that is about what follows."""
    return {(True, "refuse"): 1, (False, "refuse"): 3}.get((rebuilds, policy), 6)


def tiny_jobs(policy: str, rebuilds: bool) -> list[Job]:
    step = step_of(policy, rebuilds)
    return [job(flips, "tiny", policy, rebuilds, step, 0, part) for part in range(PARTS)]


@pytest.mark.crew(jobs=tiny_jobs)
@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
@pytest.mark.parametrize("rebuilds", [True, False], ids=["rebuilt", "with metadata"])
def test_a_bit_in_any_byte_of_a_tiny_journal(
    policy: str, rebuilds: bool, results: list[Part], report: dict[str, Counter[str]]
) -> None:
    step, count = step_of(policy, rebuilds), results[0][2]
    found = total(results)
    name = f"every {'' if step == 1 else f'{step}th '}byte of a tiny journal ({count})"
    report[f"{name}, {policy}, {'rebuilt' if rebuilds else 'with metadata'}"] = found
    assert found["refused"] + found["reported"] > count // (4 if rebuilds else 40)


def carried_jobs(policy: str, rebuilds: bool) -> list[Job]:
    step = step_of(policy, rebuilds) * 2
    return [job(flips, "carried", policy, rebuilds, step, 0, part) for part in range(PARTS)]


@pytest.mark.crew(jobs=carried_jobs)
@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
@pytest.mark.parametrize("rebuilds", [True, False], ids=["rebuilt", "with metadata"])
def test_a_bit_in_any_byte_of_a_bindings_journal(
    policy: str, rebuilds: bool, results: list[Part], report: dict[str, Counter[str]]
) -> None:
    """What is in the last carry only is in the journal still; what is older is nowhere else."""
    step, count = step_of(policy, rebuilds) * 2, results[0][2]
    found = total(results)
    name = f"every {step}th byte of a bindings journal ({count}), {policy}"
    report[f"{name}, {'rebuilt' if rebuilds else 'with metadata'}"] = found
    assert found["refused"] + found["reported"] > count // 3


def flips_of_padding(part: int) -> Part:
    """Sixty-four flips a start, far apart: what is found behind the end is cut off and kept."""
    outcomes: Counter[str] = Counter()
    problems: list[str] = []

    async def scenario(directory: Path) -> int:
        original = directory / "original"
        model = await make_journal(original, TINY)
        shutil.rmtree(original / "journal" / "metadata")
        where = padding(original)
        assert len(where) > 60_000
        step = len(where) // 64
        for first in range(part, step, PARTS):
            work = directory / "work"
            copy_journal(original, work)
            for name, offset in where[first::step]:
                flip(work / "journal" / name, offset)
            result = await outcome(work, model)
            outcomes[result if result in FINE else "NOT NOTICED"] += 1
            if result not in FINE:
                problems.append(f"from {where[first]}: {result}")
        return len(where)

    with fast_directory(TEMPORARY) as name:
        count = asyncio.run(scenario(Path(name)))
    return outcomes, problems, count


@pytest.mark.crew(jobs=lambda: [job(flips_of_padding, part) for part in range(PARTS)])
def test_a_bit_in_any_byte_of_padding(results: list[Part], report: dict[str, Counter[str]]) -> None:
    report["every byte of padding, 64 a start"] = total(results)


def sample_jobs(policy: str, rebuilds: bool) -> list[Job]:
    return [job(flips, "compacted", policy, rebuilds, 1, SAMPLE, part) for part in range(PARTS)]


@pytest.mark.crew(jobs=sample_jobs)
@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
@pytest.mark.parametrize("rebuilds", [True, False], ids=["rebuilt", "with metadata"])
def test_a_bit_in_a_sample_of_a_journal_with_compacted_files(
    policy: str, rebuilds: bool, results: list[Part], report: dict[str, Counter[str]]
) -> None:
    kind = "rebuilt" if rebuilds else "with metadata"
    report[f"{SAMPLE} bytes of a compacted journal, {policy}, {kind}"] = total(results)


def flips_of_sealed_metadata(part: int) -> Counter[str]:
    """Every PARTS-th byte of LMDB's file after a clean stop."""
    outcomes: Counter[str] = Counter()
    with fast_directory(TEMPORARY) as name:
        directory = Path(name)
        asyncio.run(make_journal(directory, TINY))
        journal = directory / "journal"
        path = journal / "metadata" / "data.mdb"
        sealed = (journal / "index-store-state").read_bytes()
        storage = DirectoryStorage(journal)
        for offset in range(part, path.stat().st_size, PARTS):
            flip(path, offset)
            try:
                take_marker(storage, journal / "metadata")
                outcomes["NOT NOTICED"] += 1
            except MetadataError:
                outcomes["rebuilt"] += 1
            (journal / "index-store-state").write_bytes(sealed)
            flip(path, offset)
        assert take_marker(storage, journal / "metadata")
    return outcomes


@pytest.mark.crew(jobs=lambda: [job(flips_of_sealed_metadata, part) for part in range(PARTS)])
def test_a_bit_in_any_byte_of_the_metadata_store_breaks_its_seal(
    results: list[Counter[str]], report: dict[str, Counter[str]]
) -> None:
    outcomes = sum(results, Counter[str]())
    report["every byte of the metadata store"] = outcomes
    assert outcomes.keys() == {"rebuilt"}


def flips_of_checkpoint(part: int, parts: int) -> tuple[Counter[str], list[str]]:
    """Each *parts*-th byte of LMDB's file after a kill, when there is no seal: the file is read, gets
    another checkpoint, and is read again. Either it says what it said, or it says that it is damaged.

    All bytes that mean something have their turn, and every eighth of the zeros.
    """
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    with fast_directory(TEMPORARY) as name:
        original, work = Path(name, "original"), Path(name, "work")
        index = everything()
        counted = range(100, 160)  # a row each: bytes that are not packed
        write(index, *[add(sequence) for sequence in counted])
        write(index, RecordDelivery(1, tuple(counted), tuple(counted)))
        metadata = LmdbMetadata(original)
        first = index.take_changes()
        metadata.save(first, state())
        write(index, add(160), ack(3, pending_list=2))
        metadata.save(index.take_changes(), state(2))  # so that there are free pages, too
        expected = [read(metadata)]
        write(index, add(161), SetRetained(Message("topic://t", b"newer")))
        later = index.take_changes()
        metadata.close()
        work.mkdir()
        data = (original / "data.mdb").read_bytes()
        metadata.save(later, state(3))
        expected.append(read(metadata))
        metadata.close()
        assert expected[0] != expected[1]
        where = [offset for offset, byte in enumerate(data) if byte or offset % 8 == 0]
        for offset in where[part::parts]:
            changed = bytearray(data)
            changed[offset] ^= 1 << offset % 8
            (work / "data.mdb").write_bytes(changed)
            metadata = LmdbMetadata(work)
            try:
                found = [read(metadata)]
                metadata.save(later, state(3))
                found.append(read(metadata))
            except (MetadataError, OSError):
                outcomes["rebuilt"] += 1
            else:
                outcomes["harmless" if found == expected else "NOT NOTICED"] += 1
                if found != expected:
                    problems.append(f"offset {offset}")
            finally:
                metadata.close()
    return outcomes, problems


def read(metadata: LmdbMetadata) -> dict[str, Any]:
    loaded = metadata.load(lambda _what, _done, _total: None)
    if loaded is None:  # a start rebuilds then, as it does when all is gone
        raise MetadataError("there is no checkpoint")
    try:
        return contents(loaded)
    except FormatError as error:
        # A piece that cannot be unpacked: never behind a CRC that is right.
        raise MetadataError(str(error)) from error


@pytest.mark.crew(jobs=lambda: [job(flips_of_checkpoint, part, PARTS) for part in range(PARTS)])
def test_a_bit_in_any_byte_of_the_metadata_store_after_a_kill(
    results: list[tuple[Counter[str], list[str]]], report: dict[str, Counter[str]]
) -> None:
    assert [problem for _, problems in results for problem in problems] == []
    outcomes = sum((found for found, _ in results), Counter[str]())
    report["every byte of the metadata store after a kill"] = outcomes
    assert outcomes["rebuilt"] > 1000


def flips_without_crcs() -> Counter[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_changes, "crc32c", lambda *_: 0)
        return flips_of_checkpoint(0, 3)[0]


@pytest.mark.crew(jobs=lambda: [job(flips_without_crcs)])
def test_without_crcs_in_the_metadata_store_the_same_check_finds_wrong_bits(
    results: list[Counter[str]],
) -> None:
    """The negative control: LMDB itself does not notice them."""
    assert results[0]["NOT NOTICED"] > 10
