"""A replay from a table without Java into a running gateway: what ``tidegate replay`` does, without its start."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchkit.sink import pipeline
from benchkit.sink.gateways import SinkGateway
from tidegate.operator_socket import OperatorClient
from tidegate_sink_spark import SparkSinkOptions
from tidegate_sink_spark.replay import Maker, Reader, Replayer, Selection, Told, open_table

_FILE_ROWS: Final = 50_000
_QUEUE: Final = "queue://bench.replayed"


@dataclass(frozen=True, slots=True)
class Replayed:
    """Attributes: rate: messages a second, from the first request that publishes to the last answer.
    cpu_us: of the gateway, and own_us of who replays, for a message; planning_s: before the first one."""

    rate: float
    cpu_us: float
    own_us: float
    planning_s: float


def make_table(directory: Path, staged: Path, count: int) -> Path:
    """A table of *count* rows. Args: directory, staged: empty ones."""
    pipeline.stage(staged, count, _FILE_ROWS)
    pipeline.measure_table("deltalake", directory, staged, count, commit_rows=count)
    return directory / "table"


def measure(gateway: SinkGateway, table: Path, number: int) -> Replayed:
    """Replay all of *table* into a queue, as replay *number* of this gateway."""
    told: list[tuple[float, int]] = []

    def note(each: Told) -> None:
        told.append((time.perf_counter(), each.done))

    options = SparkSinkOptions(table=str(table), engine="deltalake")
    rows = open_table(options, table)
    begun = time.perf_counter()
    own, used = time.process_time(), gateway.broker.cpu_seconds()
    try:
        with OperatorClient(gateway.directory / "data") as client:
            maker = Maker("table", f"bench-{number}", f"{_QUEUE}.{number}")
            replayer = Replayer(
                client, Reader(rows, Selection(keeps_destination=False)), maker, "bench", tell=note
            )
            found = replayer.run()
    finally:
        rows.close()
    own, used = time.process_time() - own, gateway.broker.cpu_seconds() - used
    first, last = told[0][0], told[-1][0]
    return Replayed(
        found.count / (last - first),
        used / found.count * 1e6,
        own / found.count * 1e6,
        first - begun,
    )
