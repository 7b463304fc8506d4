"""Tables by destination pattern: the main one has the position, and no row is in two of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate_sink_spark._protocol import JobConfig, RouteConfig
from tidegate_sink_spark.job.driver import Addition, CommitError
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.routed import RoutedTable
from tidegate_sink_spark.job.table import Shape, application_id
from tidegate_sink_spark.job.target import open_table
from tidegate_sink_spark.staging import arrow

APP_ID = application_id("gw", "store-1")


class Bench:
    """Rows of orders.0, orders.1 and orders.2 in turn; each but the last has a table."""

    def __init__(self, directory: Path, kit: Any) -> None:
        self.kit = kit
        self.directory = directory
        self.names = {key: directory / key for key in ("main", "zero", "one")}

    def open(self) -> RoutedTable:
        return RoutedTable(
            ParquetTable(self.names["main"], Shape("plain"), APP_ID),
            {"queue://orders.0": "zero", "orders.1": "one", "orders.0": "never"},
            lambda name: ParquetTable(self.directory / name, Shape("plain"), APP_ID),
            self.directory,
        )

    def append(self, after: int, through: int, staged: Path | None = None, **changes: Any) -> None:
        path = staged or self.kit.stage(self.directory / "s", after + 1, through)
        addition = Addition([path], after, through, count=through - after)
        self.open().append(replace(addition, **changes))

    def rows(self) -> dict[str, list[int]]:
        return {
            key: sorted(self.kit.read_parquet_table(path, APP_ID).sequences)
            for key, path in self.names.items()
        }

    def expected(self, through: int) -> dict[str, list[int]]:
        return {
            "zero": list(range(3, through + 1, 3)),
            "one": list(range(1, through + 1, 3)),
            "main": list(range(2, through + 1, 3)),
        }


@pytest.fixture
def bench(tmp_path: Path, kit: Any) -> Bench:
    return Bench(tmp_path, kit)


def test_each_row_goes_to_the_first_pattern_that_covers_it(bench: Bench) -> None:
    bench.append(0, 100)
    bench.append(100, 250)
    assert bench.rows() == bench.expected(250)
    assert bench.open().state().mark == 250
    assert list(bench.directory.glob("part-*")) == []


def test_the_mark_that_the_main_table_had_is_not_that_of_the_others(bench: Bench) -> None:
    """Theirs is where their last row was: a job knows the main one's, and looks for no other."""
    bench.append(0, 2)
    bench.append(2, 100, known=2)
    assert bench.rows() == bench.expected(100)
    with pytest.raises(CommitError, match="went back from 200 to 100"):
        bench.append(100, 250, known=200)


def test_a_table_without_rows_gets_no_commit_and_the_main_one_always_does(bench: Bench) -> None:
    bench.append(0, 1)
    assert bench.rows() == {"main": [], "zero": [], "one": [1]}
    assert bench.open().state().mark == 1
    commits = {
        key: len(list(path.glob("_tidegate/*/ack-*.json"))) for key, path in bench.names.items()
    }
    assert commits == {"main": 1, "zero": 0, "one": 1}


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("through", [80, 100, 130])
def test_a_job_that_dies_between_two_tables_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tables: int, through: int
) -> None:
    """The next one takes the same rows again, in files that end elsewhere."""
    bench.append(0, 50)
    append = ParquetTable.append
    done: list[int] = []

    def dying(self: ParquetTable, addition: Addition) -> None:
        if len(done) == tables:
            raise CommitError("killed")
        done.append(1)
        append(self, addition)

    with monkeypatch.context() as patch:
        patch.setattr(ParquetTable, "append", dying)
        with pytest.raises(CommitError, match="killed"):
            bench.append(50, 100)
    assert bench.open().state().mark == 50
    bench.append(50, through)
    if through < 100:
        bench.append(through, 140)
    else:
        bench.append(through, 140, bench.kit.stage(bench.directory / "s", 90, 140), overlaps=True)
    assert bench.rows() == bench.expected(140)


def test_a_staged_file_with_other_rows_changes_no_table(bench: Bench) -> None:
    with pytest.raises(CommitError, match="10 rows instead of 11"):
        bench.append(0, 10, count=11)
    assert bench.rows() == {"main": [], "zero": [], "one": []}


def test_the_jobs_configuration_opens_all_tables(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = JobConfig(
        gateway_name="gw",
        store_id="store-1",
        staging_directory=str(tmp_path / "s"),
        table=str(tmp_path / "main"),
        layout="partitioned",
        commit_interval=1.0,
        floor=0,
        spark_conf={},
        format="parquet",
        routes=(RouteConfig("queue://orders.0", str(tmp_path / "zero")),),
    )
    table = open_table(config, lambda: pytest.fail("Parquet needs no Spark"))
    staged = kit.stage(tmp_path / "s", 1, 9)
    table.append(Addition([staged], 0, 9, 9, metadata=json.dumps({"n": 9})))
    assert sorted(kit.read_parquet_table(tmp_path / "zero", APP_ID).sequences) == [3, 6, 9]
    assert len(kit.read_parquet_table(tmp_path / "main", APP_ID).sequences) == 6


def test_a_file_that_an_older_version_staged_has_null_where_it_has_no_column(
    bench: Bench, tmp_path: Path
) -> None:
    staged = bench.kit.stage(tmp_path / "s", 1, 3)
    arrow.pq.write_table(arrow.pq.read_table(staged).drop_columns(["content_type"]), staged)
    bench.append(0, 3, staged)
    (path,) = bench.names["zero"].glob("*.parquet")
    assert arrow.pq.ParquetFile(path).read(columns=["content_type"]).to_pylist() == [
        {"content_type": None}
    ]
