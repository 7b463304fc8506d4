"""Where a table is, by path, URI and name, and what is missing to get there; without Spark."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import ConfigError
from tidegate_sink_spark import _target
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._target import (
    Target,
    check_classes,
    claim,
    disclaim,
    find_routes,
    find_target,
    further_of,
    layout_of,
)
from tidegate_sink_spark.java import runtime

HADOOP = {"type": "hadoop", "warehouse": "/srv/lake"}


def find(table: str, table_format: str = "iceberg", **options: Any) -> Target:
    return find_target(SparkSinkOptions(table=table, format=table_format, **options), Path("/d/t"))


def jar_of(directory: Path, *classes: str) -> Path:
    path = directory / "some.jar"
    with zipfile.ZipFile(path, "w") as jar:
        for name in classes:
            jar.writestr(f"{name.replace('.', '/')}.class", b"")
    return path


@pytest.mark.parametrize("table_format", ["delta", "iceberg", "parquet"])
def test_a_path_is_a_path_in_every_format(table_format: str) -> None:
    assert find("", table_format).table == "/d/t"
    assert find("/srv/a.b/c", table_format) == Target("/srv/a.b/c", False, {})
    assert find("file:///srv/a%20b", table_format).table == "/srv/a b"
    assert find("./lake.sales", table_format).table == str(Path.cwd() / "lake.sales")


@pytest.mark.parametrize(
    ("table", "formats"),
    [
        ("hdfs://name/lake/t", ("delta", "iceberg")),
        ("abfss://c@a.dfs.core.windows.net/t", ("delta", "iceberg")),
        ("s3a://bucket/t", ("delta",)),
        ("gs://bucket/t", ("delta",)),
    ],
)
def test_a_uri_reaches_spark_as_it_is(table: str, formats: tuple[str, ...]) -> None:
    for table_format in ("delta", "iceberg", "parquet"):
        if table_format in formats:
            assert find(table, table_format).table == table
            continue
        with pytest.raises(ConfigError, match=r"rename.*'delta'"):
            find(table, table_format)


def test_google_storage_is_wired() -> None:
    google = find("gs://bucket/t", "delta").conf
    assert "spark.hadoop.fs.gs.impl" in google
    assert google["spark.hadoop.parquet.hadoop.vectored.io.enabled"] == "false"


@pytest.mark.parametrize(("table", "hint"), [("s3://b/t", "write s3a"), ("ftp://h/t", "known:")])
def test_a_file_system_that_is_not_known_is_an_error(table: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        find(table, "delta")


@pytest.mark.parametrize(
    ("catalog", "conf"),
    [
        (HADOOP, {"type": "hadoop", "warehouse": "/srv/lake"}),
        (
            {"type": "rest", "uri": "https://c", "warehouse": "main", "token": "t"},
            {"type": "rest", "uri": "https://c", "warehouse": "main", "token": "t"},
        ),
        (
            {"type": "jdbc", "uri": "jdbc:sqlite:/srv/c.db", "warehouse": "file:///srv/lake"},
            {"type": "jdbc", "uri": "jdbc:sqlite:/srv/c.db", "warehouse": "/srv/lake"},
        ),
    ],
)
def test_an_iceberg_catalog_becomes_settings_of_spark(
    catalog: dict[str, str], conf: Mapping[str, str]
) -> None:
    found = find("lake.sales.acknowledged", catalog=catalog)
    assert (found.table, found.is_name) == ("lake.sales.acknowledged", True)
    patience = dict.fromkeys(k for k in found.conf if re.search(r"(retry|client|s3a)\.", k))
    assert len(patience) == 11
    assert {k: v for k, v in found.conf.items() if k not in patience} == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        **{f"spark.sql.catalog.lake.{key}": value for key, value in conf.items()},
    }


def test_how_long_a_store_is_tried_is_bounded_unless_the_user_says_otherwise() -> None:
    key = "s3.retry.num-retries"
    assert find("lake.t", catalog=HADOOP).conf[f"spark.sql.catalog.lake.{key}"] == "2"
    own = find("lake.t", catalog={**HADOOP, key: "9"})
    assert own.conf[f"spark.sql.catalog.lake.{key}"] == "9"
    assert find("s3a://b/t", "delta").conf["spark.hadoop.fs.s3a.retry.limit"] == "2"


def test_unity_names_are_for_delta() -> None:
    catalog = {"type": "unity", "uri": "https://u", "token": "t"}
    found = find("main.sales.acknowledged", "delta", catalog=catalog)
    assert found.conf["spark.sql.catalog.main"] == "io.unitycatalog.spark.UCSingleCatalog"
    assert found.conf["spark.sql.catalog.main.token"] == "t"


def test_a_catalog_may_be_described_in_spark_conf() -> None:
    own = {"spark.sql.catalog.lake": "some.Catalog"}
    assert find("lake.sales.t", spark_conf=own) == Target("lake.sales.t", True, {})
    hive = {"spark.sql.catalogImplementation": "hive"}
    assert find("spark_catalog.default.t", "delta", spark_conf=hive).is_name


@pytest.mark.parametrize(
    ("table", "options", "key", "text"),
    [
        ("lake.sales.t", {}, "table", r"not configured.*'\./lake\.sales\.t'"),
        ("lake.t", {"table_format": "parquet"}, "table", "has no catalogs"),
        ("/srv/t", {"catalog": HADOOP}, "catalog", "has no effect"),
        ("", {"catalog": HADOOP}, "catalog", "has no effect"),
        ("lake.t", {"catalog": {"type": "unity"}}, "catalog.type", "'hadoop' or 'rest' or 'jdbc'"),
        ("lake.t", {"catalog": {"type": "hadoop"}}, "catalog.warehouse", "is missing"),
        ("lake.t", {"catalog": {"type": "rest"}}, "catalog.uri", "is missing"),
        (
            "lake.t",
            {"catalog": {"type": "hadoop", "warehouse": "s3a://b/w"}},
            "catalog.warehouse",
            "REST or JDBC",
        ),
        ("lake.t", {"catalog": HADOOP, "table_format": "delta"}, "catalog.type", "'unity'"),
    ],
)
def test_what_cannot_be_names_its_remedy(
    table: str, options: dict[str, Any], key: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        find(table, **options)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("table", "table_format", "catalog", "name", "artifact"),
    [
        ("s3a://b/t", "delta", {}, "org.apache.hadoop.fs.s3a.S3AFileSystem", "hadoop-aws"),
        (
            "lake.t",
            "iceberg",
            {"type": "jdbc", "uri": "jdbc:postgresql://h/d", "warehouse": "/w"},
            "org.postgresql.Driver",
            "postgresql",
        ),
        (
            "lake.t",
            "delta",
            {"type": "unity", "uri": "https://u"},
            "io.unitycatalog.spark.UCSingleCatalog",
            "unitycatalog-spark",
        ),
    ],
)
def test_a_missing_jar_is_an_error_at_start_that_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    table_format: str,
    catalog: dict[str, str],
    name: str,
    artifact: str,
) -> None:
    monkeypatch.setattr(runtime, "spark_home", lambda: tmp_path)

    def check(**spark_conf: str) -> None:
        conf = {key.replace("_", "."): value for key, value in spark_conf.items()}
        options = SparkSinkOptions(
            table=table, format=table_format, catalog=catalog, spark_conf=conf
        )
        check_classes(options, find_target(options, tmp_path))

    with pytest.raises(ConfigError, match=artifact):
        check()
    jar = jar_of(tmp_path, name)
    check(spark_jars=f"/nowhere/a.jar,{jar}")
    check(spark_jars_packages="group:name:1")
    check(spark_jars="https://host/a.jar")
    (tmp_path / "jars").mkdir()
    jar.rename(tmp_path / "jars" / "brought.jar")
    check()


def test_the_log_store_in_dynamodb_has_a_jar_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "spark_home", lambda: tmp_path)
    name = "io.delta.storage.S3DynamoDBLogStore"
    s3a = jar_of(tmp_path, "org.apache.hadoop.fs.s3a.S3AFileSystem")
    options = SparkSinkOptions(
        table="s3a://bucket/t",
        spark_conf={"spark.jars": str(s3a), "spark.delta.logStore.s3a.impl": name},
    )
    with pytest.raises(ConfigError, match=r"delta-storage-s3-dynamodb.*'spark.jars'"):
        check_classes(options, find_target(options, tmp_path))


def test_nothing_is_looked_for_where_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_target, "_holds", lambda *_: pytest.fail("no jar needs to be opened"))
    for table, catalog in (("/srv/t", {}), ("hdfs://n/t", {}), ("lake.t", HADOOP)):
        options = SparkSinkOptions(table=table, format="iceberg", catalog=catalog)
        check_classes(options, find_target(options, Path("/d")))


def routes(tables: dict[str, str], **options: Any) -> dict[str, Target]:
    chosen = SparkSinkOptions(**{"format": "iceberg", "tables": tables, **options})
    return find_routes(chosen, find_target(chosen, Path("/d/t")))


@pytest.mark.parametrize("table", ["/d/t_dlq", "/d/other/../t_dlq", "file:///d/t_dlq"])
def test_no_pattern_leads_to_the_dead_letter_table_whose_mark_counts_something_else(
    table: str,
) -> None:
    with pytest.raises(ConfigError, match="dead-letter table") as caught:
        routes({"queue://orders.>": table})
    assert caught.value.key == "tables.queue://orders.>"


def test_a_pattern_for_the_table_itself_is_found_however_it_is_written() -> None:
    chosen = SparkSinkOptions(table="s3a://b/t", tables={"a": "s3a://b/t/"})
    with pytest.raises(ConfigError, match="leave the pattern out"):
        find_routes(chosen, find_target(chosen, Path()))


def test_patterns_have_tables_of_their_own() -> None:
    found = routes(
        {"queue://orders.>": "/srv/orders", "prices.*": "lake.sales.prices"}, catalog=HADOOP
    )
    assert found["queue://orders.>"] == Target("/srv/orders", False, {})
    assert found["prices.*"].is_name
    assert found["prices.*"].conf["spark.sql.catalog.lake.type"] == "hadoop"


@pytest.mark.parametrize(
    ("tables", "key", "text"),
    [
        ({"quue://a": "/srv/a"}, "tables.quue://a", "neither with queue://"),
        ({"a": ""}, "tables.a", "names no table"),
        ({"a": "/d/t"}, "tables.a", "leave the pattern out"),
        ({"a": "s3a://b/t"}, "tables.a", "rename"),
        ({"a": "lake.t"}, "tables.a", "not configured"),
    ],
)
def test_a_table_of_a_pattern_that_cannot_be_is_an_error(
    tables: dict[str, str], key: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        routes(tables)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, "clustered"),
        ({"format": "iceberg"}, "clustered"),
        ({"format": "parquet"}, "partitioned"),
        ({"engine": "deltalake"}, "partitioned"),
        ({"partition_by": ("destination",)}, "partitioned"),
        ({"engine": "deltalake", "layout": "plain"}, "plain"),
    ],
)
def test_the_layout_goes_by_what_can_be(options: dict[str, Any], layout: str) -> None:
    assert layout_of(SparkSinkOptions(**options)) == layout


def test_the_columns_are_those_of_the_configuration() -> None:
    options = SparkSinkOptions(columns={"n": "long header:n"}, body="variant")
    assert further_of(options).sql == (("n", "BIGINT"), ("body_variant", "VARIANT"))
    assert further_of(SparkSinkOptions()).sql == ()


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [
        ({"columns": {"ack_seq": "long header:n"}}, "columns.ack_seq", "every table has"),
        ({"layout": "clustered", "partition_by": ("destination",)}, "partition_by", "no effect"),
        ({"layout": "plain", "partition_by": ("ack_date",)}, "partition_by", "no effect"),
        ({"partition_by": ("ack_date", "ack_date")}, "partition_by", "twice"),
        ({"body": "variant", "engine": "deltalake"}, "body", "take 'json'"),
        ({"body": "variant", "format": "parquet"}, "body", "take 'json'"),
        ({"on_bad_value": "bad_row"}, "on_bad_value", "has no effect"),
        (
            {"on_bad_value": "bad_row", "columns": {"n": "string header:n"}},
            "on_bad_value",
            "has no effect",
        ),
    ],
)
def test_columns_that_cannot_be_are_errors_at_start(
    options: dict[str, Any], key: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        further_of(SparkSinkOptions(**options))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("one", "other"),
    [("/lake/t", "/lake/t/eu"), ("/lake/t/eu", "/lake/t"), ("s3a://b/t", "s3a://b/t/eu")],
)
def test_tables_that_are_one_in_the_other_are_refused(one: str, other: str) -> None:
    """The upkeep of the outer one would take the inner one's files for its own."""
    with pytest.raises(ConfigError, match="one in the other"):
        claim("lake", [("table", one), ("tables.eu", other)])
    claim("lake", [("table", one)])
    try:
        with pytest.raises(ConfigError, match="one in the other") as caught:
            claim("sea", [("table", other)])
        assert caught.value.key == "table"
        claim("sea", [("table", f"{one} of the sea")])
        disclaim("sea")
    finally:
        disclaim("lake")
    claim("sea", [("table", other)])
    disclaim("sea")
