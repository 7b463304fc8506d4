"""The Iceberg table, through Spark and Iceberg's own Java API. Runs in the job's process only.

The mark is in the same metadata as the rows: the snapshot's summary says what the commit added,
and the table property ``tidegate.mark.<log>`` holds the mark, because a summary is lost with its
snapshot when snapshots expire. Spark's own append cannot set a property, and when it loses a
race it appends again on top of the winner, which is how a leftover driver would double rows. So

1. Spark writes the data files as it does for a compaction, and gives them to us uncommitted;
2. the append's snapshot is made on the metadata whose mark was compared with ours;
3. snapshot, ``main`` and property go into one new metadata, which replaces exactly that metadata:
   the catalog's compare-and-swap is the fence, and a lost race compares the mark again.

A Hadoop catalog has no compare-and-swap on a local file system (a rename there replaces), so local
tables have the file lock of :mod:`tidegate_sink_spark.job.files` as well.
"""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tidegate_sink_spark.job.driver import Addition, CommitError, TableState
from tidegate_sink_spark.job.durable import directories_above, sync_files
from tidegate_sink_spark.job.files import java_lock, local_path
from tidegate_sink_spark.job.rows import in_files, quoted_name, spark_errors, staged_rows
from tidegate_sink_spark.job.table import Shape, bring_up_to_date, schema_text
from tidegate_sink_spark.staging.arrow import SCHEMA_VERSION, VERSION_PROPERTY

MARK_PROPERTY: Final = "tidegate.mark."
SUMMARY_PROPERTY: Final = "tidegate.commit"
#: Metadata files are whole copies of the table's history, one for each commit.
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    VERSION_PROPERTY: str(SCHEMA_VERSION),
}
#: What a table with a Variant has instead; readers must be newer then.
_WITH_VARIANT: Final = {**_PROPERTIES, "format-version": "3"}
_SORTED_BY: Final = ("destination", "acked_at")
#: Races lost in a row to others (a compaction) before the commit counts as failed.
ATTEMPTS_MAX: Final = 5
#: Snapshots synced when the job starts: the one commit that a driver killed before it could
#: sync may have left, and a few more for maintenance jobs.
_SYNCED_AT_START: Final = 4


def find_table(spark: Any, table: str, *, is_name: bool = False) -> Any | None:
    """Iceberg's own object for *table*; None when there is none. Raises: Py4JError."""
    if is_name:
        catalog, identifier = _identified(spark, table)
        return catalog.loadTable(identifier) if catalog.tableExists(identifier) else None
    tables, location = _hadoop_tables(spark), str(local_path(table) or table)
    return tables.load(location) if tables.exists(location) else None


def is_table(spark: Any, table: str, *, is_name: bool = False) -> bool:
    """Tell whether there is an Iceberg table. Raises: CommitError."""
    with spark_errors(f"it cannot be told whether there is a table {table}"):
        return find_table(spark, table, is_name=is_name) is not None


def mark_in(metadata: Any, app_id: str) -> int:
    """The mark of a log, 0 for none."""
    return int(metadata.properties().getOrDefault(MARK_PROPERTY + app_id, "0"))


def files_of(snapshot: Any | None) -> int:
    """How many data files a table consists of. Args: snapshot: None: the table is empty."""
    if snapshot is None:
        return 0
    return int(snapshot.summary().getOrDefault("total-data-files", "0"))


def _hadoop_tables(spark: Any) -> Any:
    """Tables by their path or URI."""
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return spark._jvm.org.apache.iceberg.hadoop.HadoopTables(conf)


def _identified(spark: Any, name: str) -> tuple[Any, Any]:
    """The catalog of a table, as Iceberg knows it, and what it calls the table.

    Not Spark's own catalog: for a missing table it also looks for a view, and JDBC catalogs may have none.
    """
    catalog_name, *namespace, table = name.split(".")
    jvm = spark._jvm
    catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
        spark._jsparkSession, catalog_name
    )
    api = jvm.org.apache.iceberg.catalog
    return catalog, api.TableIdentifier.of(api.Namespace.of(_strings(spark, *namespace)), table)


def _strings(spark: Any, *values: str) -> Any:
    """An array for Java."""
    array = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.String, len(values))
    for index, value in enumerate(values):
        array[index] = value
    return array


class IcebergTable:
    """A :class:`tidegate_sink_spark.job.driver.Table` that is an Iceberg table."""

    def __init__(
        self,
        spark: Any,
        table: str,
        shape: Shape,
        app_id: str,
        *,
        is_name: bool = False,
    ) -> None:
        """Opens the table and creates it when it is missing.

        Args: table: a path or URI; or, with *is_name*, ``catalog.namespace.table``.
        Raises: CommitError.
        """
        self._further = shape.further
        has_variant = any(kind == "VARIANT" for _, kind in shape.further)
        self._properties = _WITH_VARIANT if has_variant else _PROPERTIES
        self._spark = spark
        self._jvm = spark._jvm
        self._name = table
        self._app_id = app_id
        self._partition_by = shape.partitions
        self._sort_by = () if shape.layout == "plain" else _SORTED_BY
        self._synced: int | None = None
        with spark_errors("the table cannot be opened"):
            self._table = self._named() if is_name else self._at(table)
            self._directory = local_path(str(self._table.location()))
            with self.locked():
                bring_up_to_date(self, self._name, shape.further)

    @property
    def java_table(self) -> Any:
        """Iceberg's own object. For one thread at a time."""
        return self._table

    # ------------------------------------------------------------------------------------ opening
    def _at(self, location: str) -> Any:
        directory = local_path(location)
        if directory is not None:
            self._name = location = str(directory)
            directory.parent.mkdir(parents=True, exist_ok=True)
        if directory is None:
            return self._open_or_create(location)
        with java_lock(self._jvm, directory):
            return self._open_or_create(location)

    def _open_or_create(self, location: str) -> Any:
        found = find_table(self._spark, location)
        if found is not None:
            return found
        schema = self._schema()
        return _hadoop_tables(self._spark).create(
            schema, self._spec(schema), self._order(schema), self._map(self._properties), location
        )

    def _named(self) -> Any:
        if self._name.count(".") > 1:
            namespace = quoted_name(self._name.rpartition(".")[0])
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        catalog, identifier = _identified(self._spark, self._name)
        if not catalog.tableExists(identifier):
            schema = self._schema()
            builder = catalog.buildTable(identifier, schema)
            builder = builder.withPartitionSpec(self._spec(schema))
            builder = builder.withSortOrder(self._order(schema))
            builder.withProperties(self._map(self._properties)).create()
        return catalog.loadTable(identifier)

    def _schema(self) -> Any:
        types = self._jvm.org.apache.spark.sql.types.StructType
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(
            types.fromDDL(schema_text(self._further))
        )

    def _spec(self, schema: Any) -> Any:
        builder = self._jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        for column in self._partition_by:
            builder = builder.identity(column)
        return builder.build()

    def _order(self, schema: Any) -> Any:
        builder = self._jvm.org.apache.iceberg.SortOrder.builderFor(schema)
        for column in self._sort_by:
            builder = builder.asc(column)
        return builder.build()

    def _map(self, values: Mapping[str, str]) -> Any:
        found = self._jvm.java.util.HashMap()
        for key, value in values.items():
            found.put(key, value)
        return found

    # ------------------------------------------------------------------------------------ columns
    def columns(self) -> Mapping[str, str]:
        """See :meth:`tidegate_sink_spark.job.table.Columns.columns`."""
        with spark_errors("the table's columns cannot be read"):
            self._table.refresh()
            util = self._jvm.org.apache.iceberg.spark.SparkSchemaUtil
            fields = util.convert(self._table.schema()).fields()
            return {field.name(): str(field.dataType().sql()) for field in fields}

    def add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.add_columns`."""
        types = self._jvm.org.apache.spark.sql.types.DataType
        util = self._jvm.org.apache.iceberg.spark.SparkSchemaUtil
        with spark_errors("columns cannot be added to the table"):
            version = int(self._table.operations().current().formatVersion())
            if version < 3 and any(kind == "VARIANT" for _, kind in columns):
                raise CommitError(
                    f"the Iceberg table {self._name} has format version {version}, and a Variant wants 3: ALTER "
                    "TABLE … SET TBLPROPERTIES ('format-version' = '3'), or name another table, or take body "
                    "'json'"
                )
            update = self._table.updateSchema()
            for name, kind in columns:
                update = update.addColumn(name, util.convert(types.fromDDL(kind)))
            update.commit()

    def schema_version(self) -> str | None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.schema_version`."""
        with spark_errors("the table's properties cannot be read"):
            self._table.refresh()
            found = self._table.properties().get(VERSION_PROPERTY)
            return None if found is None else str(found)

    def set_schema_version(self, version: int) -> None:
        """See :meth:`tidegate_sink_spark.job.table.Columns.set_schema_version`."""
        with spark_errors("the table's properties cannot be set"):
            self._table.updateProperties().set(VERSION_PROPERTY, str(version)).commit()

    # --------------------------------------------------------------------------------------- mark
    def state(self) -> TableState:
        """See :meth:`tidegate_sink_spark.job.driver.Table.state`. Raises: CommitError."""
        with spark_errors("the table's mark cannot be read"):
            self._table.refresh()
            metadata = self._table.operations().current()
            files = files_of(metadata.currentSnapshot())
            mark = mark_in(metadata, self._app_id)
            state = TableState(mark, int(metadata.lastSequenceNumber()), files)
            if self._directory is not None:
                self._sync(metadata)
        return state

    def _sync(self, metadata: Any) -> None:
        """Sync what the newest snapshots consist of, so that it survives a power cut."""
        current = metadata.currentSnapshot()
        newest = None if current is None else int(current.snapshotId())
        if newest is not None and newest == self._synced:
            return
        location = str(metadata.metadataFileLocation())
        paths = [location, f"{location.rpartition('/')[0]}/version-hint.text"]
        io, changes_of = self._table.io(), self._jvm.org.apache.iceberg.SnapshotChanges
        snapshot, left = current, _SYNCED_AT_START if self._synced is None else ATTEMPTS_MAX * 20
        while snapshot is not None and snapshot.snapshotId() != self._synced and left:
            paths.append(snapshot.manifestListLocation())
            paths += [
                manifest.path()
                for manifest in snapshot.allManifests(io)
                if manifest.snapshotId() == snapshot.snapshotId()
            ]
            changes = changes_of.builderFor(self._table).snapshot(snapshot).build()
            paths += [str(file.location()) for file in changes.addedDataFiles()]
            parent = snapshot.parentId()
            snapshot = None if parent is None else metadata.snapshot(parent)
            left -= 1
        try:
            files = [path for path in map(local_path, paths) if path is not None]
            sync_files(files, directories_above(files, self._directory))
        except OSError as exc:
            raise CommitError(f"the table's files cannot be synced: {exc}") from exc
        self._synced = newest

    def sequences(self, gateway_id: str, epoch: str, after: int) -> list[int]:
        """See :meth:`tidegate_sink_spark.job.dead.SequencedTable.sequences`.

        Spark's catalogs cache older states of a table; this asks for the newest.
        """
        iceberg = self._jvm.org.apache.iceberg
        expressions = iceberg.expressions.Expressions
        of_log = getattr(expressions, "and")(
            expressions.equal("gateway_id", gateway_id), expressions.equal("epoch", epoch)
        )
        wanted = getattr(expressions, "and")(of_log, expressions.greaterThan("ack_seq", after))
        with spark_errors("the table's rows cannot be read"):
            self._table.refresh()
            scan = iceberg.data.IcebergGenerics.read(self._table).where(wanted)
            found = scan.select(_strings(self._spark, "ack_seq")).build()
            try:
                records, numbers = found.iterator(), list[int]()
                while records.hasNext():
                    numbers.append(int(records.next().getField("ack_seq")))
                return numbers
            finally:
                found.close()

    # ------------------------------------------------------------------------------------- append
    def append(self, addition: Addition) -> None:
        """See :meth:`tidegate_sink_spark.job.driver.Table.append`."""
        with spark_errors("the commit failed"), self.locked():
            self._table.refresh()
            addition.check_mark(mark_in(self._table.operations().current(), self._app_id))
            rows = staged_rows(self._spark, addition, self._further)
            files = self._write(in_files(self._spark, rows, addition.count))
            addition.check_count(sum(int(file.recordCount()) for file in files))
            for attempt in range(1, ATTEMPTS_MAX + 1):
                if self._commit(files, addition):
                    return
                if attempt == ATTEMPTS_MAX:
                    raise CommitError(
                        f"the commit failed: others changed the table {ATTEMPTS_MAX} times meanwhile"
                    )

    def _write(self, rows: Any) -> Any:
        """Write *rows* as data files of the table, not committed yet; returns a Java set of them."""
        group = f"tidegate-{uuid.uuid4()}"
        spark = self._jvm.org.apache.iceberg.spark
        rows = self._with_all_columns(rows)
        # The partition columns come first: then one file at a time is open, however many there are.
        partitions = self._partitions()
        order = [*(partitions or ()), *self._sort_by]
        if order:
            rows = rows.sortWithinPartitions(*dict.fromkeys(order))
        spark.SparkTableCache.get().add(group, self._table)
        coordinator = spark.FileRewriteCoordinator.get()
        try:
            (
                rows.write.format("iceberg")
                .mode("append")
                .option("use-table-distribution-and-ordering", "false")
                .option("fanout-enabled", "true" if partitions is None else "false")
                .save(group)
            )
            return coordinator.fetchNewFiles(self._table, group)
        finally:
            coordinator.clearRewrite(self._table, group)
            spark.SparkTableCache.get().remove(group)

    def _with_all_columns(self, rows: Any) -> Any:
        """*rows* with NULL in the table's columns that are not ours, or no longer."""
        functions: Any = importlib.import_module("pyspark.sql.functions")
        for name, kind in self.columns().items():
            if name not in rows.columns:
                rows = rows.withColumn(name, functions.lit(None).cast(kind))
        return rows

    def _partitions(self) -> list[str] | None:
        """The table's partition columns; None if it is partitioned by anything but plain columns."""
        schema, fields = self._table.schema(), self._table.spec().fields()
        if not all(field.transform().isIdentity() for field in fields):
            return None
        return [str(schema.findColumnName(field.sourceId())) for field in fields]

    def _commit(self, files: Any, addition: Addition) -> bool:
        """One attempt; False when another commit came first, and nothing was changed."""
        prepared = self._prepare(files, addition)
        return prepared is not None and self._swap(*prepared)

    def _prepare(self, files: Any, addition: Addition) -> tuple[Any, Any] | None:
        """The metadata that was compared, and its replacement; None: it moved on."""
        operations = self._table.operations()
        append = self._table.newAppend()
        for file in files:
            append.appendFile(file)
        snapshot = append.set(SUMMARY_PROPERTY, addition.metadata).apply()  # writes only manifests
        base = operations.current()
        addition.check_mark(mark_in(base, self._app_id))
        current = base.currentSnapshot()
        if snapshot.parentId() != (None if current is None else current.snapshotId()):
            return None
        return base, (
            self._jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
            .setBranchSnapshot(snapshot, "main")
            .setProperties(self._map({MARK_PROPERTY + self._app_id: str(addition.through)}))
            .build()
        )

    def _swap(self, base: Any, changed: Any) -> bool:
        """Replace *base*, and nothing else, with *changed*; False when it is no longer the newest."""
        py4j: Any = importlib.import_module("py4j.protocol")
        try:
            self._table.operations().commit(base, changed)
        except py4j.Py4JJavaError as exc:
            # Any other error leaves the outcome open; the driver reads the mark, and knows.
            if exc.java_exception.getClass().getSimpleName() != "CommitFailedException":
                raise
            self._table.refresh()
            return False
        return True

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes from committing to a table on a local file system; threads share it."""
        if self._directory is None:
            yield
            return
        os.makedirs(self._directory.parent, exist_ok=True)
        with java_lock(self._jvm, self._directory):
            yield
