"""A Spark job without Spark: the real loop and protocol over a table that is one JSON file.

Usage: fake_job.py; like ``python -m tidegate_sink_spark.job.run`` otherwise. Spark settings that
begin with ``fake.`` make it fail on purpose.
"""

import json
import os
import queue
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq

from tidegate_sink_spark._protocol import Command, Failed, Report, decode_config, encode_line
from tidegate_sink_spark.job import run
from tidegate_sink_spark.job.dead import DeadLetterTable
from tidegate_sink_spark.job.driver import Addition, CommitError, Driver, TableState
from tidegate_sink_spark.job.table import dead_letters_of
from tidegate_sink_spark.staging.dead import REASON


class FileTable:
    """Rows and mark in one file that is replaced as a whole."""

    def __init__(self, path: Path, conf: dict[str, str]) -> None:
        self._path = path
        self._conf = conf
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps({"mark": 0, "version": 0, "rows": [], "reasons": []}))

    def _load(self) -> dict:
        return json.loads(self._path.read_text())

    def state(self) -> TableState:
        found = self._load()
        return TableState(found["mark"], found["version"])

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        return [row for row in self._load()["rows"] if row > after]

    def append(self, addition: Addition) -> None:
        found = self._load()
        if (
            self._conf.get("fake.fail_while_exists")
            and Path(self._conf["fake.fail_while_exists"]).exists()
        ):
            raise CommitError("told to fail")
        for path in addition.paths:
            rows = pq.read_table(path, columns=["ack_seq"])["ack_seq"].to_pylist()
            found["rows"] += [row for row in rows if row > addition.after or not addition.overlaps]
            found["reasons"] += _reasons(path)
        found["mark"] = addition.through
        found["version"] += 1
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(found))
        os.replace(temporary, self._path)
        if self._conf.get("fake.die_after_commit"):
            os._exit(7)


def _reasons(path: Path) -> list[str]:
    """Why rows are dead letters, of those that are."""
    headers = pq.read_table(path, columns=["headers"])["headers"].to_pylist()
    return [dict(pairs)[REASON] for pairs in headers if REASON in dict(pairs)]


def main() -> int:
    config = decode_config(sys.stdin.buffer.readline())
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(
        target=run._follow_stdin, args=(sys.stdin.buffer, commands), daemon=True
    ).start()
    print("this job says something on stderr", file=sys.stderr, flush=True)

    def report(value: Report) -> None:
        sys.stdout.buffer.write(encode_line(value))
        sys.stdout.buffer.flush()

    if config.spark_conf.get("fake.mute"):
        threading.Event().wait()
    if config.spark_conf.get("fake.noise"):
        sys.stdout.write("Ivy says hello\n")
    try:
        letters = Path(dead_letters_of(config.table))

        def find(creates: bool) -> FileTable | None:
            return FileTable(letters, config.spark_conf) if creates or letters.exists() else None

        driver = Driver(
            FileTable(Path(config.table), config.spark_conf),
            DeadLetterTable(
                find, Path.cwd(), gateway_name=config.gateway_name, store_id=config.store_id
            ),
            Path(config.staging_directory),
            gateway_name=config.gateway_name,
            floor=config.floor,
            rows_max=config.commit_rows,
            bytes_max=config.commit_bytes,
            commit_interval=config.commit_interval,
            report=report,
        )
        return 0 if driver.run(commands) else 1
    except CommitError as exc:
        report(Failed(str(exc)))
        return 1


if __name__ == "__main__":
    os._exit(main())
