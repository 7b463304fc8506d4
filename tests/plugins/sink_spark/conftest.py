"""Fakes and oracles for the Spark sink: an acknowledged log in memory, and readers of tables.

The readers of tables know neither Spark nor Java: they replay a Delta table's commit files, ask
pyiceberg, or look at what lies in a directory, so what they count does not depend on the code under test.
"""

import asyncio
import contextlib
import importlib
import json
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from tidegate.spi import (
    AcknowledgedMessage,
    AcknowledgedPage,
    CorruptRecordError,
    EncodedPage,
    Message,
    RequestError,
    StoreError,
    encode_rows,
)
from tidegate_sink_spark.java.jars import Artifact
from tidegate_sink_spark.staging import arrow, process, worker
from tidegate_sink_spark.staging.building import Segment
from tidegate_sink_spark.staging.further import Further
from tidegate_sink_spark.staging.process import ProcessBuilder, Setup
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.storage import StagingDirectory

pq: Any = importlib.import_module("pyarrow.parquet")

#: 2026-01-02T03:04:05.000006Z
EPOCH_US = 1_767_323_045_000_006


def acknowledged(ack_sequence: int, **changes: Any) -> AcknowledgedMessage:
    """One row of the log; *changes* go to the message."""
    fields: dict[str, Any] = {
        "destination": f"queue://orders.{ack_sequence % 3}",
        "body": b'{"n": %d}' % ack_sequence,
        "headers": (("kind", "order"), ("n", str(ack_sequence))),
        "received_at": EPOCH_US + ack_sequence,
        "protocol": "stomp",
        "content_type": "application/json",
    }
    return AcknowledgedMessage(
        ack_sequence=ack_sequence,
        sequence=ack_sequence * 10,
        message=Message(**{**fields, **changes}),
        pending_list=1,
        delivered_at=EPOCH_US + ack_sequence + 1,
        acked_at=EPOCH_US + ack_sequence + 2,
        client_id="consumer-1",
        subscription="sub-0",
        protocol="mqtt",
    )


@dataclass
class MemoryLog:
    """An ``AcknowledgedReader`` whose rows are made when they are asked for."""

    store_id: str = "store-1"
    last: int = 0
    released: int = 0
    releases: list[int] = field(default_factory=list)
    reads: int = 0
    failures: list[Exception] = field(default_factory=list)
    make: Callable[[int], AcknowledgedMessage] = acknowledged
    damaged: set[int] = field(default_factory=set[int])
    error: type[StoreError] = CorruptRecordError
    _grown: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first(self) -> int:
        return self.released + 1

    def grow(self, count: int) -> None:
        """*count* more messages are acknowledged."""
        self.last += count
        self._grown.set()

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        bad = [n for n in range(after + 1, min(after + limit, self.last) + 1) if n in self.damaged]
        if bad:
            raise self.damage(bad[0], limit)
        if after < self.released:
            raise RequestError(f"rows behind {after} were released up to {self.released}")
        rows = [self.make(n) for n in range(after + 1, min(after + limit, self.last) + 1)]
        return AcknowledgedPage(rows, self.last)

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        page = await self.read(after, limit, bytes_max)
        return EncodedPage(encode_rows(page.rows), page.last)

    def damage(self, ack_sequence: int, limit: int) -> StoreError:
        """What a store raises for a row that it cannot read."""
        if self.error is not CorruptRecordError:
            return self.error(f"Input/output error, row {ack_sequence}")
        error = CorruptRecordError("wrong checksum", location="file 7", raw=b"what is left")
        if limit == 1:
            row = self.make(ack_sequence)
            empty = Message(destination="", body=b"", received_at=0)
            error.known = msgspec.structs.replace(row, message=empty)
        return error

    async def wait_beyond(self, after: int) -> None:
        while self.last <= after:
            self._grown.clear()
            await self._grown.wait()

    async def release(self, through: int) -> None:
        assert through <= self.last, "what was never acknowledged cannot be released"
        self.released = max(self.released, through)
        self.releases.append(through)


class ThreadBuilder(ProcessBuilder):
    """Asks what a process would be asked, of a thread of this one: quicker to start where that is not what
    is tested. Each question and each answer is encoded, and decoded, all the same."""

    def __init__(self, setup: Setup, segment: Segment | None = None) -> None:
        super().__init__(setup)
        self._worker = segment or worker.make_segment(setup, os.getppid())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-building")

    async def _ask(self, question: process.Question) -> process.Answer:
        asked = process.frame(question)[process.LENGTH_BYTES :]

        def work() -> bytes:
            return process.frame(worker.answer(self._worker, process.decode_question(asked)))

        answer = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        return process._decode_answer(answer[process.LENGTH_BYTES :])

    async def settled(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)


def builder_of(
    directory: Path,
    log: Any,
    *,
    selection: Selection | None = None,
    further: Further | None = None,
    write_parquet: arrow.ParquetWriter = arrow.write_parquet,
) -> ThreadBuilder:
    """One for the rows of *log*."""
    further = further or Further()
    files = StagingDirectory(directory, write_parquet=write_parquet, further=further.fields)
    segment = Segment(files, "gw", log.store_id, selection or Selection(), further)
    return ThreadBuilder(Setup(str(directory), "gw", log.store_id), segment)


@dataclass(frozen=True)
class TableContents:
    """What a table holds. Attributes: commits (numRecords of each append), sequences, mark."""

    commits: list[int]
    sequences: list[int]
    mark: int

    @property
    def is_exact(self) -> bool:
        """Count, distinct count, highest sequence and mark are one number."""
        return sorted(self.sequences) == list(range(1, self.mark + 1))


def read_table(table: Path, app_id: str) -> TableContents:
    """Replay the commit files of *table* (all of them must still be there)."""
    files: dict[str, None] = {}
    commits: list[int] = []
    mark = 0
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        added = [action["add"] for action in actions if "add" in action]
        files.update({unquote(add["path"]): None for add in added})
        for action in actions:
            if "remove" in action:
                files.pop(unquote(action["remove"]["path"]), None)
            if action.get("txn", {}).get("appId") == app_id:
                mark = int(action["txn"]["version"])
        if added:
            commits.append(sum(json.loads(add["stats"])["numRecords"] for add in added))
    sequences: list[int] = []
    for name in files:
        sequences += pq.read_table(table / name, columns=["ack_seq"])["ack_seq"].to_pylist()
    return TableContents(commits, sequences, mark)


def read_iceberg(table: Path, app_id: str) -> TableContents:
    """Ask pyiceberg what the newest metadata of the Iceberg *table* holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyparsing's, while pyiceberg is imported
        static: Any = importlib.import_module("pyiceberg.table").StaticTable
        newest = max(
            table.glob("metadata/v*.metadata.json"),
            key=lambda path: int(path.name[1:].split(".")[0]),
        )
        found = static.from_metadata(str(newest))
        sequences = found.scan(selected_fields=("ack_seq",)).to_arrow()["ack_seq"].to_pylist()
        pool: Any = importlib.import_module("pyiceberg.utils.concurrent").ExecutorFactory
        pool.get_or_create().shutdown()  # its threads would outlive the test
        pool._instance = None
    commits = [
        int(snapshot.summary.additional_properties.get("added-records", "0"))
        for snapshot in found.metadata.snapshots
    ]
    return TableContents(commits, sequences, int(found.properties[f"tidegate.mark.{app_id}"]))


def read_parquet_table(table: Path, app_id: str) -> TableContents:
    """What a reader of the directory sees, and the newest manifest."""
    sequences: list[int] = []
    for path in table.rglob("*.parquet"):
        if "_tidegate" not in path.parts:
            sequences += pq.ParquetFile(path).read(columns=["ack_seq"])["ack_seq"].to_pylist()
    manifests = [json.loads(path.read_text()) for path in table.glob("_tidegate/*/ack-*.json")]
    own = sorted((m for m in manifests if m["log"] == app_id), key=lambda m: m["hi"])
    return TableContents([m["rows"] for m in own], sequences, own[-1]["hi"] if own else 0)


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until *condition* holds; a bound, not a measurement."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def kill_job(sink: Any, when: Callable[[], object] = lambda: True) -> None:
    """Kill the sink's job, with its whole process group, the instant that *when* holds.

    Never the one that was killed here before, which the sink may not have missed yet.
    """
    async with asyncio.timeout(240):
        while True:
            if when() and sink.job_pid and (sink, sink.job_pid) not in _killed:
                _killed.append((sink, sink.job_pid))
                with contextlib.suppress(ProcessLookupError):  # it had just ended by itself
                    os.killpg(sink.job_pid, signal.SIGKILL)
                    return
            await asyncio.sleep(0.0002)


#: Sinks with the process ids of their jobs.
_killed: list[tuple[Any, int]] = []


def staged_names(directory: Path) -> list[str]:
    """Names of all files below *directory*, temporary ones too."""
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def rows_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All rows of Parquet files, as PyArrow sees them."""
    found: list[dict[str, Any]] = []
    for path in paths:
        found += pq.read_table(path).to_pylist()
    return found


class Kit:
    """What the tests of this folder share; a fixture, because test folders are no packages."""

    MemoryLog = MemoryLog
    thread_builder = ThreadBuilder
    builder_of = staticmethod(builder_of)
    EPOCH_US = EPOCH_US
    acknowledged = staticmethod(acknowledged)
    read_table = staticmethod(read_table)
    read_iceberg = staticmethod(read_iceberg)
    read_parquet_table = staticmethod(read_parquet_table)
    READERS = MappingProxyType(
        {"delta": read_table, "iceberg": read_iceberg, "parquet": read_parquet_table}
    )
    until = staticmethod(until)
    kill_job = staticmethod(kill_job)
    staged_names = staticmethod(staged_names)
    rows_of = staticmethod(rows_of)

    @staticmethod
    def batch(lo: int, hi: int, only: Iterable[int] | None = None) -> Sequence[Any]:
        """Arrow batches for rows lo..hi, or *only* some of them."""
        from tidegate_sink_spark.staging.arrow import build_batch

        numbers = range(lo, hi + 1) if only is None else only
        return [build_batch([acknowledged(n) for n in numbers], "gw", "store-1")]

    @classmethod
    def stage(cls, directory: Path, lo: int, hi: int, only: Iterable[int] | None = None) -> Path:
        """Put a staged file with rows lo..hi into *directory*, as a gateway would."""
        from tidegate_sink_spark.staging.storage import StagingDirectory

        directory.mkdir(parents=True, exist_ok=True)
        return StagingDirectory(directory).seal(lo, hi, cls.batch(lo, hi, only)).path

    @classmethod
    def stage_dead(cls, directory: Path, lo: int, hi: int, dead: Sequence[int]) -> Path:
        """The same with *dead* letters among the rows, of which nothing is known."""
        from tidegate_sink_spark.staging.dead import DeadLetter, build_dead
        from tidegate_sink_spark.staging.storage import StagingDirectory

        directory.mkdir(parents=True, exist_ok=True)
        letters = [DeadLetter(n, f"row {n} is bad", None, b"raw", EPOCH_US) for n in dead]
        only = [n for n in range(lo, hi + 1) if n not in dead]
        return (
            StagingDirectory(directory)
            .seal(
                lo,
                hi,
                cls.batch(lo, hi, only) if only else [],
                build_dead(letters, "gw", "store-1"),
            )
            .path
        )


#: The driver of the JDBC catalog that the tests have.
SQLITE = Artifact(
    "org.xerial",
    "sqlite-jdbc",
    "3.50.3.0",
    "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
)


@dataclass(frozen=True)
class Spark:
    """What the tests that start Java share. Attributes: environment (of the job)."""

    environment: dict[str, str]

    #: Java's second compiler does not pay in jobs of some seconds; one collector thread is enough.
    SHORT_JOB = MappingProxyType(
        {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    )

    def jars(self, table_format: str) -> tuple[Path, ...]:
        """Found, or fetched as the sink does it."""
        from tidegate_sink_spark.java import jars

        return jars.ensure_jars(
            "auto",
            jars.cache_directory("", os.environ),
            repository="",
            environment=self.environment,
            table_format=table_format,
        )

    def conf_of_reader(self, table_format: str) -> dict[str, str]:
        """For a program of one's own; with Iceberg it has a JDBC catalog, so it needs a driver."""
        from tidegate_sink_spark.java import jars

        if table_format != "iceberg":
            return dict(self.SHORT_JOB)
        cache = jars.cache_directory("", os.environ)
        if not jars.is_it(SQLITE, cache / SQLITE.file_name):
            jars.download(cache, "", self.environment, [SQLITE])
        return {**self.SHORT_JOB, "spark.jars": str(cache / SQLITE.file_name)}

    def conf(self, work_directory: Path, table_format: str = "delta") -> dict[str, str]:
        """The configuration that the sink would give its job."""
        from tidegate_sink_spark.job.session import spark_conf

        return spark_conf(
            jars=self.jars(table_format),
            driver_memory_bytes=1 << 30,
            work_directory=work_directory,
            overrides=self.SHORT_JOB,
            table_format=table_format,
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Java first: it takes longest, and nobody is to wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Spark:
    """Java, and jars when they are asked for, found and fetched as the sink does it."""
    from tidegate_sink_spark.java import runtime

    java = runtime.find_java("", tmp_path_factory.mktemp("java"), os.environ)
    return Spark(runtime.job_environment(java, os.environ))


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """Fakes and oracles."""
    return Kit
