"""Each option does something with each engine and each format, or is an error at start that names it."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.spi import ConfigError, SinkContext
from tidegate_sink_spark import _spark_engine
from tidegate_sink_spark._engine import StagedLog
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JobProcess
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark.cluster import place
from tidegate_sink_spark.connect import engine as connect_engine
from tidegate_sink_spark.java import jars, runtime
from tidegate_sink_spark.java.runtime import JavaRuntime
from tidegate_sink_spark.plugin import SparkSinkFactory

#: Engines and formats, by the options that choose them and what those need.
SHARED = {"staging_directory": "/mnt/staged", "table": "/mnt/lake/t"}
WAYS: dict[str, dict[str, Any]] = {
    "spark, delta": {},
    "spark, iceberg": {"format": "iceberg"},
    "cluster, delta": {**SHARED, "master": "spark://h:7077"},
    "connect": {**SHARED, "connect": "sc://h:15002"},
    "submitted, delta": {**SHARED, "job": "submitted"},
    "submitted, iceberg": {**SHARED, "job": "submitted", "format": "iceberg"},
    "parquet": {"format": "parquet"},
    "deltalake": {"engine": "deltalake"},
}
#: Options that the engine or its job acts on, each with a value that is not its default.
OF_THE_ENGINE: dict[str, Any] = {
    "table": "/mnt/lake/other",
    "catalog": {"type": "hadoop", "warehouse": "/lake"},
    "tables": {"queue://a": "/mnt/lake/a"},
    "master": "local[4]",
    "staging_directory": "/mnt/other",
    "layout": "plain",
    "partition_by": ("destination",),
    "columns": {"n": "long header:n"},
    "body": "text",
    "commit_rows": 7,
    "commit_size": 1 << 20,
    "driver_memory": 2 << 30,
    "niceness": 7,
    "spark_conf": {"spark.sql.ansi.enabled": "false"},
    "java_home": "/jdk",
    "jars": "download",
    "jars_cache": "/jars",
    "maven_repository": "https://maven.example",
    "storage_options": {"aws_region": "eu-central-1"},
}
#: These choose the way, or need another one beside them, which the tests below have.
CHOOSE = {"format", "engine", "connect", "job", "vacuum_retention", "on_bad_value"}
#: The sink itself acts on these, whatever the engine.
OF_THE_SINK = {
    *("include", "exclude", "on_bad_row", "commit_interval", "lag_goal", "driver_idle"),
    *("segment_rows", "segment_size", "segment_interval", "staging_max", "gap_timeout"),
    *("drain_on_stop", "stop_timeout", "compact_interval"),
}


def test_no_option_is_left_out_here() -> None:
    known = {field.name for field in dataclasses.fields(SparkSinkOptions)}
    assert known == OF_THE_ENGINE.keys() | CHOOSE | OF_THE_SINK


def told(options: SparkSinkOptions, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that the engine, its job, and who fetches Java and jars are told."""
    asked: list[Any] = []

    def find_java(*arguments: Any) -> JavaRuntime:
        asked.append(["java", arguments[0]])
        return JavaRuntime(Path("/jdk"), 17, "a test")

    def ensure_jars(choice: str, cache: Path, **arguments: Any) -> tuple[Path, ...]:
        asked.append(["jars", choice, str(cache), arguments["repository"]])
        return ()

    async def reached(*_: object) -> str:
        return ""

    async def start(config: object, **more: Any) -> None:
        asked.append([msgspec.to_builtins(config), more["niceness"]])

    monkeypatch.setattr(JobProcess, "start", start)
    monkeypatch.setattr(runtime, "find_java", find_java)
    monkeypatch.setattr(jars, "ensure_jars", ensure_jars)
    monkeypatch.setattr(_spark_engine, "unreachable_master", reached)
    monkeypatch.setattr(connect_engine, "unreachable", reached)
    context = SinkContext("lake", "gw", directory)
    sink = SparkSinkFactory().create(context, options)
    assert isinstance(sink, SparkSink)
    engine: Any = sink._engine
    asyncio.run(engine.prepare())
    staged = StagedLog("store-1", place.staging_directory(options, context), 0)
    if options.job == "submitted":
        conf = place.submitted_conf(options, {"HOME": str(directory)})
        asked.append(msgspec.to_builtins(engine._config(staged, conf, None)))
    else:
        asyncio.run(engine.start(staged))
    return [type(engine).__name__, *asked]


@pytest.mark.parametrize("key", OF_THE_ENGINE)
@pytest.mark.parametrize("way", WAYS)
def test_an_option_acts_or_is_an_error(
    way: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = SparkSinkOptions(**WAYS[way])
    changed = dataclasses.replace(usual, **{key: OF_THE_ENGINE[key]})
    before = told(usual, tmp_path, monkeypatch)
    try:
        problem, after = "", told(changed, tmp_path, monkeypatch)
    except ConfigError as error:
        problem, after = (error.key or "").partition(".")[0], before
    assert (problem, after == before) in ((key, True), ("", False))


@pytest.mark.parametrize("way", ["parquet", "deltalake"])
@pytest.mark.parametrize(
    ("key", "value"), [("master", "yarn"), ("connect", "sc://h"), ("job", "submitted")]
)
def test_where_spark_runs_is_an_error_where_there_is_none(
    way: str, key: str, value: str, tmp_path: Path
) -> None:
    """And not what it would need besides, which would be an error next."""
    options = SparkSinkOptions(**{**WAYS[way], key: value})
    with pytest.raises(ConfigError, match=r"has no effect with (engine|format)") as caught:
        SparkSinkFactory().create(SinkContext("lake", "gw", tmp_path), options)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"jars": "JAR", "jars_cache": "/jars"}, "jars_cache"),
        ({"jars": "JAR", "maven_repository": "https://maven.example"}, "maven_repository"),
        ({"drain_on_stop": False, "stop_timeout": 60.0}, "stop_timeout"),
        (
            {"driver_memory": 2 << 30, "spark_conf": {"spark.driver.memory": "4g"}},
            "spark_conf.spark.driver.memory",
        ),
        (
            {**WAYS["connect"], "spark_conf": {"spark.sql.extensions": "x"}},
            "spark_conf.spark.sql.extensions",
        ),
        (
            {**WAYS["connect"], "spark_conf": {"spark.sql.catalog.lake": "x"}},
            "spark_conf.spark.sql.catalog.lake",
        ),
        ({**WAYS["connect"], "staging_directory": "relative"}, "staging_directory"),
        ({"format": "parquet", "staging_directory": "relative"}, "staging_directory"),
    ],
)
def test_an_option_that_another_one_makes_useless_is_an_error(
    options: dict[str, Any], key: str, tmp_path: Path
) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    options = {name: str(jar) if value == "JAR" else value for name, value in options.items()}
    with pytest.raises(ConfigError) as caught:
        SparkSinkFactory().create(SinkContext("lake", "gw", tmp_path), SparkSinkOptions(**options))
    assert caught.value.key == key
