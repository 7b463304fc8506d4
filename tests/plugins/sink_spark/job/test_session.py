"""The Spark configuration of the job; the session itself is started in test_job.py."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tidegate_sink_spark.job import session
from tidegate_sink_spark.job.session import properties_text, spark_conf, start_session


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
    assert found["spark.hadoop.hadoop.tmp.dir"] == "/w/hadoop"
    assert found["spark.jars"] == "/j/a.jar,/j/b.jar"


def test_delta_is_wired_and_the_time_zone_is_utc() -> None:
    found = conf()
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert found["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    assert found["spark.sql.session.timeZone"] == "UTC"


def test_each_format_is_wired_alone() -> None:
    def keys(table_format: str) -> str:
        found = spark_conf(
            jars=[],
            driver_memory_bytes=1 << 30,
            work_directory=Path("/w"),
            overrides={},
            table_format=table_format,
        )
        return " ".join([*found, *found.values()])

    assert "IcebergSparkSessionExtensions" in keys("iceberg")
    assert "delta" not in keys("iceberg")
    assert "iceberg" not in keys("delta")
    assert "delta" not in keys("parquet")


def test_the_job_listens_on_loopback_only_and_has_no_web_page() -> None:
    found = conf()
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"


def test_the_users_settings_go_over_ours_and_further_jars_are_added() -> None:
    found = conf(spark_master="local[1]", spark_jars="/x/s3.jar", spark_hadoop_x="1")
    assert found["spark.master"] == "local[1]"
    assert found["spark.hadoop.x"] == "1"
    assert found["spark.jars"] == "/j/a.jar,/j/b.jar,/x/s3.jar"


def test_drivers_ports_want_a_secret_where_spark_makes_one() -> None:
    assert conf()["spark.authenticate"] == "true"
    assert conf(spark_master="local[1]")["spark.authenticate"] == "true"
    assert "spark.authenticate" not in conf(spark_master="spark://host:7077")
    assert conf(spark_authenticate="false")["spark.authenticate"] == "false"


class Builder:
    """Sees what PySpark would: the environment, and the file that it names."""

    settings = ""
    mode = 0
    arguments = ""
    options = ""
    fails = False

    def config(self, key: str, value: str) -> "Builder":
        raise AssertionError(f"{key} would stand on a command line")

    def getOrCreate(self) -> str:
        Builder.arguments = os.environ["PYSPARK_SUBMIT_ARGS"]
        Builder.options = os.environ["SPARK_SUBMIT_OPTS"]
        path = Path(shlex.split(Builder.arguments)[1])
        Builder.settings, Builder.mode = path.read_text(), path.stat().st_mode & 0o777
        if Builder.fails:
            raise RuntimeError("no Java")
        return "a session"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> type[Builder]:
    class Module:
        class SparkSession:
            builder = Builder()

    monkeypatch.setattr(session.importlib, "import_module", {"pyspark.sql": Module}.__getitem__)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr(Builder, "fails", False)
    return Builder


def test_settings_reach_the_session_through_a_file_of_its_owner_s(
    builder: type[Builder], tmp_path: Path
) -> None:
    directory = tmp_path / "a work"
    directory.mkdir()
    directory.joinpath("spark.properties").write_text("left behind by a job that was killed")
    umask = os.umask(0)
    try:
        assert start_session({"spark.hadoop.fs.s3a.secret.key": "s3cret"}, directory) == "a session"
    finally:
        os.umask(umask)
    assert builder.mode == 0o600
    assert "s3cret" in builder.settings
    assert "left behind" not in builder.settings
    assert "s3cret" not in builder.arguments
    assert list(directory.iterdir()) == []
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_java_s_temporary_files_are_in_the_work_directory(
    builder: type[Builder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ``/tmp/spark-…`` stayed for each start, everybody's where the umask was open."""
    directory = tmp_path / "a 'work"
    directory.mkdir()
    start_session({}, directory)
    assert shlex.split(builder.options) == [f"-Djava.io.tmpdir={directory}"]
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Da=b")
    start_session({}, directory)
    assert shlex.split(builder.options) == ["-Da=b", f"-Djava.io.tmpdir={directory}"]
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Da=b"


def test_the_file_goes_when_spark_does_not_start(builder: type[Builder], tmp_path: Path) -> None:
    builder.fails = True
    with pytest.raises(RuntimeError):
        start_session({"spark.a": "b"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", ["plain", "a=b:c#d!e", "back\\slash\nline", " padded ", "\u00e4\u20ac\U0001f600", ""]
)
def test_a_value_comes_back_from_the_file_as_it_was(value: str) -> None:
    key, _, text = properties_text({"spark.k ey": value}).rstrip("\n").partition("=")
    assert (unescaped(key), unescaped(text)) == ("spark.k ey", value)
    assert text.isascii()


def test_the_file_can_be_read_by_a_person() -> None:
    text = properties_text({"spark.sql.catalog.a-b_c": "/srv/lake,local[2]"})
    assert text == "spark.sql.catalog.a-b_c=/srv/lake,local[2]\n"


def unescaped(text: str) -> str:
    """As java.util.Properties.load reads it: UTF-16 code units behind ``\\u``."""
    units = [
        int(code, 16) if code else ord(plain)
        for code, plain in re.findall(r"\\u([0-9a-f]{4})|(.)", text)
    ]
    return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")
