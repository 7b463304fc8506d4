"""delta-rs on Google's store, Azure's and Hadoop's: the same commits as on S3 (test_place.py), on servers that run.

Google's is moto's S3 server with Google's names of headers; Azure's is Azurite; Hadoop's is Hadoop's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from azurite import CONTAINER, KEY, Azurite
from delta_table import HASTY, TableInStore
from hdfs import Hdfs
from object_store import BUCKET, SECRET_KEY, ObjectStore

from tidegate_sink_spark.job.driver import CommitError, TableState
from tidegate_sink_spark.upkeep.delta_rs import DeltaRsUpkeep


class Server(Protocol):
    """What a store must do to be killed here."""

    def set_reachable(self, reachable: bool) -> None: ...
    def close(self) -> None: ...


class Bench(TableInStore):
    """A table in a store that can be away."""

    def __init__(
        self, directory: Path, kit: Any, server: Server, root: str, options: dict[str, str]
    ) -> None:
        uri = f"{root}/sales/acknowledged"
        super().__init__(directory, kit, uri, options, ("ack_date", "destination"))
        self.server = server


@pytest.fixture(
    params=[
        pytest.param("gs", marks=pytest.mark.long),
        pytest.param("abfs", marks=pytest.mark.crash),
        pytest.param("hdfs", marks=[pytest.mark.crash, pytest.mark.spark]),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path, kit: Any) -> Iterator[Bench]:
    if request.param == "gs":
        google = ObjectStore()
        made = Bench(tmp_path, kit, google, f"gs://{BUCKET}", {**google.google_options, **HASTY})
    elif request.param == "abfs":
        azure = Azurite(tmp_path)
        options = {**azure.storage_options, **HASTY}
        made = Bench(tmp_path, kit, azure, f"abfs://{CONTAINER}", options)
    else:
        java = Path(request.getfixturevalue("spark").environment["JAVA_HOME"]) / "bin" / "java"
        hadoop = Hdfs(str(java), tmp_path)
        made = Bench(tmp_path, kit, hadoop, hadoop.uri, {})
    yield made
    made.server.close()


def test_rows_and_mark_are_one_commit_of_which_one_writer_makes_it(bench: Bench) -> None:
    """Both writers have compared the mark, and stand before their commit."""
    opened = bench.open()
    assert opened.state() == TableState(0, 0)
    opened.append(bench.addition(1, 10))
    opened.append(bench.addition(5, 20, after=10))  # overlaps: written anew
    assert opened.state() == TableState(20, 2)
    assert bench.sequences() == list(range(1, 21))
    assert [path for path in bench.scratch.rglob("*") if path.is_file()] == []

    outcomes = bench.race(21, 30, 35)
    assert outcomes.count("won") == 1
    mark = bench.open().state().mark
    assert mark in (30, 35)
    assert bench.sequences() == list(range(1, mark + 1))

    upkeep = DeltaRsUpkeep(bench.uri, retention=3600, storage_options=bench.options)
    assert upkeep.turn(vacuums=True).removed >= 3
    assert bench.open().state().mark == mark
    assert bench.sequences() == list(range(1, mark + 1))
    assert len(bench.table().file_uris()) == 3  # as many as there are destinations


async def test_a_killed_job_and_a_store_that_is_away_leave_each_row_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    log = bench.kit.MemoryLog()
    sink = bench.sink()

    async def until_released() -> None:
        await bench.kit.until(lambda: log.released == log.last, 120)
        await bench.kit.until(lambda: sink.health().problem == "", 60)

    bench.server.set_reachable(False)
    try:
        await sink.start(log)
        log.grow(250)
        await bench.kit.until(lambda: "onnection refused" in sink.health().problem, 120)
        assert "endpoint in spark_conf, storage_options" in sink.health().problem
        assert "\n" not in sink.health().problem
        bench.server.set_reachable(True)
        await until_released()
        log.grow(250)
        await bench.kit.kill_job(sink)
        log.grow(250)
        await until_released()
        bench.server.set_reachable(False)
        log.grow(250)
        await bench.kit.until(lambda: sink.health().problem, 120)
        assert log.released == 750
        bench.server.set_reachable(True)
        await until_released()
    finally:
        bench.server.set_reachable(True)
        await sink.stop()
    assert bench.sequences() == list(range(1, 1_001))
    assert bench.kit.staged_names(bench.directory / "sink" / "staging") == []
    assert SECRET_KEY not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.long
def test_a_google_store_without_conditional_puts_is_refused(tmp_path: Path, kit: Any) -> None:
    careless = ObjectStore(is_conditional=False)
    try:
        options = {**careless.google_options, **HASTY}
        with pytest.raises(CommitError, match="several commits with one number"):
            Bench(tmp_path, kit, careless, f"gs://{BUCKET}", options).open()
        assert careless.names() == []
    finally:
        careless.close()
