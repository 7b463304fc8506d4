"""Cut the power at every change of a recorded run, and account for every crash point in a report.

A load runs once on a :class:`~tidegate.testing.faulty_storage.FaultyDisk` while a
:class:`Recording` notes everything that happens to the disk, and what the load was promised when.
:meth:`Recording.points` then replays the run without the program. Before every single change there
is a :class:`CrashPoint`, whose disk has lost, torn, reordered or garbled what was not synced at that
moment, by seed. So one run of a second gives thousands of crash points, at every sync and between
them, and each can be reproduced from its seed and number::

    recording = Recording()
    disk = FaultyDisk(seed)
    with recording.of(disk):
        ...                              # run the load; recording.promise(n) after confirmation n
    for point in recording.points([1, 2]):
        disk = point.disk(metadata_directory)
        ...                              # open the store on disk.start(), compare with promise n

Add each outcome to a :class:`CrashReport`, which becomes a file for people.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tidegate.testing._unsynced import FATES, PAGE_FATES
from tidegate.testing.faulty_storage import Change, FaultyDisk

#: Changes that make something durable.
_SYNCS: Final = frozenset({"sync", "names"})
#: Failures that a report describes in full.
_FAILURES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The moment before change *number* of a recording.

    Attributes:
        number: from 0; kind: the change that was prevented, "end" after the last one.
        seed: decides what becomes of unsynced writes.
        promised: the last promise before this point, see :meth:`Recording.promise`.
        files: the last state of files that are not on the disk (see :meth:`Recording.keep`);
            files_before: the state before that.
    """

    number: int
    kind: str
    seed: int
    promised: int
    files: dict[str, bytes]
    files_before: dict[str, bytes]
    _disk: FaultyDisk

    @property
    def is_at_sync(self) -> bool:
        """The power failed when a sync was called, before it did anything."""
        return self.kind in _SYNCS

    def disk(self, metadata_directory: Path | None = None) -> FaultyDisk:
        """The disk after the power cut. *metadata_directory*: see FaultyDisk."""
        disk = self._disk.fork(self.seed, metadata_directory=metadata_directory)
        disk.cut_power()
        return disk


class Recording:
    """What happened to a disk, and what was promised when. Thread-safe while recording."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._promises: list[tuple[int, int]] = []  # changes so far, promise
        self._kept: list[tuple[int, dict[str, bytes]]] = []  # changes so far, files
        self._mutex = threading.Lock()

    @contextmanager
    def of(self, disk: FaultyDisk) -> Generator[None]:
        """Record what happens to *disk*, which must be empty, until the context ends."""
        assert not disk.names(), "a recording begins with an empty disk"
        disk.observer = self._append
        try:
            yield
        finally:
            disk.observer = None

    def _append(self, change: Change) -> None:
        with self._mutex:
            self._changes.append(change)

    def promise(self, number: int) -> None:
        """From now on the program guarantees state *number*: a later crash may not lose it."""
        with self._mutex:
            self._promises.append((len(self._changes), number))

    def keep(self, files: dict[str, bytes]) -> None:
        """From now on these files, which are beside the disk, are durable (the metadata store)."""
        with self._mutex:
            self._kept.append((len(self._changes), files))

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def changes(self) -> Sequence[Change]:
        """What happened, in order: to check that a load does what it is for."""
        return self._changes

    @property
    def sync_count(self) -> int:
        """Number of changes that make something durable."""
        return sum(change.kind in _SYNCS for change in self._changes)

    def points(
        self, seeds: Sequence[int], *, more_at_syncs: Sequence[int] = (), without: str = ""
    ) -> Iterator[CrashPoint]:
        """Every change once per seed, and every sync once more per seed of *more_at_syncs*.

        Args: without: what silently does nothing, on a disk that lies: ``sync``, ``names``, or
            ``flush`` (a sync makes written bytes durable, but not those stored through mappings).
            Every check must fail then, or it proves nothing.
        """
        disk = FaultyDisk()
        inodes: dict[int, Any] = {}
        promised = 0
        files: dict[str, bytes] = {}
        files_before = files
        end = len(self._changes) + 1
        promises, kept = iter([*self._promises, (end, 0)]), iter([*self._kept, (end, files)])
        next_promise, next_kept = next(promises), next(kept)
        for number, change in enumerate([*self._changes, Change("end")]):
            while next_promise[0] <= number:
                promised = next_promise[1]
                next_promise = next(promises)
            while next_kept[0] <= number:
                files_before, files = files, next_kept[1]
                next_kept = next(kept)
            for seed in [*seeds, *(more_at_syncs if change.kind in _SYNCS else ())]:
                yield CrashPoint(number, change.kind, seed, promised, files, files_before, disk)
            if change.kind in (without, "end"):
                continue
            if change.kind == "sync" and without == "flush":
                change = change._replace(kind="sync without stores")
            disk.repeat(change, inodes)


@dataclass(slots=True)
class Tally:
    """Outcomes of one kind of schedule. Attributes: recordings: runs of a load."""

    recordings: int = 0
    points: int = 0
    at_syncs: int = 0
    failures: list[str] = field(default_factory=list[str])


class CrashReport:
    """Counts crash points and writes a report of what was done and found, for people.

    A *control* is a schedule that must fail (syncs turned off): one that does not is a failure of
    the check itself.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.tallies: dict[str, Tally] = {}
        self.controls: dict[str, Tally] = {}
        #: What the loads exercise, one line each.
        self.covered: list[str] = []
        #: What is checked after each cut, one line each.
        self.checks: list[str] = []
        #: How to reproduce a failure; one line each.
        self.repeating: list[str] = []
        self.cut_before: Counter[str] = Counter()
        self._begin = time.monotonic()
        self._seconds = 0.0  # of work, once known

    def tally(self, name: str, *, is_control: bool = False) -> Tally:
        """The tally called *name*, created if missing."""
        tallies = self.controls if is_control else self.tallies
        return tallies.setdefault(name, Tally())

    def add(self, name: str, point: CrashPoint, problem: str, *, is_control: bool = False) -> None:
        """Count a checked crash point; *problem* is "" when nothing was wrong."""
        tally = self.tally(name, is_control=is_control)
        tally.points += 1
        tally.at_syncs += point.is_at_sync
        if not is_control:
            self.cut_before[point.kind] += 1
        if problem:
            tally.failures.append(problem)

    def stop(self) -> None:
        """End the work that this report counts: it took the time since the report was made."""
        self._seconds = time.monotonic() - self._begin

    def merge(self, other: CrashReport) -> None:
        """Add what *other* has counted, the stopped report of a part of the work.

        Reports can be pickled, so a part may run in another process.
        """
        for mine, theirs in ((self.tallies, other.tallies), (self.controls, other.controls)):
            for name, tally in theirs.items():
                into = mine.setdefault(name, Tally())
                into.recordings += tally.recordings
                into.points += tally.points
                into.at_syncs += tally.at_syncs
                into.failures += tally.failures
        self.cut_before.update(other.cut_before)
        self._seconds += other._seconds

    @property
    def points(self) -> int:
        """Crash points in all, without controls."""
        return sum(tally.points for tally in self.tallies.values())

    @property
    def failures(self) -> list[str]:
        """What went wrong at any crash point, and controls that found nothing."""
        found = [problem for tally in self.tallies.values() for problem in tally.failures]
        found += [
            f"the negative control {name!r} found nothing: the check cannot fail"
            for name, tally in self.controls.items()
            if not tally.failures
        ]
        return found

    def text(self) -> str:
        """The report, in Markdown."""
        verdict = f"{len(self.failures)} FAILURES" if self.failures else "no failure"
        caught = sum(bool(tally.failures) for tally in self.controls.values())
        seconds = self._seconds or time.monotonic() - self._begin
        lines = [
            f"# {self.title}",
            "",
            f"{self.points} crash points, {verdict}.",
            (
                f"Python {platform.python_version()} on {platform.platform(terse=True)}, "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s of work."
            ),
            "",
            "| schedule | recorded loads | crash points | of these at a sync | failures |",
            "| --- | ---: | ---: | ---: | ---: |",
            *(
                f"| {name} | {t.recordings} | {t.points} | {t.at_syncs} | {len(t.failures)} |"
                for name, t in self.tallies.items()
            ),
            *(["", "What the schedules cover:", ""] if self.covered else []),
            *(f"- {item}" for item in self.covered),
            "",
            "Negative controls: the same check with syncs that do nothing. It must find losses (not at",
            "every point: some cuts take nothing that was confirmed).",
            "",
            "| control | crash points | losses found |",
            "| --- | ---: | ---: |",
            *(f"| {name} | {t.points} | {len(t.failures)} |" for name, t in self.controls.items()),
            "",
            "What was checked at each point:",
            "",
            *(f"- {check}" for check in self.checks),
            "",
            f"What became of unsynced writes, by seed and write by write: {', '.join(FATES)}.",
            "What became of unsynced stores through mappings (MAPPED), page by page: "
            + ", ".join(PAGE_FATES)
            + ".",
            "Of unsynced changes to a directory the first few were kept.",
            "",
            "`names` is the sync of a directory, `store` one into a mapping, `write` a system call,",
            "`end` the end of the load. The power went just before (points): "
            + ", ".join(f"{kind} {count}" for kind, count in sorted(self.cut_before.items()))
            + ".",
        ]
        lines += ["", *self.repeating] if self.repeating else []
        if self.failures:
            lines += ["", "## Failures", ""]
            lines += [f"- {problem}" for problem in self.failures[:_FAILURES_MAX]]
            if len(self.failures) > _FAILURES_MAX:
                lines.append(f"- and {len(self.failures) - _FAILURES_MAX} more")
        lines += [
            "",
            (
                f"Result: {self.points} crash points in {len(self.tallies)} schedules, {verdict}; "
                f"{caught} of {len(self.controls)} negative controls found losses."
            ),
        ]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Write the report. Raises: OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(), encoding="utf-8")
