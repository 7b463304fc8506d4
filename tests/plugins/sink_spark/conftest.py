"""Fakes and oracles for the Spark sink: an acknowledged log in memory, and a reader of Delta tables.

The reader of tables knows neither Spark nor Java: it replays the table's commit files and reads the
data files with PyArrow, so what it counts does not depend on the code under test.
"""

import asyncio
import importlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import pytest

from tidegate.spi import AcknowledgedMessage, AcknowledgedPage, Message, RequestError

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
    _grown: asyncio.Event = field(default_factory=asyncio.Event)

    def grow(self, count: int) -> None:
        """*count* more messages are acknowledged."""
        self.last += count
        self._grown.set()

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        if after < self.released:
            raise RequestError(f"rows behind {after} were released up to {self.released}")
        rows = [self.make(n) for n in range(after + 1, min(after + limit, self.last) + 1)]
        return AcknowledgedPage(rows, self.last)

    async def wait_beyond(self, after: int) -> None:
        while self.last <= after:
            self._grown.clear()
            await self._grown.wait()

    async def release(self, through: int) -> None:
        assert through <= self.last, "what was never acknowledged cannot be released"
        self.released = max(self.released, through)
        self.releases.append(through)


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


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until *condition* holds; a bound, not a measurement."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


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
    acknowledged = staticmethod(acknowledged)
    read_table = staticmethod(read_table)
    until = staticmethod(until)
    staged_names = staticmethod(staged_names)
    rows_of = staticmethod(rows_of)

    @staticmethod
    def batch(lo: int, hi: int) -> Sequence[Any]:
        """Arrow batches for rows lo..hi."""
        from tidegate_sink_spark.staging.arrow import build_batch

        return [build_batch([acknowledged(n) for n in range(lo, hi + 1)], "gw", "store-1")]

    @classmethod
    def stage(cls, directory: Path, lo: int, hi: int) -> Path:
        """Put a staged file with rows lo..hi into *directory*, as a gateway would."""
        from tidegate_sink_spark.staging.storage import StagingDirectory

        directory.mkdir(parents=True, exist_ok=True)
        return StagingDirectory(directory).seal(lo, hi, cls.batch(lo, hi)).path


@dataclass(frozen=True)
class Spark:
    """What the tests that start Java share. Attributes: environment, jars (of the job)."""

    environment: dict[str, str]
    jars: tuple[Path, ...]

    #: Java's second compiler does not pay in jobs of some seconds; one collector thread is enough.
    SHORT_JOB = MappingProxyType(
        {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    )

    def conf(self, work_directory: Path) -> dict[str, str]:
        """The configuration that the sink would give its job."""
        from tidegate_sink_spark.job.session import spark_conf

        return spark_conf(
            jars=self.jars,
            driver_memory_bytes=1 << 30,
            work_directory=work_directory,
            overrides=self.SHORT_JOB,
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Java first: it takes longest, and nobody is to wait for it in the end."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Spark:
    """Java and Delta's jars, found and fetched as the sink does it."""
    from tidegate_sink_spark import _jars, _runtime

    java = _runtime.find_java("", tmp_path_factory.mktemp("java"), os.environ)
    environment = _runtime.job_environment(java, os.environ)
    cache = _jars.cache_directory("", os.environ)
    jars = _jars.ensure_jars("auto", cache, repository="", environment=environment)
    return Spark(environment, jars)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """Fakes and oracles."""
    return Kit
