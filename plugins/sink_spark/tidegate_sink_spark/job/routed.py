"""Several tables as one: rows go by their destination, and the main table holds the position.

A commit appends to each table that has rows in it, the main one last, with or without rows: its mark
is the mark of all. Each of the others has a mark of its own, as far as its last rows went. When a
job dies between two of them, the next one takes the same rows again from the main mark, and each
table leaves out what its own mark says it has. So every row is in its table exactly once, whatever
was the last thing that happened.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.job.driver import Addition, Table, TableState
from tidegate_sink_spark.job.table import FurtherColumns
from tidegate_sink_spark.placing.batches import staged_batches, staged_schema
from tidegate_sink_spark.staging.selection import REMEMBERED_MAX, routed

pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

_MAIN: Final = ""


class RoutedTable:
    """A :class:`tidegate_sink_spark.job.driver.Table` made of several."""

    def __init__(
        self,
        main: Table,
        routes: Mapping[str, str],
        open_table: Callable[[str], Table],
        directory: Path,
        *,
        further: FurtherColumns = (),
    ) -> None:
        """Opens all tables. Raises: CommitError, OSError.

        Args:
            main: holds the position, and rows that no pattern covers.
            routes: table by pattern of destinations; the first pattern that covers one counts.
            open_table: opens a table by its name.
            directory: for rows on their way; on the same machine as the job.
            further: columns besides those that every table has.
        """
        self._main = main
        self._routes = dict(routes)
        self._others = {name: open_table(name) for name in dict.fromkeys(routes.values())}
        self._directory = directory
        self._table_of = functools.lru_cache(REMEMBERED_MAX)(
            functools.partial(routed, self._routes)  # "": _MAIN
        )
        self._schema = staged_schema(further)

    def state(self) -> TableState:
        """See :meth:`tidegate_sink_spark.job.driver.Table.state`: the main table's."""
        return self._main.state()

    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        known = {name: table.state().mark for name, table in self._others.items()}
        marks = {name: max(addition.after, mark) for name, mark in known.items()}
        parts = _Parts(self._directory, [_MAIN, *self._others], self._schema)
        try:
            with parts:
                self._divide(addition, marks, parts)
            addition.check_count(parts.seen)
            for name, table in self._others.items():
                if parts.rows[name]:
                    own = replace(addition, after=marks[name], known=known[name])
                    table.append(parts.addition(name, own))
            self._main.append(parts.addition(_MAIN, addition))
        finally:
            parts.remove()

    def _divide(self, addition: Addition, marks: Mapping[str, int], parts: _Parts) -> None:
        for path in addition.paths:
            for rows in staged_batches(path, addition.after, self._schema):
                parts.seen += rows.num_rows
                for name, part in self._by_table(rows):
                    behind = pc.greater(part["ack_seq"], marks.get(name, addition.after))
                    parts.write(name, part.filter(behind))

    def _by_table(self, rows: Any) -> Iterator[tuple[str, Any]]:
        destinations = rows["destination"]
        by_table: dict[str, list[str]] = {}
        for destination in pc.unique(destinations).to_pylist():
            by_table.setdefault(self._table_of(destination), []).append(destination)
        if len(by_table) == 1:
            yield next(iter(by_table)), rows
            return
        for name, of_table in by_table.items():
            yield name, rows.filter(pc.is_in(destinations, pa.array(of_table, pa.string())))


class _Parts:
    """One file for each table, in the job's directory; a killed job's go with the directory."""

    def __init__(self, directory: Path, names: Sequence[str], schema: Any) -> None:
        self._schema = schema
        self.paths = {
            name: directory / f"part-{number}.parquet" for number, name in enumerate(names)
        }
        self.rows = dict.fromkeys(names, 0)
        self.seen = 0
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> _Parts:
        for name, path in self.paths.items():
            path.unlink(missing_ok=True)  # never written over: a table may have it as its own
            self._writers[name] = pq.ParquetWriter(
                str(path), self._schema, compression="zstd", store_schema=False
            )
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def write(self, name: str, rows: Any) -> None:
        if rows.num_rows:
            self._writers[name].write_table(rows)
            self.rows[name] += rows.num_rows

    def addition(self, name: str, whole: Addition) -> Addition:
        """What of *whole* goes to the table *name*."""
        count = self.rows[name]
        metadata = json.dumps({**json.loads(whole.metadata), "n": count})
        return replace(
            whole, paths=[self.paths[name]], count=count, overlaps=False, metadata=metadata
        )

    def remove(self) -> None:
        for path in self.paths.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
