"""Staged files as Spark and the workers of a cluster see them, and what Spark raises as one line."""

from __future__ import annotations

import importlib
import re
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.job.driver import Addition, CommitError, first_line
from tidegate_sink_spark.job.table import FurtherColumns, schema_text

pa: Final[Any] = importlib.import_module("pyarrow")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")

#: Rows of one commit that are worth a file, and so a core, of their own.
FILE_ROWS: Final = 100_000
#: Files that the workers of a Connect server write and read to show that they can.
_CORES: Final = 8
#: How deep causes of causes are followed; a few are usual.
_CAUSES_MAX: Final = 20
_PATTERN_CHARACTERS: Final = re.compile(r"([\[\]{}*?\\,^])")


#: A body as Variant; NULL if it is not JSON, or not for Variant (a repeated key, above 128 MB).
_VARIANT: Final = "try_parse_json(try_validate_utf8(CAST(body AS STRING)))"


def staged_rows(spark: Any, addition: Addition, further: FurtherColumns = ()) -> Any:
    """The rows of *addition*, as a DataFrame. Callers count them before they commit.

    A column that is Variant is made of the body: only Spark can make one.
    """
    staged = [(name, kind) for name, kind in further if kind != "VARIANT"]
    rows = spark.read.schema(schema_text(staged)).parquet(*map(escaped_path, addition.paths))
    if addition.overlaps:
        rows = rows.where(f"ack_seq > {addition.after}")
    for name, kind in further:
        if kind == "VARIANT":
            rows = rows.selectExpr("*", f"{_VARIANT} AS {name}")
    return rows


def in_files(spark: Any, rows: Any, count: int) -> Any:
    """*rows*, *count* of them, in as many parts as files are to be written: few, and large ones by all cores."""
    return rows.coalesce(
        max(1, min(int(spark.sparkContext.defaultParallelism), count // FILE_ROWS))
    )


def escaped_path(path: Path) -> str:
    """Spark takes paths as patterns: without the escapes a data directory "a[1]" is not found.

    (Its own switch for that, __globPaths__=false, reads each file once per file: 3 files of 10 rows became
    90 rows.)
    """
    return escaped(str(path))


def escaped(path: str) -> str:
    """:func:`escaped_path` of a path or URI."""
    return _PATTERN_CHARACTERS.sub(r"\\\1", path)


def condition(exc: Exception) -> str:
    """The name that Spark gives an error, "" when it gives none."""
    name: Any = getattr(exc, "getCondition", None)
    return "" if name is None else str(name() or "")


def quoted_name(name: str) -> str:
    """A name in a catalog as SQL wants it, part by part."""
    return ".".join(f"`{part}`" for part in name.split("."))


def ack_sequences(rows: Any, gateway_id: str, epoch: str, after: int) -> list[int]:
    """The ack sequences of one log after *after* among the *rows* of a table; they must fit into memory."""
    functions: Any = importlib.import_module("pyspark.sql.functions")
    of_log = rows.where(
        (functions.col("gateway_id") == gateway_id)
        & (functions.col("epoch") == epoch)
        & (functions.col("ack_seq") > after)
    )
    return [int(row[0]) for row in of_log.select("ack_seq").collect()]


@contextmanager
def spark_errors(what: str) -> Generator[None]:
    """Turn whatever Spark, a table format or py4j raise into a :class:`CommitError` with one line."""
    py4j: Any = importlib.import_module("py4j.protocol")
    pyspark: Any = importlib.import_module("pyspark.errors")
    try:
        yield
    except (py4j.Py4JError, pyspark.PySparkException) as exc:
        text = first_line(exc)
        thrown = getattr(exc, "java_exception", None)
        if thrown is not None:
            text = _of_java(thrown)
        raise CommitError(f"{what}: {text}") from exc


def _of_java(thrown: Any) -> str:
    """What Java threw, and its root cause: Spark reports a full disk as a failed task."""
    last, text = thrown, _first_line_of_java(thrown)
    for _ in range(_CAUSES_MAX):
        cause = last.getCause()
        if cause is None:
            break
        last = cause
    root = _first_line_of_java(last)
    return text if root in text else f"{text} ({root})"


def _first_line_of_java(thrown: Any) -> str:
    return str(thrown.toString()).splitlines()[0][:500]


def check_workers(
    spark: Any, staging: Path, table: Path | None, *, is_connect: bool = False
) -> None:
    """Check that the workers of a cluster read what is in *staging*, and write where *table* is.

    Workers that write to their own disks would fill a table whose files nobody finds, and Spark would call
    that a success. So before the first commit they write and read a few small files, one for each core,
    and this process checks what they see.

    Args:
        is_connect: through a Connect server.
        table: its directory; None when it is on an object store.
    Raises: CommitError that says what they lack.
    """
    # A session of a Connect server does not say how many cores there are.
    cores = _CORES if is_connect else int(spark.sparkContext.defaultParallelism)
    count = max(2, cores)
    _check_reading(spark, staging, count)
    if table is not None:
        _check_writing(spark, table.parent, count)


def _check_reading(spark: Any, staging: Path, count: int) -> None:
    probe = staging / f"probe-{uuid.uuid4().hex}"
    what = f"the workers cannot read {staging}; put staging_directory on storage that they have under the same path"
    try:
        probe.mkdir(parents=True)
        for number in range(count):
            pq.write_table(pa.table({"n": [number]}), str(probe / f"{number}.parquet"))
        with spark_errors(what):
            found = spark.read.schema("n BIGINT").parquet(escaped_path(probe)).distinct().count()
        if found != count:
            raise CommitError(what)
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _check_writing(spark: Any, directory: Path, count: int) -> None:
    probe = directory / f".tidegate-probe-{uuid.uuid4().hex}"
    what = f"the workers cannot write to {directory}; name a table that they have under the same path, and may write"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with spark_errors(what):
            spark.range(0, count, 1, count).write.parquet(str(probe))
        if len(list(probe.glob("part-*.parquet"))) != count:
            raise CommitError(what)
    finally:
        shutil.rmtree(probe, ignore_errors=True)
