"""Staged files as Arrow sees them, for what is written without Spark."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.job.table import FurtherColumns
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.columns import ARROW_TYPES

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: Rows that are held, sorted, and written as a row group at once.
BATCH_ROWS: Final = 50_000
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)", re.ASCII)


def staged_schema(further: FurtherColumns) -> Any:
    """The columns of staged files, *further* ones included."""
    fields = [pa.field(name, _arrow_type(kind)) for name, kind in further if kind != "VARIANT"]
    return pa.schema([*arrow.SCHEMA, *fields])


def _arrow_type(kind: str) -> Any:
    match = _DECIMAL.fullmatch(kind)
    return pa.decimal128(int(match[1]), int(match[2])) if match else ARROW_TYPES[kind]


def staged_batches(path: Path, after: int, schema: Any = arrow.SCHEMA) -> Iterator[Any]:
    """The rows of a staged file behind *after*, as Arrow tables of all columns of *schema*."""
    with pq.ParquetFile(str(path)) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            if after:
                table = table.filter(pc.greater(table["ack_seq"], after))
            for name in schema.names:
                if name not in table.column_names:  # staged by an older version
                    nulls = pa.nulls(table.num_rows, schema.field(name).type)
                    table = table.append_column(schema.field(name), nulls)
            table = table.select(schema.names).cast(schema)
            if table.num_rows:
                yield table


def by_partition(rows: Any, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The Arrow table *rows* in parts that have the same values in the columns *names*, in their order."""
    if not names:
        if rows.num_rows:
            yield (), rows
        return
    numbered = rows.select(list(names)).append_column("", pa.array(range(rows.num_rows)))
    groups = numbered.group_by(list(names), use_threads=False).aggregate([("", "list")])
    if groups.num_rows == 1:
        yield tuple(groups[name][0].as_py() for name in names), rows
        return
    for group in groups.to_pylist():
        yield tuple(group[name] for name in names), rows.take(group["_list"])
