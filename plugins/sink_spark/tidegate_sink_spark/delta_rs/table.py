"""The Delta table, through delta-rs. Runs in the job's process only.

Rows are not copied: a staged file is linked into the table's directory and committed as it is. The
mark is the same as the Spark job's, Delta's transaction identifier, so either engine goes on where
the other one stopped. Two things differ from Spark:

* delta-rs does not refuse a transaction version that is not above the mark: it appends the rows, and
  the mark goes back. So the mark is compared here, on the very snapshot that the commit starts from.
* delta-rs refuses a commit when another one with the same application has been made behind that
  snapshot. So even without a lock two writers cannot both carry the same rows. On a local file
  system the lock is taken all the same: Spark's commits, which rename, are fenced by nothing else.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.delta_rs.place import delta_options, one_line, place_of
from tidegate_sink_spark.delta_rs.types import delta_fields, sql_type
from tidegate_sink_spark.job.delta import PROPERTIES
from tidegate_sink_spark.job.driver import Addition, CommitError, TableState
from tidegate_sink_spark.job.files import FileCount
from tidegate_sink_spark.job.table import Shape, bring_up_to_date, columns_of
from tidegate_sink_spark.placing.delta import PARTITIONS
from tidegate_sink_spark.placing.files import PlacedFile
from tidegate_sink_spark.staging.arrow import VERSION_PROPERTY

#: What delta-rs cannot write and Spark cannot take back once a table has it.
_CLUSTERING: Final = "clustering"


def is_table(table: str | Path, storage_options: Mapping[str, str] | None = None) -> bool:
    """Tell whether there is a Delta table at a path or URI. Raises: CommitError."""
    deltalake: Any = importlib.import_module("deltalake")
    options = delta_options(str(table), storage_options or {})
    try:
        return bool(deltalake.DeltaTable.is_deltatable(str(table), options))
    except OSError as exc:
        raise CommitError(
            f"it cannot be told whether there is a table {table}: {one_line(exc)}"
        ) from exc


class DeltaRsTable:
    """A :class:`tidegate_sink_spark.job.driver.Table` that is a Delta table, in a directory or an object store."""

    def __init__(
        self,
        table: str | Path,
        shape: Shape,
        app_id: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Opens the table and creates it when it is missing. Raises: CommitError, OSError.

        Args:
            table: a path or URI.
            shape: ``partitioned`` or ``plain``.
            storage_options: of an object store, in delta-rs's words.
            scratch: a directory for files on their way there; None: the working directory.
        """
        self._place = place_of(str(table), storage_options or {}, scratch or Path.cwd())
        self._app_id = app_id
        self._deltalake: Any = importlib.import_module("deltalake")
        self._actions: Any = importlib.import_module("deltalake.transaction")
        self._errors: Any = importlib.import_module("deltalake.exceptions")
        self._place.prepare()
        with self._place.lock(), self._delta_errors("the table cannot be opened"):
            self._table: Any = self._open_or_create(shape)
            self._identity = self._version_file()
            self._count_files = FileCount(lambda: len(self._table.file_uris()))
            self._check_features()
            bring_up_to_date(self, self._place.uri, shape.further)
            self._refresh()
        self._placing = self._place.placing(self._partition_columns(), shape.further)

    # ------------------------------------------------------------------------------ the columns
    def _open_or_create(self, shape: Shape) -> Any:
        if not is_table(self._place.uri, self._place.options):
            fields = delta_fields(columns_of(shape.further))
            schema = json.dumps({"type": "struct", "fields": fields})
            self._deltalake.DeltaTable.create(
                self._place.uri,
                schema=self._deltalake.Schema.from_json(schema),
                partition_by=list(shape.partitions) or None,
                mode="ignore",
                configuration=dict(PROPERTIES),
                raise_if_key_not_exists=False,  # the version is a property of our own
                storage_options=self._place.options,
            )
        return self._open()

    def _open(self) -> Any:
        return self._deltalake.DeltaTable(self._place.uri, storage_options=self._place.options)

    def _check_features(self) -> None:
        if _CLUSTERING in (self._table.protocol().writer_features or ()):
            raise CommitError(
                f"the table {self._place.uri} is clustered, which delta-rs cannot write and Spark cannot "
                "take back; name another table, or go on with engine 'spark'"
            )

    def _partition_columns(self) -> tuple[str, ...]:
        columns = tuple(self._table.metadata().partition_columns)
        if not PARTITIONS.issuperset(columns):
            raise CommitError(
                f"the table {self._place.uri} is partitioned by {', '.join(columns)}; this engine writes "
                "tables that are partitioned by ack_date or destination, or not at all"
            )
        return columns

    def columns(self) -> Mapping[str, str]:
        """See :meth:`tidegate_sink_spark.job.table.Columns.columns`."""
        fields = json.loads(self._table.schema().to_json())["fields"]
        return {field["name"]: sql_type(field["type"]) for field in fields}

    def add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.add_columns`."""
        with self._delta_errors("columns cannot be added to the table"):
            fields = self._deltalake.Schema.from_json(
                json.dumps({"type": "struct", "fields": delta_fields(columns)})
            ).fields
            self._table.alter.add_columns(fields)

    def schema_version(self) -> str | None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.schema_version`."""
        found = self._table.metadata().configuration.get(VERSION_PROPERTY)
        return None if found is None else str(found)

    def set_schema_version(self, version: int) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.set_schema_version`."""
        with self._delta_errors("the table's properties cannot be set"):
            self._table.alter.set_table_properties(
                {VERSION_PROPERTY: str(version)}, raise_if_not_exists=False
            )

    # --------------------------------------------------------------------------------- the mark
    def state(self) -> TableState:
        """See :meth:`tidegate_sink_spark.job.driver.Table.state`. Raises: CommitError."""
        self._refresh()
        version = int(self._table.version())
        self._place.reach(version)
        return TableState(self._mark(), version, self._count_files())

    def _mark(self) -> int:
        return int(self._table.transaction_version(self._app_id) or 0)

    def _refresh(self) -> None:
        """Read the commits since the last time, or all of it when it is another table now.

        delta-rs looks for the next commit only. Of a table that was deleted, or replaced by one with
        fewer versions, it would keep the mark for ever. Raises: CommitError.
        """
        with self._delta_errors("the table's mark cannot be read"):
            if self._version_file() == self._identity and self._identity is not None:
                self._table.update_incremental()
            else:
                self._table = self._open()
                self._place.forget()
            self._identity = self._version_file()

    def _version_file(self) -> object:
        """Which file the newest known version is in; None when it is gone."""
        return self._place.version_file(self._table.version())

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        """Ack sequences of that log behind *after*; for a table of a few rows. Raises: CommitError."""
        self._refresh()
        with self._delta_errors("the table's rows cannot be read"):
            found = self._table.to_pyarrow_table(
                columns=["ack_seq"],
                filters=[
                    ("gateway_id", "=", gateway_id),
                    ("epoch", "=", epoch),
                    ("ack_seq", ">", after),
                ],
            )
            return [int(number) for number in found["ack_seq"].to_pylist()]

    # ------------------------------------------------------------------------------- one commit
    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        with self._place.lock():
            self._refresh()
            addition.check_mark(self._mark())
            placed = self._put(addition)
            try:
                with self._delta_errors("the commit failed"):
                    self._commit(placed, addition)
            except CommitError:
                # It may have been made all the same, when what failed is the checkpoint behind it. On this
                # machine a mark below says that it was not, and nobody else has these rows: the lock. An
                # object store may still get what was sent to it: there VACUUM has the files.
                self._refresh()
                if self._place.is_local and self._mark() < addition.through:
                    self._placing.take_back(placed)
                addition.check_mark(self._mark())
                raise

    def _put(self, addition: Addition) -> list[PlacedFile]:
        """See :meth:`tidegate_sink_spark.placing.files.Placing.place_all`."""
        with self._delta_errors("staged files cannot be put into the table", FileNotFoundError):
            return self._placing.place_all(addition)

    def _commit(self, placed: Sequence[PlacedFile], addition: Addition) -> None:
        self._place.begin_commit()
        actions = [
            self._actions.AddAction(
                path=file.name,
                size=file.size_bytes,
                partition_values=file.partition,
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=file.statistics,
            )
            for file in placed
        ]
        properties = self._deltalake.CommitProperties(
            custom_metadata={"userMetadata": addition.metadata, "isBlindAppend": True},
            app_transactions=[self._deltalake.Transaction(self._app_id, addition.through)],
        )
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            partition_by=list(self._placing.partition_by),
            commit_properties=properties,
        )

    @contextmanager
    def _delta_errors(self, what: str, *but: type[Exception]) -> Generator[None]:
        """Turn what delta-rs, PyArrow or the disk raise into a :class:`CommitError` with one line.

        Args: but: left as they are.
        """
        try:
            yield
        except (CommitError, *but):
            raise
        except (self._errors.DeltaError, OSError, ValueError, OverflowError) as exc:
            raise CommitError(f"{what}: {one_line(exc)}") from exc
