"""A bit is wrong in any byte of any file of a closed journal: it is noticed, or it does not matter.

Every byte of a tiny journal has its turn, each with one bit (which one depends on the offset); of a
larger one, with files used again and compacted, a sample by seed. The ordinary suite runs a short
sample (tests/plugins/store_journal/test_damage.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_crash import fast_directory
from journal_flips import (
    PROFILE,
    TINY,
    flip,
    make_journal,
    outcome,
    outcome_of_flip,
    padding,
    places,
)

from tidegate_store_journal._marker import take_marker
from tidegate_store_journal._metadata import MetadataError
from tidegate_store_journal._storage import DirectoryStorage

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "bit-flip-report.md"
FINE = {"harmless", "refused", "reported"}
SAMPLE = 250


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


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def flip_all(
    work: Path, where: list[tuple[str, int]], original: Path, model: Any, **options: Any
) -> tuple[Counter[str], list[str]]:
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    for name, offset in where:
        result = await outcome_of_flip(original, work, name, offset, model, **options)
        outcomes[result if result in FINE else "NOT NOTICED"] += 1
        if result not in FINE:
            problems.append(f"{name} offset {offset}: {result}")
    return outcomes, problems


@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
@pytest.mark.parametrize("rebuilds", [True, False], ids=["rebuilt", "with metadata"])
def test_a_bit_in_any_byte_of_a_tiny_journal(
    tmp_path: Path, policy: str, rebuilds: bool, report: dict[str, Counter[str]]
) -> None:
    async def scenario(directory: Path) -> list[str]:
        original = directory / "original"
        model = await make_journal(original, TINY)
        if rebuilds:
            shutil.rmtree(original / "journal" / "metadata")
        where = [item for item in places(original) if not item[0].startswith("metadata")]
        assert len(where) > 4000
        # The journal alone: every byte. With the other policy, or what is also in the checkpoint, a
        # share of them: that is about what follows.
        step = {(True, "refuse"): 1, (False, "refuse"): 3}.get((rebuilds, policy), 6)
        where = where[::step]
        found, problems = await flip_all(
            directory / "work", where, original, model, damaged_journal_policy=policy
        )
        name = f"every {'' if step == 1 else f'{step}th '}byte of a tiny journal ({len(where)})"
        report[f"{name}, {policy}, {'rebuilt' if rebuilds else 'with metadata'}"] = found
        assert found["refused"] + found["reported"] > len(where) // (4 if rebuilds else 40)
        return problems

    with fast_directory(tmp_path) as directory:
        assert asyncio.run(scenario(Path(directory))) == []


def test_a_bit_in_any_byte_of_padding(tmp_path: Path, report: dict[str, Counter[str]]) -> None:
    """Sixty-four flips a start, far apart: what is found behind the end is cut off and kept."""

    async def scenario(directory: Path) -> list[str]:
        original = directory / "original"
        model = await make_journal(original, TINY)
        shutil.rmtree(original / "journal" / "metadata")
        where = padding(original)
        assert len(where) > 60_000
        outcomes: Counter[str] = Counter()
        problems: list[str] = []
        step = len(where) // 64
        for first in range(step):
            work = directory / "work"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(original, work)
            for name, offset in where[first::step]:
                flip(work / "journal" / name, offset)
            result = await outcome(work, model)
            outcomes[result if result in FINE else "NOT NOTICED"] += 1
            if result not in FINE:
                problems.append(f"from {where[first]}: {result}")
        report["every byte of padding, 64 a start"] = outcomes
        return problems

    with fast_directory(tmp_path) as directory:
        assert asyncio.run(scenario(Path(directory))) == []


@pytest.mark.parametrize("policy", ["refuse", "quarantine"])
@pytest.mark.parametrize("rebuilds", [True, False], ids=["rebuilt", "with metadata"])
def test_a_bit_in_a_sample_of_a_journal_with_compacted_files(
    tmp_path: Path, policy: str, rebuilds: bool, report: dict[str, Counter[str]]
) -> None:
    async def scenario(directory: Path) -> list[str]:
        original = directory / "original"
        model = await make_journal(original, PROFILE)
        if rebuilds:
            shutil.rmtree(original / "journal" / "metadata")
        where = random.Random(7).sample(places(original), SAMPLE)
        found, problems = await flip_all(
            directory / "work", where, original, model, damaged_journal_policy=policy
        )
        report[
            f"{SAMPLE} bytes of a compacted journal, {policy}, "
            f"{'rebuilt' if rebuilds else 'with metadata'}"
        ] = found
        return problems

    with fast_directory(tmp_path) as directory:
        assert asyncio.run(scenario(Path(directory))) == []


def test_a_bit_in_any_byte_of_the_metadata_store_breaks_its_seal(
    tmp_path: Path, report: dict[str, Counter[str]]
) -> None:
    with fast_directory(tmp_path) as name:
        directory = Path(name)
        asyncio.run(make_journal(directory, TINY))
        journal = directory / "journal"
        path = journal / "metadata" / "data.mdb"
        sealed = (journal / "index-store-state").read_bytes()
        storage = DirectoryStorage(journal)
        outcomes: Counter[str] = Counter()
        for offset in range(path.stat().st_size):
            flip(path, offset)
            try:
                take_marker(storage, journal / "metadata")
                outcomes["NOT NOTICED"] += 1
            except MetadataError:
                outcomes["rebuilt"] += 1
            (journal / "index-store-state").write_bytes(sealed)
            flip(path, offset)
        assert take_marker(storage, journal / "metadata")
        report["every byte of the metadata store"] = outcomes
        assert outcomes.keys() == {"rebuilt"}
