"""Staged files committed by delta-rs: what is in the table, who is refused, and what a failure leaves.

What is asserted is counted by conftest's reader, which knows nothing of delta-rs, unless a test is about
what delta-rs itself reads.
"""

import datetime as dt
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError

from tidegate_sink_spark.delta_rs import table
from tidegate_sink_spark.delta_rs.table import DeltaRsTable
from tidegate_sink_spark.delta_rs.types import delta_fields
from tidegate_sink_spark.job.driver import Addition, CommitError, MarkMovedError
from tidegate_sink_spark.job.table import COLUMNS, Shape, application_id
from tidegate_sink_spark.placing import files as placing

APP_ID = application_id("gw", "store-1")


class Bench:
    """A table, and staged files to append to it."""

    def __init__(self, directory: Path, kit: Any) -> None:
        self.kit = kit
        self.staging = directory / "staging"
        self.path = directory / "a=lake" / "the table"
        self.table = DeltaRsTable(self.path, Shape("partitioned"), APP_ID)

    def append(
        self,
        lo: int,
        hi: int,
        *,
        after: int | None = None,
        files: list[Path] | None = None,
        by: DeltaRsTable | None = None,
    ) -> None:
        """Stage rows *lo* to *hi* and append those behind *after* (all of them by default)."""
        mark = lo - 1 if after is None else after
        (by or self.table).append(
            Addition(
                files or [self.kit.stage(self.staging, lo, hi)],
                after=mark,
                through=hi,
                count=hi - mark,
                overlaps=lo <= mark,
                metadata=json.dumps({"lo": mark + 1, "hi": hi}),
            )
        )

    def contents(self) -> Any:
        return self.kit.read_table(self.path, APP_ID)

    def data_files(self) -> list[Path]:
        return sorted(self.path.rglob("*.parquet"))

    def actions(self, version: int) -> dict[str, Any]:
        """The actions of a commit with one file, by kind."""
        text = (self.path / "_delta_log" / f"{version:020}.json").read_text()
        return {kind: body for line in text.splitlines() for kind, body in json.loads(line).items()}


@pytest.fixture
def bench(tmp_path: Path, kit: Any) -> Bench:
    return Bench(tmp_path, kit)


def test_a_new_table_is_what_the_spark_job_makes(bench: Bench) -> None:
    actions = bench.actions(0)
    assert actions["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert actions["metaData"]["partitionColumns"] == ["ack_date"]
    assert actions["metaData"]["configuration"] == {
        "delta.checkpointInterval": "50",
        "delta.enableDeletionVectors": "false",
        "tidegate.schema_version": "1",
    }
    assert bench.table.columns() == {name: kind.replace(": ", ":") for name, kind in COLUMNS}
    assert bench.table.state() == table.TableState(0, 0)


def test_rows_and_mark_are_one_commit(bench: Bench) -> None:
    bench.append(1, 10)
    assert bench.table.state() == table.TableState(10, 1)
    assert bench.contents().is_exact
    actions = bench.actions(1)
    assert actions["txn"]["version"] == 10
    assert json.loads(actions["commitInfo"]["userMetadata"]) == {"lo": 1, "hi": 10}
    assert actions["add"]["partitionValues"] == {"ack_date": "2026-01-02"}


def test_a_staged_file_is_committed_as_it_is(bench: Bench) -> None:
    staged = bench.kit.stage(bench.staging, 1, 10)
    bench.append(1, 10, files=[staged])
    (placed,) = bench.data_files()
    assert placed.samefile(staged)
    staged.unlink()  # as the gateway does when the mark has passed it
    assert bench.contents().is_exact


def test_the_files_of_a_table_are_as_open_as_the_umask_says(bench: Bench) -> None:
    umask = os.umask(0o027)
    try:
        DeltaRsTable(bench.path, Shape("partitioned"), APP_ID).append(
            Addition([bench.kit.stage(bench.staging, 1, 5)], after=0, through=5, count=5)
        )
    finally:
        os.umask(umask)
    (placed,) = bench.data_files()
    assert placed.stat().st_mode & 0o777 == 0o640


def test_a_file_that_was_staged_for_long_is_new_in_the_table(bench: Bench) -> None:
    """VACUUM takes a file that no commit names yet for the rest of an old one."""
    staged = bench.kit.stage(bench.staging, 1, 10)
    os.utime(staged, (0, 0))
    bench.append(1, 10, files=[staged])
    (placed,) = bench.data_files()
    assert placed.stat().st_mtime > 1_000_000_000


def test_the_mark_may_pass_rows_that_are_not_taken(bench: Bench) -> None:
    bench.append(1, 10)
    bench.table.append(Addition([], after=10, through=15, count=0))
    assert bench.table.state() == table.TableState(15, 2)
    assert len(bench.contents().sequences) == 10


def test_the_rows_of_one_log_are_told(bench: Bench) -> None:
    bench.append(1, 10)
    assert sorted(bench.table.sequences("gw", "store-1", 7)) == [8, 9, 10]
    assert bench.table.sequences("gw", "store-2", 0) == []
    assert table.is_table(bench.path)
    assert not table.is_table(bench.staging)


def test_from_another_file_system_a_file_is_copied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing.os, "link", _fails(errno.EXDEV))
    bench.append(1, 10)
    assert bench.contents().is_exact
    assert bench.contents().mark == 10


def test_rows_of_two_days_become_two_files(bench: Bench, tmp_path: Path) -> None:
    from tidegate_sink_spark.staging.arrow import build_batch, write_parquet

    rows = [bench.kit.acknowledged(n) for n in range(1, 11)]
    rows[6:] = [
        msgspec.structs.replace(row, acked_at=row.acked_at + 86_400_000_000) for row in rows[6:]
    ]
    path = tmp_path / "two-days.parquet"
    write_parquet(path, [build_batch(rows, "gw", "store-1")])
    bench.append(1, 10, files=[path])
    days = {file.parent.name: len(bench.kit.rows_of([file])) for file in bench.data_files()}
    assert days == {"ack_date=2026-01-02": 6, "ack_date=2026-01-03": 4}
    assert bench.contents().is_exact


def test_rows_without_a_date_have_a_partition_of_their_own(bench: Bench, tmp_path: Path) -> None:
    rows = pq.read_table(bench.kit.stage(bench.staging, 1, 10))
    days: list[Any] = [*rows["ack_date"].to_pylist()[:6], None, None, None, None]
    days[2] += dt.timedelta(1)
    number = rows.schema.get_field_index("ack_date")
    path = tmp_path / "undated.parquet"
    pq.write_table(rows.set_column(number, "ack_date", pa.array(days, pa.date32())), path)
    bench.append(1, 10, files=[path])
    assert bench.contents().is_exact
    cold = deltalake.DeltaTable(str(bench.path)).to_pyarrow_table(columns=["ack_seq", "ack_date"])
    assert sorted(cold["ack_seq"].to_pylist()) == list(range(1, 11))
    assert sorted(cold["ack_date"].to_pylist(), key=str) == sorted(days, key=str)


def test_a_plain_table_has_no_partitions(tmp_path: Path, kit: Any) -> None:
    plain = DeltaRsTable(tmp_path / "plain", Shape("plain"), APP_ID)
    path = kit.stage(tmp_path / "staging", 1, 10)
    plain.append(Addition([path], after=0, through=10, count=10))
    assert kit.read_table(tmp_path / "plain", APP_ID).is_exact
    assert [file.parent for file in (tmp_path / "plain").glob("*.parquet")] == [tmp_path / "plain"]


def test_rows_that_the_table_has_are_left_out(bench: Bench) -> None:
    bench.append(1, 10)
    bench.append(6, 20, after=10)
    assert bench.contents().is_exact
    assert bench.contents().mark == 20


def test_an_old_transaction_is_refused(bench: Bench) -> None:
    """delta-rs itself would append the rows again, and take the mark back."""
    bench.append(1, 10)
    other = DeltaRsTable(bench.path, Shape("partitioned"), APP_ID)
    bench.append(11, 20)
    with pytest.raises(MarkMovedError):
        bench.append(11, 15, by=other)
    assert bench.contents().mark == 20
    assert bench.contents().is_exact
    assert len(bench.data_files()) == 2


def test_without_a_lock_too_one_of_two_writers_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one has compared the mark, and then the first one's commit comes between.

    Both are in one process, which the lock takes for one.
    """
    zombie = DeltaRsTable(bench.path, Shape("partitioned"), APP_ID)
    commit = DeltaRsTable._commit

    def late(self: DeltaRsTable, *arguments: Any) -> None:
        monkeypatch.setattr(DeltaRsTable, "_commit", commit)
        bench.append(1, 30)
        commit(self, *arguments)

    monkeypatch.setattr(DeltaRsTable, "_commit", late)
    with pytest.raises(MarkMovedError):
        bench.append(1, 20, by=zombie)
    assert bench.contents().mark == 30
    assert bench.contents().is_exact
    assert bench.contents().commits == [30]


def test_the_commits_of_others_do_not_disturb(bench: Bench) -> None:
    other = DeltaRsTable(bench.path, Shape("partitioned"), application_id("gw-2", "store-2"))
    bench.append(1, 10)
    bench.append(1, 5, by=other)
    bench.append(11, 20)
    assert bench.contents().mark == 20
    assert other.state().mark == 5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_leaves_nothing_and_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    link, links = os.link, []

    def second_fails(*paths: Any) -> None:
        links.append(paths)
        if len(links) == 2:
            raise OSError(code, os.strerror(code))
        link(*paths)

    monkeypatch.setattr(placing.os, "link", second_fails)
    files = [bench.kit.stage(bench.staging, 1, 5), bench.kit.stage(bench.staging, 6, 10)]
    with pytest.raises(CommitError, match="cannot be put into the table"):
        bench.append(1, 10, files=files)
    assert bench.data_files() == []
    monkeypatch.undo()
    bench.append(1, 10, files=files)
    assert bench.contents().is_exact


def test_a_commit_that_fails_takes_its_files_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise CommitFailedError("no space left")

    monkeypatch.setattr(DeltaRsTable, "_commit", fails)
    with pytest.raises(CommitError, match="no space left"):
        bench.append(1, 10)
    assert bench.data_files() == []


def test_a_commit_that_was_made_before_it_failed_keeps_its_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = DeltaRsTable._commit

    def fails_late(*arguments: Any) -> None:
        commit(*arguments)
        raise OSError(errno.ENOSPC, "no room for the checkpoint")

    monkeypatch.setattr(DeltaRsTable, "_commit", fails_late)
    with pytest.raises(MarkMovedError):
        bench.append(1, 10)
    assert bench.contents().is_exact
    assert bench.contents().mark == 10


def test_a_staged_file_that_vanished_is_told_as_that(bench: Bench) -> None:
    kept = bench.kit.stage(bench.staging, 1, 5)
    with pytest.raises(FileNotFoundError):
        bench.append(1, 10, files=[kept, bench.staging / "gone.parquet"])
    assert bench.data_files() == []


def test_files_that_hold_other_rows_than_announced_are_not_committed(bench: Bench) -> None:
    with pytest.raises(CommitError, match="5 rows instead of 10"):
        bench.append(1, 10, files=[bench.kit.stage(bench.staging, 1, 5)])
    assert bench.data_files() == []
    assert bench.contents().mark == 0


def test_a_table_that_is_deleted_is_not_believed_any_more(bench: Bench) -> None:
    bench.append(1, 10)
    shutil.rmtree(bench.path)
    with pytest.raises(CommitError, match="mark cannot be read"):
        bench.table.state()
    with pytest.raises(CommitError, match="mark cannot be read"):
        bench.append(11, 20)
    assert not bench.path.exists()


def test_a_table_that_is_replaced_is_read_anew(bench: Bench) -> None:
    bench.append(1, 10)
    bench.append(11, 20)
    shutil.rmtree(bench.path)
    other = DeltaRsTable(bench.path, Shape("partitioned"), APP_ID)
    bench.append(1, 5, by=other)
    assert bench.table.state() == table.TableState(5, 1)
    bench.append(6, 20)
    assert bench.contents().is_exact


def test_after_more_than_25_commits_a_cold_reader_sees_every_row_once(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PROPERTIES", {"delta.checkpointInterval": "10"})
    bench = Bench(tmp_path, kit)
    for n in range(26):
        bench.append(n * 2 + 1, n * 2 + 2)
    log = bench.path / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] >= 19
    for commit in sorted(log.glob("*.json"))[:15]:
        commit.unlink()  # as Delta does with old ones: the checkpoint has to carry them
    cold = deltalake.DeltaTable(str(bench.path))
    rows = cold.to_pyarrow_table(columns=["ack_seq"])["ack_seq"].to_pylist()
    assert sorted(rows) == list(range(1, 53))
    assert DeltaRsTable(bench.path, Shape("partitioned"), APP_ID).state().mark == 52


def test_delta_rs_reads_the_values_that_were_acknowledged(bench: Bench) -> None:
    bench.append(1, 10)
    rows = deltalake.DeltaTable(str(bench.path)).to_pyarrow_table().to_pylist()
    (row,) = [row for row in rows if row["ack_seq"] == 7]
    (staged,) = [row for row in bench.kit.rows_of(bench.staging.iterdir()) if row["ack_seq"] == 7]
    assert row == staged


def test_what_the_log_says_of_a_file_finds_its_rows(bench: Bench) -> None:
    bench.append(1, 10)
    bench.append(11, 20)
    cold = deltalake.DeltaTable(str(bench.path))
    found = cold.to_pyarrow_table(columns=["ack_seq"], filters=[("ack_seq", ">=", 15)])
    assert sorted(found["ack_seq"].to_pylist()) == list(range(15, 21))
    assert len(cold.file_uris()) == 2


def test_duckdb_reads_the_table(bench: Bench) -> None:
    bench.append(1, 10)
    bench.append(8, 20, after=10)
    lake = deltalake.DeltaTable(str(bench.path)).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("lake", lake)
        found = database.execute(
            "SELECT count(*), count(DISTINCT ack_seq), max(ack_seq), min(ack_date)::VARCHAR, "
            "count(*) FILTER (headers['kind'] = 'order') FROM lake WHERE destination LIKE 'queue://%'"
        ).fetchall()
    assert found == [(20, 20, 20, "2026-01-02", 20)]


CLUSTERED = (
    '{"protocol":{"minReaderVersion":1,"minWriterVersion":7,'
    '"writerFeatures":["domainMetadata","clustering","invariants","appendOnly"]}}\n'
    '{"metaData":{"id":"x","format":{"provider":"parquet","options":{}},"schemaString":'
    '"{\\"type\\":\\"struct\\",\\"fields\\":[{\\"name\\":\\"x\\",\\"type\\":\\"long\\",\\"nullable\\":true,\\"metadata\\":{}}]}","partitionColumns":[],"configuration":{},"createdTime":1}}\n'
)


def test_a_clustered_table_is_refused_with_a_remedy(tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(CLUSTERED)
    with pytest.raises(CommitError, match=r"is clustered.* name another table, or go on with"):
        DeltaRsTable(tmp_path / "table", Shape("partitioned"), APP_ID)


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(CLUSTERED.replace('"clustering",', ""))
    with pytest.raises(CommitError, match="has no column ack_seq"):
        DeltaRsTable(tmp_path / "table", Shape("partitioned"), APP_ID)


def test_an_older_table_gets_the_columns_that_it_lacks(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "older"
    fields = json.dumps({"type": "struct", "fields": delta_fields(COLUMNS[:15])})
    deltalake.DeltaTable.create(path, schema=deltalake.Schema.from_json(fields))
    older = DeltaRsTable(path, Shape("partitioned"), APP_ID)
    assert list(older.columns()) == [name for name, _ in COLUMNS]
    older.append(Addition([bench.kit.stage(bench.staging, 1, 10)], 0, 10, 10))
    assert bench.kit.read_table(path, APP_ID).is_exact


def test_columns_are_added_in_place(bench: Bench) -> None:
    bench.append(1, 10)
    bench.table.add_columns([("price", "DOUBLE"), ("tags", "ARRAY<STRUCT<key:STRING,n:INT>>")])
    assert bench.table.columns()["price"] == "DOUBLE"
    assert bench.table.columns()["tags"] == "ARRAY<STRUCT<key:STRING,n:INT>>"
    bench.append(11, 20)
    assert bench.contents().is_exact
    cold = deltalake.DeltaTable(str(bench.path)).to_pyarrow_table(columns=["ack_seq", "price"])
    assert cold.num_rows == 20
    assert set(cold["price"].to_pylist()) == {None}


def _fails(code: int) -> Callable[..., None]:
    def fails(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fails
