"""The staging directory: sealing, recovery, discarding."""

import os
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi.private_files import closed_umask
from tidegate_sink_spark.staging.files import staged_name, temporary_name
from tidegate_sink_spark.staging.storage import Amount, StagingDirectory, sync_directory


def test_sealing_makes_one_file_with_the_name_of_its_range(kit: Any, tmp_path: Path) -> None:
    file = StagingDirectory(tmp_path).seal(3, 12, kit.batch(3, 12))
    assert kit.staged_names(tmp_path) == [staged_name(3, 12)]
    assert (file.lo, file.hi, file.size_bytes) == (3, 12, file.path.stat().st_size)
    assert [row["ack_seq"] for row in kit.rows_of([file.path])] == list(range(3, 13))


def test_a_file_is_synced_before_it_gets_its_name(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(fd: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{fd}"))
        events.append(f"sync {target.name}")
        fsync(fd)

    def traced_rename(old: Path, new: Path) -> None:
        events.append(f"rename {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    StagingDirectory(tmp_path).seal(1, 2, kit.batch(1, 2))
    name = staged_name(1, 2)
    assert events == [f"sync {temporary_name(name)}", f"rename {name}", f"sync {tmp_path.name}"]


def test_a_failed_write_leaves_nothing(kit: Any, tmp_path: Path) -> None:
    def tear(path: Path, batches: Any) -> None:
        path.write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        StagingDirectory(tmp_path, write_parquet=tear).seal(1, 2, kit.batch(1, 2))
    assert kit.staged_names(tmp_path) == []


def test_recovery_of_nothing_makes_the_directory(tmp_path: Path) -> None:
    found = StagingDirectory(tmp_path / "a" / "b").recover(17)
    assert (found.position, found.amount) == (17, Amount())
    assert (tmp_path / "a" / "b").is_dir()


def test_recovery_continues_behind_the_staged_files(kit: Any, tmp_path: Path) -> None:
    paths = [kit.stage(tmp_path, 1, 10), kit.stage(tmp_path, 11, 15)]
    found = StagingDirectory(tmp_path).recover(0)
    assert (found.position, found.amount.files) == (15, 2)
    assert found.amount.size_bytes == sum(path.stat().st_size for path in paths)


def test_recovery_removes_a_half_written_file(kit: Any, tmp_path: Path) -> None:
    whole = kit.stage(tmp_path, 1, 10)
    (tmp_path / temporary_name(staged_name(11, 20))).write_bytes(whole.read_bytes()[:100])
    assert StagingDirectory(tmp_path).recover(0).position == 10
    assert kit.staged_names(tmp_path) == [staged_name(1, 10)]


def test_recovery_removes_what_the_store_released(kit: Any, tmp_path: Path) -> None:
    kit.stage(tmp_path, 1, 10)
    kit.stage(tmp_path, 11, 20)
    assert StagingDirectory(tmp_path).recover(12).position == 20
    assert kit.staged_names(tmp_path) == [staged_name(11, 20)]


def test_recovery_stages_a_missing_range_again_with_all_behind_it(kit: Any, tmp_path: Path) -> None:
    for lo, hi in [(1, 10), (21, 30), (31, 40)]:
        kit.stage(tmp_path, lo, hi)
    assert StagingDirectory(tmp_path).recover(0).position == 10
    assert kit.staged_names(tmp_path) == [staged_name(1, 10)]


def test_recovery_removes_a_damaged_file_with_all_behind_it(kit: Any, tmp_path: Path) -> None:
    kit.stage(tmp_path, 1, 10)
    torn = kit.stage(tmp_path, 11, 20)
    torn.write_bytes(torn.read_bytes()[:-20])
    kit.stage(tmp_path, 21, 30)
    assert StagingDirectory(tmp_path).recover(0).position == 10
    assert kit.staged_names(tmp_path) == [staged_name(1, 10)]


def test_files_that_are_not_ours_stay(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    StagingDirectory(tmp_path).recover(0)
    assert (tmp_path / "README").exists()


def test_only_files_that_the_mark_has_passed_whole_are_discarded(kit: Any, tmp_path: Path) -> None:
    kit.stage(tmp_path, 1, 10)
    second = kit.stage(tmp_path, 11, 20)
    staging = StagingDirectory(tmp_path)
    assert staging.discard_through(19) == Amount(1, 10, second.stat().st_size)
    assert kit.staged_names(tmp_path) == [staged_name(11, 20)]
    assert staging.discard_through(20) == Amount()
    assert kit.staged_names(tmp_path) == []


def test_a_directory_that_is_gone_cannot_be_synced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "gone")


@pytest.mark.parametrize(("is_shared", "modes"), [(False, (0o700, 0o600)), (True, (0o750, 0o640))])
def test_what_a_cluster_reads_is_as_open_as_the_operator_says(
    kit: Any, tmp_path: Path, is_shared: bool, modes: tuple[int, int]
) -> None:
    before = os.umask(0o027)
    try:
        with closed_umask():
            directory = StagingDirectory(tmp_path / "shared" / "gw", is_shared=is_shared)
            directory.recover(0)
            path = directory.seal(1, 2, kit.batch(1, 2)).path
    finally:
        os.umask(before)
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == modes
    assert path.parent.parent.stat().st_mode & 0o777 == modes[0]
