"""Which files of a local Delta table are synced before its mark is reported."""

import json
import os
from pathlib import Path

import pytest

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.durable import SyncedCommits, sync_commits


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions 0 to 3; each adds one file, version 3 has a checkpoint; with Hadoop's .crc files."""
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    (table / "ack_date=2026-01-02").mkdir()
    for version in range(4):
        data = f"ack_date=2026-01-02/part {version}.parquet"
        write(table / data)
        actions = [
            {"commitInfo": {}},
            {"txn": {"appId": "a", "version": 1}},
            {"add": {"path": data.replace(" ", "%20")}},
        ]
        text = "\n".join(json.dumps(action) for action in actions)
        write(table / "_delta_log" / f"{version:020}.json", text)
    write(table / "_delta_log" / f"{3:020}.checkpoint.parquet")
    write(table / "_delta_log" / "_last_checkpoint")
    return table


def write(path: Path, text: str = "x") -> None:
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_text("crc")


@pytest.fixture
def synced(table: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths that were synced, relative to the table."""
    paths: set[str] = set()
    fsync = os.fsync

    def traced(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        paths.add(path.relative_to(table).as_posix())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", traced)
    return paths


def test_data_commit_checksums_and_directories_are_synced(table: Path, synced: set[str]) -> None:
    assert sync_commits(table, 2, 2) == 6
    assert synced == {
        ".",
        "_delta_log",
        "ack_date=2026-01-02",
        "ack_date=2026-01-02/part 2.parquet",
        "ack_date=2026-01-02/.part 2.parquet.crc",
        "_delta_log/00000000000000000002.json",
        "_delta_log/.00000000000000000002.json.crc",
        "_delta_log/_last_checkpoint",
        "_delta_log/._last_checkpoint.crc",
    }


def test_a_checkpoint_belongs_to_its_version(table: Path, synced: set[str]) -> None:
    sync_commits(table, 3, 3)
    assert "_delta_log/00000000000000000003.checkpoint.parquet" in synced
    assert "_delta_log/.00000000000000000003.checkpoint.parquet.crc" in synced


def test_all_versions_of_the_range_are_synced(table: Path, synced: set[str]) -> None:
    sync_commits(table, 1, 3)
    assert {name for name in synced if name.endswith("parquet")} >= {
        f"ack_date=2026-01-02/part {version}.parquet" for version in (1, 2, 3)
    }
    assert "ack_date=2026-01-02/part 0.parquet" not in synced


def test_a_commit_that_delta_cleaned_up_is_not_missed(table: Path) -> None:
    (table / "_delta_log" / f"{1:020}.json").unlink()
    assert sync_commits(table, 0, 2) > 0


def test_a_table_that_is_gone_is_an_error_to_the_caller_or_nothing_to_do(tmp_path: Path) -> None:
    assert sync_commits(tmp_path / "gone", 0, 0) == 0


def test_a_commit_whose_files_are_not_here_is_never_reported(table: Path) -> None:
    """A worker of a cluster wrote them to a disk of its own."""
    commits = SyncedCommits(table)
    (table / "ack_date=2026-01-02" / "part 2.parquet").unlink()
    with pytest.raises(CommitError, match=r"part 2\.parquet.*workers"):
        commits.reach(3)


def test_files_that_were_compacted_and_deleted_may_be_gone(table: Path) -> None:
    data = "ack_date=2026-01-02/part%202.parquet"
    text = json.dumps({"remove": {"path": data}})
    write(table / "_delta_log" / f"{4:020}.json", text)
    (table / "ack_date=2026-01-02" / "part 2.parquet").unlink()
    SyncedCommits(table).reach(4)


def test_whatever_is_in_a_message_may_stand_in_a_commit(table: Path, synced: set[str]) -> None:
    """Statistics hold the smallest and largest values, and JSON lets line separators stand as they are."""
    path = table / "_delta_log" / f"{3:020}.json"
    add = {"add": {"path": "with.parquet", "stats": "q\u2028\u2029\x85"}}
    write(path, f"{path.read_text()}\n{json.dumps(add, ensure_ascii=False)}\n")
    write(table / "with.parquet")
    SyncedCommits(table).reach(3)
    assert "with.parquet" in synced
