"""What may have become of the journal's metadata store when the machine comes up again.

The faulty disk passes LMDB's directory through; nothing happens to it in a simulated power cut. So
the crash schedules put there, by seed, what a disk, a restored copy or a person may leave.
"""

from __future__ import annotations

import enum
import random
import shutil
from pathlib import Path
from typing import Final

from tidegate.testing.crash_schedules import CrashPoint

#: LMDB's file, and its page size on every machine that the tests run on.
DATA_NAME: Final = "data.mdb"
PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512


class Fate(enum.Enum):
    """What is found of the metadata store."""

    KEPT = "as it was committed last"
    OLDER = "as it was one checkpoint before"
    FLIPPED = "with one wrong bit"
    TORN = "with a page that is in part older"
    MISSING = "not there"
    UNUSED = "not used (persistent_index = false)"


#: A draw for each point, most often what a crash really leaves.
_DRAWS: Final = (
    *[Fate.KEPT] * 5,
    *[Fate.OLDER, Fate.FLIPPED, Fate.TORN] * 2,
    *[Fate.MISSING, Fate.UNUSED],
)


def fate_of(point: CrashPoint) -> Fate:
    """By number and seed of the point."""
    return random.Random(f"fate {point.number}.{point.seed}").choice(_DRAWS)


def put_metadata(point: CrashPoint, fate: Fate, directory: Path) -> None:
    """Make *directory* what is found at the start after the cut at *point*."""
    shutil.rmtree(directory, ignore_errors=True)
    if fate in (Fate.MISSING, Fate.UNUSED):
        return
    directory.mkdir(parents=True)
    data = (point.files_before if fate is Fate.OLDER else point.files).get(DATA_NAME)
    if data is None:
        return  # no checkpoint so far
    chance = random.Random(f"place {point.number}.{point.seed}")
    if fate is Fate.FLIPPED:
        data = flipped(data, chance)
    elif fate is Fate.TORN:
        data = torn(data, point.files_before.get(DATA_NAME, b""), chance)
    (directory / DATA_NAME).write_bytes(data)


def flipped(data: bytes, chance: random.Random) -> bytes:
    """One bit turned, three times in four in a byte that means something."""
    offset = chance.randrange(len(data))
    if chance.random() < 0.75:
        for _ in range(100):
            if data[offset]:
                break
            offset = chance.randrange(len(data))
    changed = bytearray(data)
    changed[offset] ^= 1 << chance.randrange(8)
    return bytes(changed)


def torn(data: bytes, before: bytes, chance: random.Random) -> bytes:
    """Of one page that the last checkpoint wrote some sectors are as they were before it."""
    before = before.ljust(len(data), b"\0")
    changed = [
        page
        for page in range(0, len(data), PAGE_BYTES)
        if data[page : page + PAGE_BYTES] != before[page : page + PAGE_BYTES]
    ]
    if not changed:
        return data
    page = chance.choice(changed)
    result = bytearray(data)
    for sector in range(page, page + PAGE_BYTES, SECTOR_BYTES):
        if chance.random() < 0.5:
            result[sector : sector + SECTOR_BYTES] = before[sector : sector + SECTOR_BYTES]
    return bytes(result)
