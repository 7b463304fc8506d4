"""The Spark configuration of the job; the session itself is started in test_job.py."""

from pathlib import Path

import pytest

from tidegate_sink_spark.job import session
from tidegate_sink_spark.job.session import spark_conf, start_session


def conf(**overrides: str) -> dict[str, str]:
    return spark_conf(
        jars=[Path("/j/a.jar"), Path("/j/b.jar")],
        driver_memory_bytes=1536 << 20,
        work_directory=Path("/w"),
        overrides={key.replace("_", "."): value for key, value in overrides.items()},
    )


def test_memory_directories_and_jars_act() -> None:
    found = conf()
    assert found["spark.driver.memory"] == "1536m"
    assert found["spark.local.dir"] == "/w"
    assert found["spark.jars"] == "/j/a.jar,/j/b.jar"


def test_delta_is_wired_and_the_time_zone_is_utc() -> None:
    found = conf()
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert found["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    assert found["spark.sql.session.timeZone"] == "UTC"


def test_the_job_listens_on_loopback_only_and_has_no_web_page() -> None:
    found = conf()
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"


def test_the_users_settings_go_over_ours_and_further_jars_are_added() -> None:
    found = conf(spark_master="local[1]", spark_jars="/x/s3.jar", spark_hadoop_x="1")
    assert found["spark.master"] == "local[1]"
    assert found["spark.hadoop.x"] == "1"
    assert found["spark.jars"] == "/j/a.jar,/j/b.jar,/x/s3.jar"


def test_every_setting_reaches_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        def __init__(self) -> None:
            self.settings: dict[str, str] = {}

        def config(self, key: str, value: str) -> "Builder":
            self.settings[key] = value
            return self

        def getOrCreate(self) -> dict[str, str]:
            return self.settings

    class Module:
        class SparkSession:
            builder = Builder()

    monkeypatch.setattr(session.importlib, "import_module", {"pyspark.sql": Module}.__getitem__)
    assert start_session({"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
