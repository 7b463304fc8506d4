"""A recording gives the disk of every moment again, and a report says what was found."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tidegate.testing.crash_schedules import CrashReport, Recording
from tidegate.testing.faulty_storage import FaultyDisk, FaultyStorage


def run_once(recording: Recording) -> FaultyDisk:
    """Two files, one of them synced and renamed; promise 1 after that, promise 2 after more."""
    disk = FaultyDisk(1)
    with recording.of(disk):
        storage = disk.start()
        file = storage.open("a.tmp", create=True)
        file.pwritev([b"first"], 0)
        file.datasync()
        storage.rename("a.tmp", "a")
        storage.sync_directory()
        recording.promise(1)
        recording.keep({"side": b"1"})
        file.pwritev([b"second"], 5)
        file.datasync()
        recording.promise(2)
        storage.open("b", create=True).pwritev([b"x"], 0)
        storage.unlink("b")
    storage.open("later", create=True)  # not recorded any more
    return disk


def contents(storage: FaultyStorage) -> dict[str, bytes]:
    return {name: storage.open(name).pread(100, 0) for name in storage.list()}


def test_every_change_is_a_point_and_the_end_is_one_too() -> None:
    recording = Recording()
    run_once(recording)
    points = list(recording.points([7]))
    assert [point.kind for point in points] == [
        *["create", "write", "sync", "rename", "names"],
        *["write", "sync", "create", "write", "unlink", "end"],
    ]
    assert [point.number for point in points] == list(range(len(recording) + 1))
    assert [point.promised for point in points] == [0] * 5 + [1] * 2 + [2] * 4
    assert [point.files for point in points] == [{}] * 5 + [{"side": b"1"}] * 6
    assert recording.sync_count == 3


@pytest.mark.parametrize("seed", range(20))
def test_what_was_promised_is_on_the_disk_of_each_later_point(seed: int) -> None:
    recording = Recording()
    run_once(recording)
    for point in recording.points([seed]):
        found = contents(point.disk().start())
        assert "later" not in found
        if point.promised == 1:
            assert found["a"].startswith(b"first")
        if point.promised == 2:
            assert found["a"] == b"firstsecond"


def test_the_same_point_and_seed_give_the_same_disk_again() -> None:
    recording = Recording()
    run_once(recording)
    first = [contents(point.disk().start()) for point in recording.points([3, 4])]
    again = [contents(point.disk().start()) for point in recording.points([3, 4])]
    assert first == again


def test_syncs_have_further_seeds_of_their_own() -> None:
    recording = Recording()
    run_once(recording)
    points = list(recording.points([1], more_at_syncs=[2, 3]))
    assert len(points) == 11 + 2 * 3
    assert {point.seed for point in points if not point.is_at_sync} == {1}


@pytest.mark.parametrize("without", ["sync", "names"])
def test_a_disk_that_lies_loses_what_was_promised(without: str) -> None:
    recording = Recording()
    run_once(recording)
    lost = 0
    for point in recording.points(range(20), without=without):
        if point.promised == 2:
            lost += contents(point.disk().start()).get("a") != b"firstsecond"
    assert lost > 10


def stored_once(recording: Recording) -> None:
    """A page written, another stored through a mapping, both synced and promised."""
    disk = FaultyDisk(1)
    with recording.of(disk):
        storage = disk.start()
        file = storage.open("a", create=True)
        file.pwritev([b"written".ljust(8192, b".")], 0)
        file.datasync()
        storage.sync_directory()
        mapping = file.map(4096, 4096)
        assert mapping is not None
        mapping[0:6] = b"stored"
        file.pwritev([b"again"], 10)
        file.datasync()
        recording.promise(1)


def test_stores_through_mappings_are_changes_and_are_synced_with_the_file() -> None:
    recording = Recording()
    stored_once(recording)
    for seed in range(20):
        *points, last = recording.points([seed])
        assert [point.kind for point in points][-3:] == ["store", "write", "sync"]
        content = last.disk().start().open("a").pread(8192, 0)
        assert (content[10:15], content[4096:4102]) == (b"again", b"stored")


def test_a_disk_that_flushes_no_mapping_loses_what_was_stored_and_nothing_else() -> None:
    recording = Recording()
    stored_once(recording)
    found: set[bytes] = set()
    for seed in range(100):
        *_, last = recording.points([seed], without="flush")
        content = last.disk().start().open("a").pread(8192, 0)
        assert (content[:7], content[10:15]) == (b"written", b"again")
        found.add(content[4096:4102])
    assert {b"stored", b"......"} <= found


def test_names_of_folders_are_recorded_with_their_folder() -> None:
    recording = Recording()
    disk = FaultyDisk(1)
    with recording.of(disk):
        storage = disk.start()
        storage.folder("one").lock("us")
        storage.folder("one").open("x", create=True)
        storage.open("top", create=True)
        storage.folder("one").sync_directory()
    names = {frozenset(p.disk().start().list()) for p in [*recording.points(range(30))][-30:]}
    assert names == {frozenset({"one|x"}), frozenset({"one|x", "top"})}


def test_a_report_counts_and_names_what_failed(tmp_path: Path) -> None:
    recording = Recording()
    run_once(recording)
    report = CrashReport("A title")
    report.checks.append("nothing is lost")
    report.covered.append("every type of journal")
    for point in recording.points([1]):
        report.add("load", point, "lost 7" if point.number == 3 else "")
        report.add("no sync", point, "lost" if point.number else "", is_control=True)
    assert report.points == 11
    assert report.failures == ["lost 7"]
    report.write(tmp_path / "build" / "report.md")
    text = (tmp_path / "build" / "report.md").read_text()
    assert "11 crash points, 1 FAILURES" in text
    assert "| load | 0 | 11 | 3 | 1 |" in text
    assert "| no sync | 11 | 10 |" in text
    assert "- nothing is lost" in text
    assert "What the schedules cover:\n\n- every type of journal\n" in text
    assert "page by page: lost, kept, earlier," in text
    assert text.endswith(
        "Result: 11 crash points in 1 schedules, 1 FAILURES; "
        "1 of 1 negative controls found losses.\n"
    )
    assert "- lost 7" in text


def test_reports_of_parts_from_other_processes_add_up() -> None:
    recording = Recording()
    run_once(recording)
    whole = CrashReport("A title")
    for number in range(3):
        part = CrashReport("part")
        part.tally("load").recordings += 1
        for point in recording.points([number]):
            part.add("load", point, f"lost {number}" if point.number == number else "")
            part.add("no sync", point, "lost", is_control=True)
        part.stop()
        whole.merge(pickle.loads(pickle.dumps(part)))
    tally = whole.tally("load")
    assert (tally.recordings, tally.points, tally.at_syncs) == (3, 33, 9)
    assert whole.failures == ["lost 0", "lost 1", "lost 2"]
    assert whole.tally("no sync", is_control=True).points == 33
    assert whole.cut_before["names"] == 3
    assert whole.points == 33


def test_a_control_that_finds_nothing_is_a_failure() -> None:
    recording = Recording()
    run_once(recording)
    report = CrashReport("A title")
    for point in recording.points([1]):
        report.add("no sync", point, "", is_control=True)
    assert "the check cannot fail" in report.failures[0]
    assert report.points == 0
