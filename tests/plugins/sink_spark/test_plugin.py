"""The plugin as the host sees it."""

import dataclasses
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pluggy
import pytest

from tidegate.spi import (
    ENTRY_POINT_GROUP,
    SPI_VERSION,
    ConfigError,
    SinkContext,
    SinkFactory,
    hookspecs,
    parse_options,
)
from tidegate_sink_spark import plugin
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._sink import SparkSink


def factory() -> SinkFactory:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    return manager.hook.register_sink()


def test_the_entry_point_leads_to_the_plugin() -> None:
    (entry,) = [
        entry
        for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)
        if entry.name == "sink-spark"
    ]
    assert entry.load() is plugin
    assert plugin.tidegate_plugin.spi_version == SPI_VERSION
    assert plugin.tidegate_plugin.summary


def test_the_defaults_are_what_the_documentation_says() -> None:
    options = parse_options(SparkSinkOptions, {})
    assert options == SparkSinkOptions()
    assert (options.commit_interval, options.segment_rows, options.segment_interval) == (
        5.0,
        50_000,
        1.0,
    )
    assert (options.staging_max, options.driver_memory) == (2 << 30, 1 << 30)


def test_the_documentation_has_every_option_with_its_default() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "sink-spark.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", page, re.MULTILINE))
    table = {key: json.loads(value) for key, value in documented.items()}
    assert set(table) == {field.name for field in dataclasses.fields(SparkSinkOptions)}
    assert parse_options(SparkSinkOptions, table) == SparkSinkOptions()


def test_a_table_of_the_configuration_becomes_a_sink(tmp_path: Path) -> None:
    table = tomllib.loads(
        """
        table = "/lake/messages"
        layout = "partitioned"
        commit_interval = "30s"
        staging_max = "512 MB"
        drain_on_stop = false
        [spark_conf]
        "spark.master" = "local[4]"
        """
    )
    made = factory()
    options = parse_options(made.options_type, table)
    sink = made.create(SinkContext("lake", "gw", tmp_path), options)
    assert isinstance(sink, SparkSink)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"format": "orc"}, "format"),
        ({"layout": "none"}, "layout"),
        ({"commit_interval": "1ms"}, "commit_interval"),
        ({"segment_rows": 0}, "segment_rows"),
        ({"driver_memory": "100mb"}, "driver_memory"),
        ({"spark_conf": {"spark.ui.enabled": True}}, "spark_conf"),
        ({"tables": "/lake"}, "tables"),
        ({"columns": {"n": 5}}, "columns"),
        ({"body": "xml"}, "body"),
        ({"partition_by": ["client_id"]}, "partition_by"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(table: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(SparkSinkOptions, table)
    assert caught.value.key == key


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    context = SinkContext("lake", "gw", tmp_path)
    with pytest.raises(ConfigError, match="larger than staging_max"):
        factory().create(context, SparkSinkOptions(segment_size=2 << 20, staging_max=1 << 20))
    with pytest.raises(ConfigError, match="is not there"):
        factory().create(context, SparkSinkOptions(jars="/nowhere/a.jar"))
    with pytest.raises(ConfigError, match=r"spark\.hadoop\.fs\.s3a\.x"):
        factory().create(context, SparkSinkOptions(spark_conf={"fs.s3a.x": "1"}))
    with pytest.raises(ConfigError, match="is no type"):
        factory().create(context, SparkSinkOptions(columns={"n": "int header:n"}))
    with pytest.raises(ConfigError, match="not configured"):
        factory().create(context, SparkSinkOptions(table="lake.t"))
    with pytest.raises(ConfigError, match="has no effect with job 'submitted'") as caught:
        factory().create(context, SparkSinkOptions(job="submitted", driver_idle=60.0))
    assert caught.value.key == "driver_idle"
    with pytest.raises(ConfigError, match="has no effect with engine 'deltalake'"):
        factory().create(context, SparkSinkOptions(engine="deltalake", driver_idle=60.0))
    with pytest.raises(TypeError):
        factory().create(context, object())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark_conf", {"spark.master": "local[1]"}),
        ("java_home", "/jdk"),
        ("jars", "download"),
        ("jars_cache", "/jars"),
        ("maven_repository", "file:///m"),
        ("driver_memory", 2 << 30),
        ("driver_idle", 60.0),
    ],
)
def test_options_of_java_are_refused_where_there_is_none(
    tmp_path: Path, key: str, value: object
) -> None:
    options = dataclasses.replace(SparkSinkOptions(format="parquet"), **{key: value})
    with pytest.raises(ConfigError, match="has no effect with format 'parquet'") as caught:
        factory().create(SinkContext("lake", "gw", tmp_path), options)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("options", "key", "problem"),
    [
        ({"vacuum_retention": 7200.0}, "vacuum_retention", "without compact_interval"),
        (
            {"compact_interval": 600.0, "vacuum_retention": 7200.0, "format": "parquet"},
            "vacuum_retention",
            "with format 'parquet'",
        ),
        (
            {"compact_interval": 600.0, "connect": "sc://spark:15002"},
            "compact_interval",
            "run OPTIMIZE and VACUUM on the server",
        ),
    ],
)
def test_upkeep_that_cannot_be_is_an_error(
    tmp_path: Path, options: dict[str, Any], key: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        factory().create(SinkContext("lake", "gw", tmp_path), SparkSinkOptions(**options))
    assert caught.value.key == key
