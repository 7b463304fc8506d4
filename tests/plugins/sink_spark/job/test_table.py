"""The Delta table: what can be said without Java. With Java it is tested in test_job.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate_sink_spark.job.delta import create_statement, mark_of_commit
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.files import local_path, lock_path
from tidegate_sink_spark.job.rows import FILE_ROWS, in_files
from tidegate_sink_spark.job.table import COLUMNS, Shape, application_id, bring_up_to_date
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.arrow import SCHEMA_VERSION

_SQL_TYPES = {
    "int64": "BIGINT",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
    "map<string, string>": "MAP<STRING,STRING>",
    "int32": "INT",
    "bool": "BOOLEAN",
    "list<element: struct<name: string, value: string>>": (
        "ARRAY<STRUCT<name:STRING,value:STRING>>"
    ),
}


def test_the_table_has_the_columns_of_the_staged_files() -> None:
    staged = [(field.name, _SQL_TYPES[str(field.type)]) for field in arrow.SCHEMA]
    assert staged == list(COLUMNS)


class Table:
    """Columns of a table that is there."""

    def __init__(
        self, columns: Sequence[tuple[str, str]], version: str | None = str(SCHEMA_VERSION)
    ) -> None:
        self.found = dict(columns)
        self.version = version
        self.added: list[tuple[str, str]] = []

    def columns(self) -> Mapping[str, str]:
        return self.found

    def add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        self.added += columns

    def schema_version(self) -> str | None:
        return self.version

    def set_schema_version(self, version: int) -> None:
        self.version = str(version)


def test_an_older_table_gets_the_columns_that_it_has_not() -> None:
    table = Table([*COLUMNS[:15], ("mine", "STRING")])
    bring_up_to_date(table, "t")
    assert table.added == list(COLUMNS[15:])


def test_a_table_that_has_them_all_is_left_alone() -> None:
    table = Table([*COLUMNS, ("mine", "STRING")])
    bring_up_to_date(table, "t")
    assert table.added == []


def test_a_column_of_another_type_is_told_with_what_to_do() -> None:
    table = Table([*COLUMNS[:15], ("priority", "STRING")])
    with pytest.raises(
        CommitError, match=r"column priority of the table t is STRING.*writes INT; rename"
    ):
        bring_up_to_date(table, "t")
    assert table.added == []


def test_a_table_that_says_no_version_gets_one_with_its_columns() -> None:
    table = Table(COLUMNS[:15], None)
    bring_up_to_date(table, "t")
    assert table.version == str(SCHEMA_VERSION)
    assert table.added == list(COLUMNS[15:])


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            str(SCHEMA_VERSION + 1),
            r"t has schema version \d.*newer one has written it; install that",
        ),
        ("one", "is 'one', and should be a number"),
        ("\u0661", "should be a number"),
        ("-1", "should be a number"),
    ],
)
def test_a_table_of_a_newer_gateway_is_refused_and_left_alone(version: str, text: str) -> None:
    table = Table(COLUMNS[:15], version)
    with pytest.raises(CommitError, match=text):
        bring_up_to_date(table, "t")
    assert (table.added, table.version) == ([], version)


def test_columns_of_the_configuration_are_added_to_a_table_that_is_there() -> None:
    table = Table([*COLUMNS, ("mine", "STRING"), ("price", "decimal(18, 2)")])
    bring_up_to_date(table, "t", [("price", "DECIMAL(18,2)"), ("order", "BIGINT")])
    assert table.added == [("order", "BIGINT")]


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (
            ("price", "DOUBLE"),
            r"column price of the table t is DOUBLE.*writes BIGINT.*sinks\.columns",
        ),
        (("Price", "BIGINT"), r"price of the table t is Price BIGINT.*RENAME COLUMN Price"),
    ],
)
def test_a_column_of_the_configuration_that_is_another_there_names_itself_and_what_to_do(
    there: tuple[str, str], text: str
) -> None:
    table = Table([*COLUMNS, there])
    with pytest.raises(CommitError, match=text):
        bring_up_to_date(table, "t", [("other", "DATE"), ("price", "BIGINT")])
    assert table.added == []


def test_a_table_of_somebody_else_is_refused() -> None:
    with pytest.raises(CommitError, match="was not made by this sink"):
        bring_up_to_date(Table([("id", "BIGINT")]), "t")


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
    clustered = create_statement("/lake/a`b", Shape("clustered"))
    assert clustered.startswith("CREATE TABLE IF NOT EXISTS delta.`/lake/a``b` (ack_seq BIGINT,")
    assert "CLUSTER BY (destination, acked_at)" in clustered
    assert "'delta.checkpointInterval' = '50'" in clustered
    assert "'delta.enableDeletionVectors' = 'false'" in clustered
    assert "'tidegate.schema_version' = '1'" in clustered
    assert "PARTITIONED BY (ack_date)" in create_statement("/t", Shape("partitioned"))
    both = create_statement("/t", Shape("partitioned", (), ("ack_date", "destination")))
    assert "PARTITIONED BY (ack_date, destination)" in both
    assert ", `order` BIGINT) USING" in create_statement(
        "/t", Shape("plain", [("order", "BIGINT")])
    )


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ('{"commitInfo":{}}\n{"txn":{"appId":"a","version":7,"lastUpdated":1}}\n{"add":{}}', 7),
        ('{"txn":{"appId":"b","version":9}}\n{"txn":{"appId":"a","version":7}}', 7),
        ('{ "txn" : { "version" : 7, "appId" : "a" } }', 7),
        ('{"txn":{"appId":"ab","version":9}}', None),
        ('{"add":{"stats":"\u2028"}}\n{"txn":{"appId":"a","version":7}}\n', 7),
        ('{"add":{"stats":"{\\"txn\\":{\\"appId\\":\\"a\\"}}"}}', None),
        ('{"commitInfo":{"userMetadata":"\\"txn\\""}}', None),
        ("", None),
    ],
)
def test_the_mark_of_a_log_is_what_the_newest_commit_that_names_it_says(
    text: str, mark: int | None
) -> None:
    assert mark_of_commit(text, "a") == mark


@pytest.mark.parametrize(
    ("rows", "files"),
    [(0, 1), (1, 1), (2 * FILE_ROWS - 1, 1), (2 * FILE_ROWS, 2), (9 * FILE_ROWS, 2)],
)
def test_a_large_commit_is_written_by_all_cores_and_a_small_one_is_one_file(
    rows: int, files: int
) -> None:
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    assert in_files(spark, SimpleNamespace(coalesce=lambda count: count), rows) == files
