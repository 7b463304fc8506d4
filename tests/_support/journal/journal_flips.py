"""One bit of a small journal is wrong: it is noticed, or it does not matter.

The journal has everything in it: several data files, one of them used again and compacted into, live
lists, bindings, a metadata store, dead files.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

from journal_crash import problem_of
from journal_load import EAGER, Model, Profile, load, new_store

from tidegate.spi import CorruptRecordError, StoreError

#: Small bodies, so that the journal is small, but enough of them to use files again.
PROFILE = Profile(
    "flips",
    batches=90,
    sizes=(5, 40, 9000),
    staying=0.2,
    small=0.4,
    unordered=0.2,
    checkpoints=0.2,
    options=EAGER,
)


#: So few bytes that each of them can have its turn.
TINY = PROFILE._replace(batches=18, sizes=(5, 40), checkpoints=0.1)
#: Much small state, whose first home was put away with the oldest data files.
CARRIED = PROFILE._replace(batches=40, sizes=(5, 9000), small=0.8, checkpoints=0.3)


async def make_journal(directory: Path, profile: Profile = PROFILE, seed: int = 3) -> Model:
    """A journal in *directory*, closed. Returns: what is in it."""
    model = Model()
    store = new_store(directory, None, **profile.options)
    await store.open()
    await load(store, model, random.Random(seed), profile)
    await store.close()
    # Only what was confirmed counts: everything was, by the clean stop.
    model.states = model.states[-1:]
    model.confirmed = 0
    return model


def flip(path: Path, offset: int) -> None:
    """Turn one bit of the byte at *offset*; which one depends on the offset."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << offset % 8]))


async def outcome(directory: Path, model: Model, **options: Any) -> str:
    """Open the journal and read all of it.

    Returns: ``harmless``, ``refused`` (at the start), ``reported`` (a note, or an error at the page),
        or what is wrong although nobody said anything.
    """
    store = new_store(directory, None, **options)
    try:
        state = await store.open()
    except CorruptRecordError:
        return "refused"
    try:
        problem = await problem_of(store, state, model, 0)
    except CorruptRecordError:
        return "reported"
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await store.close()
    if not problem:
        return "harmless"
    if "is not what was sent" in problem:
        return problem  # no note excuses that
    has_report = any((directory / "journal").glob("damage-*.report"))
    return "reported" if state.report.notes or has_report else problem


def copy_journal(original: Path, work: Path) -> None:
    """In place of what was there. Nobody writes into the reserve, so it need not be copied."""

    def copy(source: str, target: str) -> None:
        if source.endswith("/reserve"):
            os.link(source, target)
        else:
            shutil.copyfile(source, target)

    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(original, work, copy_function=copy)


async def outcome_of_flip(
    original: Path, work: Path, name: str, offset: int, model: Model, **options: Any
) -> str:
    """A copy of the journal *original* with one bit turned, opened."""
    copy_journal(original, work)
    flip(work / "journal" / name, offset)
    return await outcome(work, model, **options)


def places(directory: Path) -> list[tuple[str, int]]:
    """(file, offset) of every byte of the closed journal in *directory* that means something.

    Left out are the lock, LMDB's lock and the reserve, which nobody reads, and of each other file the
    zeros behind its last byte, which :func:`padding` covers.
    """
    root = directory / "journal"
    found: list[tuple[str, int]] = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in ("lock", "lock.mdb", "reserve"):
            used = len(path.read_bytes().rstrip(b"\0"))
            found += [(str(path.relative_to(root)), offset) for offset in range(used)]
    return found


def padding(directory: Path) -> list[tuple[str, int]]:
    """(data file, offset) of every byte of padding."""
    root = directory / "journal"
    found: list[tuple[str, int]] = []
    for path in sorted(root.glob("*.data")):
        data = path.read_bytes()
        found += [(path.name, offset) for offset in range(len(data.rstrip(b"\0")), len(data))]
    return found
