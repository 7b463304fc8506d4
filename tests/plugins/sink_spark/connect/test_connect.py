"""The sink through a real Spark Connect server, started here on a port of the system's choice."""

import json
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import Daemon

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.connect import engine
from tidegate_sink_spark.connect import table as connect_table
from tidegate_sink_spark.connect.engine import ConnectEngine, check_connect
from tidegate_sink_spark.connect.table import ConnectTable, is_table, merge_statement
from tidegate_sink_spark.java.runtime import spark_home
from tidegate_sink_spark.job.driver import Addition, MarkMovedError
from tidegate_sink_spark.job.session import connect_session
from tidegate_sink_spark.job.table import Shape, application_id

APP_ID = application_id("gw", "store-1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Generator[str]:
    """The URL of a Connect server that has Delta."""
    directory = tmp_path_factory.mktemp("connect")
    conf = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(map(str, spark.jars("delta"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory),
        "spark.ui.enabled": "false",
        **spark.SHORT_JOB,
    }
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    made = Daemon(
        *(
            "server",
            directory,
            spark.environment,
            str(spark_home() / "bin" / "spark-submit"),
            *words,
        ),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    )
    try:
        (port,) = made.wait_for(r"Connect server started at: 127\.0\.0\.1:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        made.kill()


def make(directory: Path, url: str, **changes: Any) -> tuple[SparkSink, Path]:
    (directory / "data").mkdir(exist_ok=True)
    options = SparkSinkOptions(
        **changes,
        connect=url,
        staging_directory=str(directory / "shared [1]" / "staging"),
        table=str(directory / "shared [1]" / "table"),
        commit_interval=0.1,
        segment_rows=100,
        segment_interval=0.02,
        drain_on_stop=False,
    )
    check_connect(options)
    context = SinkContext("lake", "gw", directory / "data")
    return SparkSink(context, options, ConnectEngine(context, options), restart_delay=0.05), Path(
        options.table
    )


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(1800)
async def test_every_row_is_in_the_table_once_whatever_is_killed(
    tmp_path: Path, kit: Any, server: str
) -> None:
    """A job that dies has asked the server for a commit, which it may make when the next one works already."""
    log = kit.MemoryLog(last=300)
    sink, table = make(tmp_path, server)

    def commits() -> int:
        return len(list(table.glob("_delta_log/*.json")))

    await sink.start(log)
    try:
        await kit.until(lambda: sink.health().mark == 300, 400)
        for kill in range(6):
            before = commits()
            log.grow(200)
            if kill % 2:
                await kit.until(lambda before=before: commits() > before, 400)
            else:  # while the server works
                await kit.until(lambda: sink.health().staged == log.last, 400)
            await kit.until(lambda: sink.job_pid, 400)
            os.killpg(sink.job_pid, signal.SIGKILL)
            assert len(set(kit.read_table(table, APP_ID).sequences)) == len(
                kit.read_table(table, APP_ID).sequences
            )
        await kit.until(lambda: log.released == 1_500, 800)
    finally:
        await sink.stop()
    assert kit.read_table(table, APP_ID).is_exact


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_key_columns_and_text_are_written_also_into_a_table_that_had_them_not(
    tmp_path: Path, kit: Any, server: str
) -> None:
    log = kit.MemoryLog(last=100)
    named = {"n": "long header:n", "of_json": "decimal(6,1) json:$.n"}
    for changes in ({}, {"columns": named, "body": "text"}):
        sink, table = make(tmp_path, server, **changes)
        await sink.start(log)
        try:
            await kit.until(lambda: log.released == log.last, 400)
        finally:
            await sink.stop()
        log.grow(100)
    assert kit.read_table(table, APP_ID).is_exact
    rows = {row["ack_seq"]: row for row in kit.rows_of(table.rglob("part-*.parquet"))}
    assert len(rows) == 200
    assert [name for name in ("n", "of_json", "body_text") if name in rows[100]] == []
    assert all(rows[number]["n"] == number for number in range(101, 201))
    assert all(rows[number]["of_json"] == number for number in range(101, 201))
    assert all(json.loads(rows[number]["body_text"]) == {"n": number} for number in range(101, 201))


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_a_body_is_a_variant_in_a_new_table_and_in_one_that_had_none(
    tmp_path: Path, kit: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server makes it, of the staged bytes; what is no Variant is NULL."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it for good
    odd = {10: b'{"a": 1, "a": 2}', 11: b"no JSON", 12: b"", 13: b"[1, 2.5]"}
    session = connect_session(server, {})
    for name, turns in (("old", ({}, {"body": "variant"})), ("new", ({"body": "variant"},))):
        directory, log = tmp_path / name, kit.MemoryLog()
        directory.mkdir()
        log.make = lambda n: kit.acknowledged(n, **({"body": odd[n]} if n in odd else {}))
        for changes in turns:
            sink, table = make(directory, server, **changes)
            log.grow(8 if not changes else 100)
            await sink.start(log)
            try:
                await kit.until(lambda log=log: log.released == log.last, 400)
            finally:
                await sink.stop()
        got = session.sql(
            "SELECT ack_seq, variant_get(body_variant, '$.n', 'long') AS n, to_json(body_variant) AS "
            f"text FROM delta.`{table}` ORDER BY ack_seq"
        ).collect()
        found = {row["ack_seq"]: (row["n"], row["text"]) for row in got}
        assert list(found) == list(range(1, log.last + 1))
        bare = range(1, 9) if len(turns) > 1 else ()
        assert [found[n] for n in bare] == [(None, None) for _ in bare]
        assert [found[n][1] for n in odd] == [None, None, None, "[1,2.5]"]
        rest = found.keys() - odd.keys() - set(bare)
        assert {n: found[n] for n in rest} == {n: (n, f'{{"n":{n}}}') for n in rest}


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_commit_that_comes_behind_the_compared_mark_doubles_nothing(
    tmp_path: Path, kit: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten commits further there is a checkpoint, which a cold reader starts from."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it for good
    session = connect_session(server, {})
    path = tmp_path / "a [table]"
    assert not is_table(session, str(path))
    mine, zombie = (ConnectTable(session, str(path), Shape("clustered"), APP_ID) for _ in range(2))
    assert is_table(session, str(path))
    session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.checkpointInterval = 3)")
    check_mark = Addition.check_mark

    def overtaken(addition: Addition, mark: int) -> None:
        """The zombie's commit arrives between the comparison and ours."""
        check_mark(addition, mark)
        monkeypatch.setattr(Addition, "check_mark", check_mark)
        zombie.append(Addition([kit.stage(tmp_path / "z", 1, 60)], 0, 60, 60))

    monkeypatch.setattr(Addition, "check_mark", overtaken)
    mine.append(Addition([kit.stage(tmp_path / "s", 1, 100)], 0, 100, 100))
    assert mine.state().mark == 100
    assert kit.read_table(path, APP_ID).is_exact
    with pytest.raises(MarkMovedError):
        zombie.append(Addition([kit.stage(tmp_path / "z", 61, 90)], 60, 90, 30))
    staged = tmp_path
    for lo in range(101, 600, 100):
        staged = kit.stage(tmp_path / "s", lo - 50, lo + 99)
        mine.append(Addition([staged], lo - 1, lo + 99, 100, overlaps=True))
    mine.append(Addition([staged], 600, 650, 0, overlaps=True))  # no row that it takes
    assert mine.state().mark == 650
    cold = ConnectTable(session, str(path), Shape("clustered"), APP_ID)
    assert cold.state() == mine.state()
    assert cold.sequences("gw", "store-1", 597) == [598, 599, 600]
    assert kit.read_table(path, APP_ID).sequences == list(range(1, 601))
    assert ConnectTable(session, str(path), Shape("clustered"), "another/log").state().mark == 0
    session.stop()


def test_the_lock_of_a_table_that_others_have_too_wants_no_java_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ConnectTable.__new__(ConnectTable)
    table._spark = object()  # a session without Java
    table._directory = tmp_path / "lake" / "table"
    taken: list[Path] = []

    @contextmanager
    def take(directory: Path) -> Generator[None]:
        taken.append(directory)
        yield

    monkeypatch.setattr(connect_table, "table_lock", take)
    with table.locked():
        assert taken == [table._directory]
    table._directory = None  # on an object store there is none
    with table.locked():
        assert len(taken) == 1


def test_a_merge_reads_only_what_the_staged_rows_can_be_in() -> None:
    assert "t.ack_seq BETWEEN 7 AND 9 " in merge_statement("/t", 7, 9)
    assert "t.ack_seq BETWEEN -1 AND -1 " in merge_statement("/t", None, None)
    assert "s.`order`)" in merge_statement("/t", 7, 9, [("order", "DECIMAL(6,1)")])


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"connect": "http://host:15002"}, "connect", "sc://host:port"),
        ({"connect": "sc://host/;token=abc"}, "connect", "SPARK_CONNECT_AUTHENTICATE_TOKEN"),
        ({"format": "iceberg"}, "connect", "take master"),
        ({"job": "submitted"}, "job", "remove one"),
        ({"master": "local[1]"}, "master", "where the Connect server is started"),
        ({"jars": "download"}, "jars", "where the Connect server is started"),
        ({"catalog": {"type": "unity", "uri": "u"}}, "catalog", "where the Connect server"),
        (
            {"spark_conf": {"spark.executor.memory": "1g"}},
            "spark_conf.spark.executor.memory",
            "spark.sql.",
        ),
        ({"staging_directory": ""}, "staging_directory", "is missing"),
        ({"table": ""}, "table", "is missing"),
    ],
)
def test_what_cannot_be_through_a_connect_server_is_an_error_at_start(
    changes: dict[str, Any], key: str, problem: str
) -> None:
    named: dict[str, Any] = {"connect": "sc://host:15002/;use_ssl=true"}
    named |= {"staging_directory": "/srv/staged", "table": "s3a://bucket/table"}
    check_connect(SparkSinkOptions(**named))
    with pytest.raises(ConfigError, match=problem) as caught:
        check_connect(SparkSinkOptions(**{**named, **changes}))
    assert caught.value.key == key


async def test_a_server_that_does_not_answer_is_said_at_once(tmp_path: Path, kit: Any) -> None:
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))  # and nobody listens
    sink, _ = make(tmp_path, f"sc://127.0.0.1:{unused.getsockname()[1]}")
    await sink.start(kit.MemoryLog(last=10))
    try:
        await kit.until(lambda: "Spark Connect server 127.0.0.1" in sink.health().problem)
        assert "`connect` names it" in sink.health().problem
        await kit.until(lambda: sink.health().staged == 10)  # the gateway goes on
    finally:
        await sink.stop()
        unused.close()


async def test_a_machine_without_the_client_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_PACKAGES", ("grpc", "no_such_package.at_all"))
    options = SparkSinkOptions(connect="sc://h:1", staging_directory="/s", table="/t")
    with pytest.raises(ConfigError, match=r"no_such_package.at_all; run: pip install .*connect"):
        await ConnectEngine(SinkContext("lake", "gw", tmp_path), options).prepare()
