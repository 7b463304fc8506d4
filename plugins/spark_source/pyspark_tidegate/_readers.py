"""The interface that Spark asks of a source: schema, offsets, partitions, rows, commit.

Written for Spark 4.1, which tells a stream's ``latestOffset`` neither the query's position nor a
limit: the gateway remembers how far each named reader may go, and caps it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidegate._client import Client, Gone
from pyspark_tidegate._options import Options

_types: Final[Any] = importlib.import_module("pyspark.sql.pandas.types")


@dataclass
class Part(InputPartition):
    """The rows of one task. Attributes: ticket: the request to the gateway."""

    ticket: dict[str, Any]


def spark_schema(schema: Any) -> StructType:
    """An Arrow schema in Spark's types."""
    return cast(StructType, _types.from_arrow_schema(schema))


def _rows(options: Options, partition: InputPartition | None) -> Iterator[Any]:
    if partition is None:
        return iter(())
    assert isinstance(partition, Part)
    return Client.of(options).rows(partition.ticket)


class BatchReader(DataSourceReader):
    """A bounded range of the log. Moves no reader's position."""

    def __init__(self, options: Options) -> None:
        if options.max_rows_per_batch:
            raise ValueError("tidegate: max_rows_per_batch has effect on a stream alone")
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        wanted: dict[str, object] = {
            "rows": options.rows_per_partition,
            "skip": not options.fail_on_data_loss,
        }
        for name, text in (("from", options.start), ("to", options.to)):
            if text:
                try:
                    wanted[name] = int(text)
                except ValueError:
                    raise ValueError(f"tidegate: {name} = {text!r} is no number of a row") from None
        for name in ("since", "until", "reader"):
            if getattr(options, name):
                wanted[name] = getattr(options, name)
        return [Part(ticket) for ticket in Client.of(options).plan(**wanted)[1]]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """The rows of *partition*; Spark passes None when there are no partitions."""
        return _rows(self._options, partition)


class StreamReader(DataSourceStreamReader):
    """Everything after the reader's position, in order. Lives in the driver with the query."""

    def __init__(self, options: Options) -> None:
        if not options.reader:
            raise ValueError(
                "tidegate: a stream wants the option 'reader', one for each query: the gateway's sink names"
                " its readers, and keeps rows until they have them"
            )
        for name in ("start", "to", "since", "until"):
            if getattr(options, name):
                shown = name.replace("start", "from")
                raise ValueError(
                    f"tidegate: {shown} has effect on a batch alone; a stream begins where its reader is"
                )
        self._options = options
        self._generation = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """For a query without a checkpoint. Spark calls ``latestOffset`` first."""
        view = self._act("look")
        return {"epoch": view["epoch"], "ack_seq": view["committed"]}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        view = self._act(
            "plan",
            generation=self._opened(),
            rows_max=self._options.max_rows_per_batch,
        )
        return {"epoch": view["epoch"], "ack_seq": view["planned"]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The range may be empty, after a restart."""
        if start["epoch"] != end["epoch"]:
            raise Gone(
                f"tidegate {self._options.uri}: the checkpoint is of another store (epoch {start['epoch']}, this"
                f" one has {end['epoch']}): its numbers say nothing here; begin with a new checkpoint"
            )
        first, last = start["ack_seq"], end["ack_seq"]
        if last < first:
            raise Gone(
                f"tidegate {self._options.uri}: the checkpoint is at row {first}, and the gateway let reader"
                f" {self._options.reader!r} go to {last} only: it is another reader's checkpoint, or the gateway"
                " lost the position; begin with a new checkpoint"
            )
        rows, skip = self._options.rows_per_partition, not self._options.fail_on_data_loss
        return [
            Part(
                {
                    "epoch": end["epoch"],
                    "after": after,
                    "through": min(after + rows, last),
                    "skip": skip,
                }
            )
            for after in range(first, last, rows)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """See :meth:`BatchReader.read`."""
        return _rows(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint is past *end*, so it is never read again. Called one batch late."""
        self._act("commit", generation=self._opened(), epoch=end["epoch"], ack_seq=end["ack_seq"])

    def _opened(self) -> int:
        """Open the reader: older queries of it are refused from now on."""
        if not self._generation:
            self._generation = self._act("open")["generation"]
        return self._generation

    def _act(self, name: str, **values: object) -> dict[str, Any]:
        return Client.of(self._options).act(name, reader=self._options.reader, **values)
