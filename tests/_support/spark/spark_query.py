"""A user's Spark program, in a process of its own: it does what its standard input says, line by line.

Run as a program it starts a session; imported, it has :class:`SparkQuery`, which starts the program.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAIT_S = 240.0
#: Java's second compiler does not pay in jobs of some seconds; one collector thread is enough.
SHORT_JOB = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


class SparkQuery:
    """The program. ``kill`` takes Java along."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                text=True,
            )

    def send(self, op: str, **values: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **values}) + "\n")
        self.process.stdin.flush()

    def ask(self, op: str, **values: Any) -> dict[str, Any]:
        self.send(op, **values)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text(errors="replace")[-4000:]
        return json.loads(line)

    def wait_for(self, rows: int, table: Path) -> dict[str, Any]:
        """Until *table* has *rows* rows; what it has. It may take as long as it wants while they grow."""
        before, deadline = -1, 0.0
        while True:
            found = self.ask("table", table=str(table))
            if found.get("rows", 0) > before:
                before, deadline = found.get("rows", 0), time.monotonic() + WAIT_S
            if found.get("rows") == rows:
                return found
            status = self.ask("status")
            assert "error" not in status, status
            assert not status["exception"], status
            assert time.monotonic() < deadline, (found, status)
            time.sleep(0.2)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def __enter__(self) -> SparkQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def summary(frame: Any) -> dict[str, Any]:
    row = frame.selectExpr(
        "count(*)",
        "count(distinct ack_seq)",
        "min(ack_seq)",
        "max(ack_seq)",
        "max(received_at)",
        "count(distinct body)",
        "sort_array(collect_set(destination))",
    ).first()
    names = ("rows", "distinct", "first", "last", "received_at", "bodies", "destinations")
    return {
        name: str(value) if name == "received_at" else value
        for name, value in zip(names, row, strict=True)
    }


def main() -> None:
    from tidegate_sink_spark import create_session
    from tidegate_sink_spark._options import SparkSinkOptions

    conf = {**SHORT_JOB, "spark.sql.streaming.stopTimeout": "60000"}
    spark = create_session("source-test", SparkSinkOptions(spark_conf=conf))
    query: Any = None
    for line in sys.stdin:
        wanted = json.loads(line)
        op, options = wanted["op"], wanted.get("options", {})
        result: dict[str, Any] = {}
        try:
            if op == "read":
                frame = spark.read.format("tidegate").options(**options).load()
                result = summary(frame) | {
                    "schema": frame.schema.simpleString(),
                    "partitions": frame.rdd.getNumPartitions(),
                }
            elif op == "stream":
                rows = spark.readStream.format("tidegate").options(**options).load()
                writer = rows.writeStream.format("delta").option(
                    "checkpointLocation", wanted["checkpoint"]
                )
                if wanted.get("once"):
                    writer = writer.trigger(availableNow=True)
                query = writer.start(wanted["table"])
                if wanted.get("once"):
                    query.awaitTermination()
            elif op == "status":
                # numInputRows counts a batch twice where the sink scans it twice, so: offsets.
                progress = [
                    json.loads(item.json)["sources"][0]
                    for item in (query.recentProgress if query is not None else ())
                ]
                result = {
                    "exception": str(query.exception() or "") if query is not None else "",
                    "active": query is not None and query.isActive,
                    "ends": [
                        source["endOffset"]["ack_seq"] for source in progress if source["endOffset"]
                    ],
                }
            elif op == "stop" and query is not None:
                query.stop()
            elif op == "table" and Path(wanted["table"], "_delta_log").exists():
                result = summary(spark.read.format("delta").load(wanted["table"]))
        except Exception as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
