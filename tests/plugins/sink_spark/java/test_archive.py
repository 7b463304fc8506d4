"""Java's archive of Spark's classes: made once, used by every start, and never in the way of one."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_process import is_alive
from sink_bench import FAKE_JOB

from tidegate.spi import SinkContext
from tidegate_sink_spark._engine import StagedLog
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JobProcess
from tidegate_sink_spark._protocol import JobConfig
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.java import archive, runtime
from tidegate_sink_spark.java.archive import archive_path, make_archive, settings_of
from tidegate_sink_spark.java.runtime import JavaRuntime

#: A Spark of a program beside the gateway; prints which archives Java has mapped.
SESSION = """
import os, sys
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
spark = create_session("check", SparkSinkOptions(format="parquet", jars_cache=sys.argv[1]))
assert spark.range(3).count() == 3
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
maps = open(f"/proc/{pid}/maps").read()
print("MAPPED", any(name.endswith(".jsa") and name.startswith(sys.argv[1]) for name in maps.split()))
spark.stop()
"""


@pytest.fixture
def java(tmp_path: Path) -> JavaRuntime:
    """What an installed Java looks like, which does not run."""
    home = tmp_path / "jdk"
    for name in ("lib/server/classes.jsa", "lib/modules"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    return JavaRuntime(home, 17, "a test")


def with_java(text: str, directory: Path) -> dict[str, str]:
    """The environment of a job whose Java is a shell script."""
    program = directory / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {**os.environ, "JAVA_HOME": str(directory / "java")}


def test_another_java_and_another_spark_have_another_archive(
    java: JavaRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    jar = jars / "spark-core.jar"
    jar.write_text("1")
    monkeypatch.setattr(archive, "spark_home", lambda: tmp_path / "spark")
    options = SparkSinkOptions(jars_cache=str(tmp_path / "cache"))
    first = archive_path(options, java, {})
    assert first is not None
    assert first.parent == tmp_path / "cache"
    assert archive_path(options, java, {}) == first
    jar.write_text("another")
    second = archive_path(options, java, {})
    (java.home / "lib" / "modules").write_text("another")
    assert len({first, second, archive_path(options, java, {})}) == 3


def test_no_archive_where_java_can_have_none_or_nothing_is_kept(
    java: JavaRuntime, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    assert archive_path(SparkSinkOptions(jars="/opt/delta.jar"), java, {}) is None
    assert archive_path(SparkSinkOptions(jars_cache=str(tmp_path / "a:b")), java, {}) is None
    (java.home / "lib" / "server" / "classes.jsa").unlink()
    assert archive_path(SparkSinkOptions(jars_cache=cache), java, {}) is None


def test_an_archive_is_named_to_java_only_when_it_is_there(tmp_path: Path) -> None:
    assert settings_of(None) == {}
    path = tmp_path / "a place" / "spark.jsa"
    assert settings_of(path) == {}
    path.parent.mkdir()
    path.write_text("")
    flags = shlex.split(settings_of(path)["spark.driver.defaultJavaOptions"])
    assert flags[0] == f"-XX:SharedArchiveFile={path}"


async def test_a_java_that_makes_none_is_told_in_one_line_and_nothing_unused_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    (cache / ".archive-of-a-killed-process").mkdir(parents=True)
    unused, used = cache / "spark-classes-java8-1.jsa", cache / "spark-classes-java17-2.jsa"
    for path in (unused, used):
        path.write_text("")
        os.utime(path, (1, 1))
    settings_of(used)
    environment = with_java("echo 'no room for this Java' >&2; exit 3", tmp_path)
    await make_archive(cache / "spark.jsa", environment)
    assert {path.name for path in cache.iterdir()} == {".archive.lock", used.name}
    (told,) = [item.getMessage() for item in caplog.records if item.levelno >= logging.WARNING]
    assert "could not be made" in told
    assert "Spark starts without it" in told
    assert "\n" not in told


async def test_nobody_waits_for_an_archive_that_another_process_makes(tmp_path: Path) -> None:
    with open(tmp_path / ".archive.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = with_java(f"touch {tmp_path}/started", tmp_path)
        await make_archive(tmp_path / "spark.jsa", environment)
    assert not (tmp_path / "started").exists()


async def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    await make_archive(tmp_path / "file" / "spark.jsa", dict(os.environ))


async def test_a_gateway_that_stops_ends_the_java_that_makes_it(tmp_path: Path) -> None:
    cache, started = tmp_path / "cache", tmp_path / "pid"
    cache.mkdir()
    environment = with_java(
        f"echo $$ > {started}.part; mv {started}.part {started}; exec sleep 600", tmp_path
    )
    making = asyncio.create_task(make_archive(cache / "spark.jsa", environment))
    while not started.exists():
        await asyncio.sleep(0.05)
        assert not making.done()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert [path.name for path in cache.iterdir()] == [".archive.lock"]
    async with asyncio.timeout(10):
        while is_alive(int(started.read_text())):
            await asyncio.sleep(0.05)


async def test_a_job_that_lasts_makes_it_and_the_next_one_uses_it(
    java: JavaRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()

    async def make(path: Path, _: object) -> None:
        path.write_text("")
        made.set()

    monkeypatch.setattr(runtime, "find_java", lambda *_: java)
    monkeypatch.setattr(archive, "make_later", make)
    options = SparkSinkOptions(format="parquet", jars_cache=str(tmp_path / "cache"))
    context = SinkContext("lake", "gw", tmp_path)
    engine = SparkEngine(context, options, job_command=FAKE_JOB)
    await engine.prepare()
    staged = StagedLog("store-1", tmp_path / "staging", 0)
    flags: list[str] = []
    begin = JobProcess.start

    async def start(config: JobConfig, **more: Any) -> JobProcess:
        flags.append(config.spark_conf.get("spark.driver.defaultJavaOptions", ""))
        return await begin(config, **more)

    monkeypatch.setattr(JobProcess, "start", start)
    for _ in range(2):
        job = await engine.start(staged)
        await made.wait()
        await job.end()
    assert ["SharedArchiveFile" in item for item in flags] == [False, True]


@pytest.mark.parametrize(
    ("limit", "used", "left"), [("max", 0, 3 << 30), (1 << 30, 300 << 20, 724 << 20), (5, 9, 0)]
)
def test_memory_that_is_left_is_the_machine_s_or_the_container_s(
    limit: object, used: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {3 << 20} kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.stat").write_text(f"anon {used}\nfile {1 << 40}\n")
    monkeypatch.setattr(archive, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(archive, "_CONTAINER", tmp_path)
    assert archive.memory_left() == left


async def test_none_is_made_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MEMINFO", tmp_path / "none")
    environment = with_java(f"touch {tmp_path}/started", tmp_path)
    await archive.make_later(tmp_path / "spark.jsa", environment, delay=0)
    assert not (tmp_path / "started").exists()


@pytest.mark.spark
@pytest.mark.long
async def test_spark_starts_with_it_and_without_one_that_is_damaged(
    spark: Any, tmp_path: Path
) -> None:
    java = JavaRuntime(Path(spark.environment["JAVA_HOME"]), 17, "a test")
    path = archive_path(SparkSinkOptions(jars_cache=str(tmp_path)), java, {})
    assert path is not None, "a JDK of the system has an archive of its own"
    await make_archive(path, spark.environment)
    assert mapped(tmp_path)
    data = bytearray(path.read_bytes())
    for position in range(1 << 20, len(data), 1 << 16):
        data[position] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert not mapped(tmp_path)


def mapped(cache: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(cache)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MAPPED")]
    return line == "MAPPED True"
