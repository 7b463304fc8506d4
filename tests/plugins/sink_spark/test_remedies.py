"""What the operator reads when Spark does not start, or its table cannot be written: one line, with a remedy."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import fake_job
import pytest
from py4j.protocol import Py4JError

from tidegate.spi import SinkContext
from tidegate.spi.commands import ClientError
from tidegate_sink_spark._job_engine import JobEngine
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JOB_COMMAND
from tidegate_sink_spark._remedies import client_errors, with_remedy
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.rows import spark_errors

FAKE_JOB = (sys.executable, fake_job.__file__)


class Thrown:
    """What Java has thrown, as py4j gives it."""

    def __init__(self, text: str, cause: Any = None) -> None:
        self.text, self.cause = text, cause

    def toString(self) -> str:
        return self.text

    def getCause(self) -> Any:
        return self.cause


class JavaError(Py4JError):
    """What py4j raises for it."""

    def __init__(self, thrown: Thrown) -> None:
        super().__init__("An error occurred while calling o1.save")
        self.java_exception = thrown


def said_of(thrown: Thrown) -> str:
    with pytest.raises(CommitError) as caught, spark_errors("the commit failed"):
        raise JavaError(thrown)
    return with_remedy(str(caught.value))


def test_what_a_task_failed_of_is_told_with_its_remedy() -> None:
    """Spark says of a full disk that a task failed, and why only in the cause of the cause."""
    room = Thrown("java.io.IOException: No space left on device\n  at java.base/...")
    task = Thrown("SparkException: [TASK_WRITE_FAILED] Task failed", Thrown("FSError: x", room))
    assert said_of(task) == (
        "the commit failed: SparkException: [TASK_WRITE_FAILED] Task failed (java.io.IOException: No space left on "
        "device): free some space where the table is"
    )
    assert said_of(room) == (
        "the commit failed: java.io.IOException: No space left on device: free some space where the table is"
    )
    circle = Thrown("A")
    circle.cause = Thrown("B", circle)
    assert said_of(circle).startswith("the commit failed: A")


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway", "bin/java"),
        (
            "the object store of abfs://l/t cannot be used: Account must be specified",
            "see the keys",
        ),
        ("Generic GCS error: Error performing token request: Error performing GET", "see the keys"),
        ("404 Not Found: <Code>ContainerNotFound</Code>", "make that bucket or container"),
        ("the commit failed: java.io.EOFException: End of File Exception between local", "reached"),
        ("the commit failed: java.lang.OutOfMemoryError: Java heap space", "driver_memory"),
        (
            "the table's lock cannot be taken: java does not exist in the JVM",
            "its Java machine ended",
        ),
        (
            "the commit failed: An error occurred while calling o1.x: Answer from Java side is empty",
            "ended",
        ),
        ("ApiException: Unity Catalog does not support managed table.", "external table"),
        ("[DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED] Path", "external table"),
        ("the commit failed: java.io.IOException: No space left on device", "free some space"),
        ("[Errno 13] Permission denied: '/srv/lake'", "let the gateway's user write there"),
        ("[Errno 20] Not a directory: '/srv/lake/t/_tidegate'", "a file is in the way"),
        ('No FileSystem for scheme "s3a"', "spark.jars"),
        ("java.net.UnknownHostException: minio", "can be reached"),
        ("the commit failed: SocketTimeoutException: Read timed out", "can be reached"),
        ("software.amazon.awssdk...ApiCallAttemptTimeoutException: 60000 millis", "can be reached"),
        ("The AWS Access Key Id you provided ... InvalidAccessKeyId", "keys in spark_conf"),
    ],
)
def test_a_problem_comes_with_a_remedy_once(problem: str, remedy: str) -> None:
    told = with_remedy(problem)
    assert told.startswith(problem)
    assert remedy in told
    assert with_remedy(told) == told


@pytest.mark.parametrize(
    "error",
    [
        CommitError("no\ntrace"),
        PermissionError(13, "Permission denied"),
        Py4JError("An error occurred while calling o1.save"),
    ],
)
def test_what_a_command_cannot_reach_is_the_error_of_a_client(error: Exception) -> None:
    with pytest.raises(ClientError) as caught, client_errors():
        raise error
    assert "\n" not in str(caught.value)


def test_a_bug_of_a_command_stays_one() -> None:
    with pytest.raises(KeyError), client_errors():
        raise KeyError("bug")


def test_a_problem_is_one_line() -> None:
    assert with_remedy("what\nnobody   knows\n") == "what nobody knows"


def make(directory: Path, jar: Path, *job_command: str, **changes: Any) -> SparkSink:
    jar.touch()
    options: dict[str, Any] = {"commit_interval": 0.1, "segment_interval": 0.02, "jars": str(jar)}
    made = SparkSinkOptions(**{**options, "drain_on_stop": False, **changes})
    context = SinkContext("lake", "gw", directory)
    of_format = JobEngine if made.format == "parquet" else SparkEngine
    engine = of_format(context, made, job_command=job_command or JOB_COMMAND)
    return SparkSink(context, made, engine, restart_delay=0.05)


def fake_java(home: Path) -> Path:
    """A Java that tells its version, and can do no more."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\' >&2; exit 0; fi\n'
        "echo 'Error: Could not reserve enough space for object heap' >&2\n"
        "exit 1\n"
    )
    java.chmod(0o755)
    return home


def is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> bool:
    told = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    return bool(told) and all("\n" not in record.getMessage() for record in told)


async def test_a_java_that_does_not_start_is_told_in_one_line(
    kit: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The real job, and the real PySpark."""
    sink = make(tmp_path, tmp_path / "a.jar", java_home=str(fake_java(tmp_path / "jdk")))
    log = kit.MemoryLog(last=10)
    await sink.start(log)
    try:
        await kit.until(lambda: "Spark does not start" in sink.health().problem, 240)
        assert "bin/java in java_home" in sink.health().problem
        await kit.until(lambda: sink.health().staged == 10)  # the gateway goes on
        assert is_told_in_one_line(caplog)
    finally:
        await sink.stop()


async def test_a_job_that_is_killed_is_one_line_in_the_log(
    kit: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = make(tmp_path, tmp_path / "a.jar", *FAKE_JOB, java_home=str(fake_java(tmp_path / "jdk")))
    log = kit.MemoryLog(last=10)
    await sink.start(log)
    try:
        await kit.until(lambda: sink.health().mark == 10)
        os.killpg(sink.job_pid, signal.SIGKILL)
        await kit.until(lambda: "killed by SIGKILL" in sink.health().problem)
        assert is_told_in_one_line(caplog)
        log.grow(5)
        await kit.until(lambda: sink.health().mark == 15)
        assert sink.health().problem == ""
    finally:
        await sink.stop()


async def test_a_job_that_ends_by_itself_says_its_last_line(
    kit: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = (sys.executable, "-c", "raise ValueError('a module is missing')")
    sink = make(tmp_path, tmp_path / "a.jar", *command, java_home=str(fake_java(tmp_path / "jdk")))
    await sink.start(kit.MemoryLog(last=1))
    try:
        await kit.until(lambda: "ValueError: a module is missing" in sink.health().problem)
        assert is_told_in_one_line(caplog)
    finally:
        await sink.stop()


async def test_a_table_that_may_not_be_written_is_told_in_one_line(
    kit: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the table's directory is to be: root may write anywhere else."""
    (tmp_path / "file").touch()
    table = tmp_path / "file" / "table"
    sink = make(
        tmp_path,
        tmp_path / "a.jar",
        format="parquet",
        layout="plain",
        table=str(table),
    )
    log = kit.MemoryLog(last=10)
    await sink.start(log)
    try:
        await kit.until(lambda: "Not a directory" in sink.health().problem, 120)
        await kit.until(lambda: sink.health().staged == 10)
        assert is_told_in_one_line(caplog)
    finally:
        await sink.stop()
        await asyncio.sleep(0)
