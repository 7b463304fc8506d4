"""Tables on an object store, with delta-rs: a real S3 server (moto's) on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from delta_table import HASTY, TableInStore
from object_store import BUCKET, SECRET_KEY, ObjectStore

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._target import find_target
from tidegate_sink_spark.delta_rs import place, table
from tidegate_sink_spark.job.driver import CommitError, TableState
from tidegate_sink_spark.plugin import SparkSinkFactory
from tidegate_sink_spark.replay.selecting import ROWS
from tidegate_sink_spark.replay.tables import open_table
from tidegate_sink_spark.upkeep.delta_rs import DeltaRsUpkeep
from tidegate_sink_spark.verify.seen import Log, look_at


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    yield made
    made.close()


class Bench(TableInStore):
    """A table in the store of Amazon's kind, whose objects can be looked at."""

    def __init__(self, directory: Path, kit: Any, store: ObjectStore) -> None:
        self.store = store
        self.prefix = f"{directory.name}/the table"
        options = {**store.storage_options, **HASTY}
        super().__init__(directory, kit, f"s3a://{BUCKET}/{self.prefix}", options)

    def data_files(self) -> list[str]:
        return [name for name in self.store.names(self.prefix) if name.endswith(".parquet")]


@pytest.fixture
def bench(tmp_path: Path, kit: Any, store: ObjectStore) -> Bench:
    return Bench(tmp_path, kit, store)


@pytest.mark.long
def test_rows_and_mark_are_one_commit_and_nothing_stays_here(bench: Bench) -> None:
    opened = bench.open()
    assert opened.state() == TableState(0, 0)
    opened.append(bench.addition(1, 10))
    opened.append(bench.addition(5, 20, after=10))  # overlaps: written anew
    assert opened.state() == TableState(20, 2)
    assert bench.sequences() == list(range(1, 21))
    assert bench.open().state() == TableState(20, 2)
    assert [path for path in bench.scratch.rglob("*") if path.is_file()] == []
    assert all(f"{bench.prefix}/ack_date=2026-01-02/ack-" in name for name in bench.data_files())
    assert not [name for name in bench.store.names(bench.prefix) if "probe" in name]
    assert len(bench.kit.rows_of(sorted((bench.directory / "staging").glob("*.parquet")))) == 26


@pytest.mark.long
def test_of_two_writers_that_saw_the_same_mark_one_is_refused(bench: Bench) -> None:
    """Without a lock: both have compared the mark, and stand before their commit."""
    outcomes = bench.race(1, 10, 15)
    assert outcomes.count("won") == 1
    assert set(outcomes) < {"won", "MarkMovedError", "CommitError"}
    mark = bench.open().state().mark
    assert bench.sequences() == list(range(1, mark + 1))
    # The other's file stays, named by no commit: a store may get later what it was sent.
    assert len(bench.data_files()) == 2
    assert len(deltalake.DeltaTable(bench.uri, storage_options=bench.options).file_uris()) == 1


@pytest.mark.long
def test_a_store_that_lets_two_writers_win_is_refused_at_the_start(
    tmp_path: Path, kit: Any
) -> None:
    careless = ObjectStore(is_conditional=False)
    try:
        bench = Bench(tmp_path, kit, careless)
        with pytest.raises(CommitError, match=r"several commits with one number.*If-None-Match"):
            bench.open()
        assert careless.names() == []
    finally:
        careless.close()


@pytest.mark.long
def test_conditional_puts_that_are_switched_off_are_an_error(bench: Bench) -> None:
    bench.options["aws_conditional_put"] = "disabled"
    with pytest.raises(CommitError, match=r"cannot be used.*conditional put is disabled"):
        bench.open()


@pytest.mark.long
def test_a_table_that_was_replaced_is_seen(bench: Bench) -> None:
    opened = bench.open()
    opened.append(bench.addition(1, 10))
    assert opened.state().mark == 10
    for name in bench.store.names(bench.prefix):
        bench.store.client.delete_object(Bucket=BUCKET, Key=name)
    other = bench.open()
    other.append(bench.addition(1, 3))
    assert opened.state() == TableState(3, 1)


@pytest.mark.long
def test_compaction_and_vacuum_leave_rows_and_mark(bench: Bench) -> None:
    opened = bench.open()
    for lo in range(1, 41, 10):
        opened.append(bench.addition(lo, lo + 9))
    upkeep = DeltaRsUpkeep(bench.uri, retention=3600, storage_options=bench.options)
    done = upkeep.turn(vacuums=True)
    assert done.removed == 4
    assert opened.state().mark == 40
    assert bench.sequences() == list(range(1, 41))
    assert len(deltalake.DeltaTable(bench.uri, storage_options=bench.options).file_uris()) == 1


@pytest.mark.long
def test_verify_and_replay_read_it(bench: Bench) -> None:
    bench.open().append(bench.addition(1, 10))
    options = SparkSinkOptions(engine="deltalake", table=bench.uri, storage_options=bench.options)
    target = find_target(options, Path())
    seen = look_at(target, "delta", Log("gw", "store-1"), lambda: None, bench.options)
    assert seen is not None
    assert seen.mark == 10
    found = [n for part in seen.rows(["ack_seq"], 4, None) for n in part["ack_seq"].to_pylist()]
    assert sorted(found) == list(range(4, 11))
    rows = open_table(options, Path()).query(f"SELECT count(*) AS n FROM {ROWS}")
    assert rows["n"].to_pylist() == [10]


def test_a_problem_is_one_line_without_keys() -> None:
    error = OSError(
        "Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET https://a.example/c?sig=abc%2F in 1s\n"
        "   \x1b[31m↳\x1b[0m HTTP error\n"
    )
    line = place.one_line(error)
    assert line == "Generic S3 error: Error performing GET https://a.example/c in 1s: HTTP error"


@pytest.mark.parametrize(
    ("options", "key", "problem"),
    [
        ({"table": "hdfs://h/the table"}, "table", "on HDFS whose path has blanks"),
        ({"table": "hdfs://h/tabelle-ä"}, "table", "beyond ASCII"),
        ({"table": "a.b.c", "catalog": {"type": "unity", "uri": "https://u"}}, "table", "path"),
        ({"table": "/srv/t", "storage_options": {"aws_region": "x"}}, "storage_options", "local"),
        ({"table": "s3://b/t", "engine": "spark"}, "table", "write s3a"),
        (
            {"table": "s3a://b/t", "engine": "spark", "storage_options": {"aws_region": "x"}},
            "storage_options",
            "spark_conf",
        ),
    ],
)
def test_what_cannot_be_is_an_error(
    tmp_path: Path, options: dict[str, Any], key: str, problem: str
) -> None:
    made = SparkSinkOptions(**{"engine": "deltalake", **options})
    with pytest.raises(ConfigError, match=problem) as caught:
        SparkSinkFactory().create(SinkContext("lake", "gw", tmp_path), made)
    assert caught.value.key == key


@pytest.mark.long
async def test_the_sink_goes_on_while_the_store_is_away_and_catches_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Away at the start, and once more later: a problem with its remedy, then every row once."""
    caplog.set_level("DEBUG")
    store = bench.store
    log = bench.kit.MemoryLog()
    sink = bench.sink()

    async def until_released() -> None:
        await bench.kit.until(lambda: log.released == log.last, 120)

    store.set_reachable(False)
    try:
        await sink.start(log)
        log.grow(250)
        await bench.kit.until(lambda: "Connection refused" in sink.health().problem, 120)
        assert "endpoint in spark_conf, storage_options" in sink.health().problem
        assert "\n" not in sink.health().problem
        store.set_reachable(True)
        await until_released()
        assert sink.health().problem == ""
        store.set_reachable(False)
        log.grow(250)
        await bench.kit.until(lambda: sink.health().problem, 120)
        assert log.released == 250
        store.set_reachable(True)
        await until_released()
        store.set_answering(False)
        log.grow(250)
        await bench.kit.until(lambda: "timed out" in sink.health().problem, 120)
        assert "endpoint in spark_conf, storage_options" in sink.health().problem
        assert log.released == 500
        store.set_answering(True)
        await until_released()
        assert sink.health().problem == ""
    finally:
        store.set_answering(True)
        store.set_reachable(True)
        await sink.stop()
    assert bench.sequences() == list(range(1, 751))
    assert bench.kit.staged_names(bench.directory / "sink" / "staging") == []
    assert SECRET_KEY not in caplog.text
    assert SECRET_KEY not in json.dumps(bench.kit.staged_names(bench.directory / "sink"))


@pytest.mark.long
def test_whether_there_is_a_table(bench: Bench) -> None:
    assert not table.is_table(bench.uri, bench.options)
    bench.open()
    assert table.is_table(bench.uri, bench.options)
