"""What is in a table, read by what is neither Spark nor ours: delta-rs, pyiceberg."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake


def table_batches(table: Path, table_format: str) -> Iterator[Any]:
    """The columns ``ack_seq`` and ``body`` of a local table, ``delta`` or ``iceberg``."""
    columns = ["ack_seq", "body"]
    if table_format == "delta":
        yield from deltalake.DeltaTable(str(table)).to_pyarrow_dataset().to_batches(columns)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyparsing's, while pyiceberg is imported
        from pyiceberg.table import StaticTable
    newest = max(
        (table / "metadata").glob("v*.metadata.json"),
        key=lambda path: int(path.name[1:].partition(".")[0]),
    )
    static = StaticTable.from_metadata(str(newest))
    yield from static.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()
    pool: Any = importlib.import_module("pyiceberg.utils.concurrent").ExecutorFactory
    pool.get_or_create().shutdown()  # its threads would outlive the test
    pool._instance = None
