"""The Delta table: what can be said without Java. With Java it is tested in test_job.py."""

from pathlib import Path

import pytest

from tidegate_sink_spark.job.table import (
    COLUMNS,
    application_id,
    create_statement,
    local_path,
    lock_path,
)
from tidegate_sink_spark.staging import arrow

_SQL_TYPES = {
    "int64": "BIGINT",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
    "map<string, string>": "MAP<STRING,STRING>",
}


def test_the_table_has_the_columns_of_the_staged_files() -> None:
    staged = [(field.name, _SQL_TYPES[str(field.type)]) for field in arrow.SCHEMA]
    assert staged == list(COLUMNS)


def test_a_log_has_one_name_in_the_table() -> None:
    assert application_id("gw-1", "store-1") == "tidegate/gw-1/store-1"


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ("/lake/t", Path("/lake/t")),
        ("file:///lake/a%20b", Path("/lake/a b")),
        ("file:/lake/t", Path("/lake/t")),
        ("s3a://bucket/t", None),
        ("abfss://c@a.dfs.core.windows.net/t", None),
    ],
)
def test_a_table_is_local_or_in_an_object_store(table: str, path: Path | None) -> None:
    assert local_path(table) == path


def test_the_lock_is_beside_the_table_because_a_new_table_must_be_empty() -> None:
    assert lock_path(Path("/lake/t")) == Path("/lake/.t.tidegate-lock")


def test_the_layout_decides_how_a_new_table_is_made() -> None:
    clustered = create_statement("/lake/a`b", "clustered")
    assert clustered.startswith("CREATE TABLE IF NOT EXISTS delta.`/lake/a``b` (ack_seq BIGINT,")
    assert "CLUSTER BY (destination, acked_at)" in clustered
    assert "'delta.checkpointInterval' = '50'" in clustered
    assert "'delta.enableDeletionVectors' = 'false'" in clustered
    assert "PARTITIONED BY (ack_date)" in create_statement("/t", "partitioned")
