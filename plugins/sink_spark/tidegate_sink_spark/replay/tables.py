"""Tables that answer SQL: through Spark, in every format and catalog, or without Java through delta-rs."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidegate.spi import RequestError
from tidegate.spi.commands import ClientError
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._reader import create_session
from tidegate_sink_spark._remedies import client_errors, with_remedy
from tidegate_sink_spark._target import Target, find_target, further_of
from tidegate_sink_spark.delta_rs.place import delta_options, one_line
from tidegate_sink_spark.delta_rs.table import is_table
from tidegate_sink_spark.java.quiet import JavaOutput
from tidegate_sink_spark.job.rows import escaped, quoted_name, spark_errors
from tidegate_sink_spark.job.table import schema_text
from tidegate_sink_spark.replay.selecting import ROWS, Table

pa: Final[Any] = importlib.import_module("pyarrow")

#: Anything else that Spark prints would end up in the progress bar.
_QUIET: Final = {"spark.log.level": "ERROR"}


def open_table(options: SparkSinkOptions, default: Path) -> Table:
    """Open the table of a sink with *options* for reading, by its own engine.

    Args: default: its directory when the options name none.
    Raises: ConfigError; ClientError when there is no such table, or it cannot be reached.
    """
    target = find_target(options, default)
    if options.engine == "deltalake":
        return DeltaRsRows(target, options.storage_options)
    with client_errors():
        return SparkRows(options, target)


class SparkRows:
    """A :class:`tidegate_sink_spark.replay.selecting.Table`. Starts Spark."""

    def __init__(self, options: SparkSinkOptions, target: Target) -> None:
        """Raises: ConfigError, JarsError; CommitError."""
        options = dataclasses.replace(options, spark_conf={**_QUIET, **options.spark_conf})
        output = JavaOutput()
        try:
            with output.taken():
                self._spark = create_session("tidegate-replay", options)
        except BaseException:
            output.tell()
            raise
        finally:
            output.close()
        try:
            with spark_errors(f"the table {target.table} cannot be read"):
                self._view(options, target)
                self.columns: Sequence[str] = self._spark.table(ROWS).columns
        except BaseException:
            self.close()
            raise

    def _view(self, options: SparkSinkOptions, target: Target) -> None:
        spark = self._spark
        if target.is_name:
            rows = spark.table(quoted_name(target.table))
        elif options.format == "parquet":
            columns = schema_text(further_of(options).sql)
            rows = spark.read.schema(columns).parquet(escaped(target.table))
        else:
            rows = spark.read.format(options.format).load(target.table)
        rows.createOrReplaceTempView(ROWS)

    @property
    def body_size(self) -> str:
        """See Table."""
        return "octet_length(body)"

    def query(self, sql: str) -> Any:
        """See Table."""
        py4j: Any = importlib.import_module("py4j.protocol")
        errors: Any = importlib.import_module("pyspark.errors")
        try:
            with client_errors(), spark_errors("the table cannot be read"):
                try:
                    rows = self._spark.sql(sql)
                except (errors.ParseException, errors.AnalysisException) as error:
                    raise _wrong(error, self.columns) from error
                return rows.toArrow()
        except (py4j.Py4JError, OSError) as error:
            raise ClientError(with_remedy(f"the table cannot be read: {error}")) from error

    def text(self, value: str) -> str:
        """See Table."""
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"

    def time(self, microseconds: int) -> str:
        """See Table."""
        return f"timestamp_micros({microseconds})"

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()


class DeltaRsRows:
    """A :class:`tidegate_sink_spark.replay.selecting.Table`: DataFusion's SQL, no Java."""

    def __init__(self, target: Target, storage_options: Mapping[str, str]) -> None:
        """Raises: ClientError when there is no table, or no delta-rs."""
        if target.is_name:
            raise ClientError(
                f"{target.table}: without Java no table in a catalog can be read; take --engine spark"
            )
        try:
            self._deltalake: Any = importlib.import_module("deltalake")
        except ImportError:
            raise ClientError(
                "deltalake is not installed; run: pip install 'tidegate-sink-spark[deltalake]'"
            ) from None
        self._errors: Any = importlib.import_module("deltalake.exceptions")
        options = delta_options(target.table, storage_options)
        with client_errors():
            if not is_table(target.table, storage_options):
                raise ClientError(f"there is no Delta table in {target.table}")
        try:
            self._table = self._deltalake.DeltaTable(target.table, storage_options=options)
            self.columns = [field.name for field in self._table.schema().fields]
        except (self._errors.DeltaError, OSError) as error:
            raise ClientError(
                with_remedy(f"the table cannot be read: {one_line(error)}")
            ) from error

    @property
    def body_size(self) -> str:
        """See Table."""
        return "octet_length(encode(body, 'hex')) / 2"

    def query(self, sql: str) -> Any:
        """See Table."""
        try:
            self._table.update_incremental()  # files of an older version may be gone by now
            found = self._deltalake.QueryBuilder().register(ROWS, self._table).execute(sql)
            return _plain(pa.table(found.read_all()))
        except self._errors.DeltaError as error:
            text = str(error)
            if "planning" in text or "SQL" in text or "Schema error" in text:
                raise _wrong(error, self.columns) from error
            raise ClientError(
                with_remedy(f"the table cannot be read: {one_line(error)}")
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise ClientError(
                with_remedy(f"the table cannot be read: {one_line(error)}")
            ) from error

    def text(self, value: str) -> str:
        """See Table."""
        return "'" + value.replace("'", "''") + "'"

    def time(self, microseconds: int) -> str:
        """See Table."""
        return f"to_timestamp_micros({microseconds})"

    def close(self) -> None:
        """Nothing is open."""


def _plain(table: Any) -> Any:
    """Without string views, which fewer of Arrow's functions support."""
    fields = [item.with_type(_plain_type(item.type)) for item in table.schema]
    return table.cast(pa.schema(fields))


def _plain_type(kind: Any) -> Any:
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([item.with_type(_plain_type(item.type)) for item in kind])
    return kind


def _wrong(error: Exception, columns: Sequence[str]) -> RequestError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:500] if lines else str(error)
    return RequestError(f"--where is not understood: {text} (columns: {', '.join(columns)})")
