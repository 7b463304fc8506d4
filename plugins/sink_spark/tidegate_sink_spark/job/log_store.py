"""Delta's log store, which decides between two commits of one number where no file lock does: checks that it can.

Delta's own for ``s3a`` looks first and then writes, which keeps no second driver away, so a table there is
refused unless the user names another. That one may be as careless: a log store of another file system; one
whose condition never reaches the server. A driver that loses such a race is told that it has won, and its
rows are gone. So it is tested: of several commits with one number it must accept one.
"""

from __future__ import annotations

import importlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.rows import spark_errors

#: Schemes whose log store, by default, looks first and then writes. Catalogs name S3 as they like.
_S3: Final = ("s3a", "s3", "s3n")
#: Settings that name what decides between two commits on s3a.
LOG_STORES: Final = ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.class")
#: It keeps two writers apart in one Java machine only; users who name it take that risk.
SINGLE_DRIVER: Final = "io.delta.storage.S3SingleDriverLogStore"
DYNAMODB: Final = "io.delta.storage.S3DynamoDBLogStore"
#: Advice where no setting helps.
NO_LOG_STORE: Final = (
    "Delta's own log store for s3a keeps no second driver away, and its commit would replace rows; take engine "
    "'deltalake', which commits with conditional puts, or format 'iceberg' in a REST or JDBC catalog, or, where you see "
    f"to it that nobody else writes, name '{SINGLE_DRIVER}' in spark_conf, as 'spark.delta.logStore.s3a.impl'"
)
_CARELESS: Final = (
    "takes several commits with one number, so that a second writer would replace rows; take engine 'deltalake', which "
    "commits with conditional puts, or a log store that keeps two drivers apart"
)
#: Concurrent writers of one number: where several may win, nearly always several do.
_WRITERS: Final = 8
_FIRST: Final = f"{0:020}.json"
#: The exception with which a log store says that the commit already exists.
_LOST: Final = "FileAlreadyExistsException"

#: Buckets whose log store this process has tested.
_asked: Final[set[str]] = set()


def check_log_store(spark: Any, location: str) -> None:
    """Check that two drivers cannot both win at *location*, a table's URI. Raises: CommitError."""
    scheme = location.partition(":")[0]
    if scheme not in _S3:
        return
    settings = (key.replace("s3a", scheme) for key in LOG_STORES)
    named = next((name for key in settings if (name := spark.conf.get(key, ""))), "")
    if not named:
        raise CommitError(f"{location}: {NO_LOG_STORE.replace('s3a', scheme)}")
    bucket = "/".join(location.split("/", 3)[:3])
    if named == SINGLE_DRIVER or bucket in _asked:
        return
    with spark_errors(f"the log store {named} cannot be used for {location}"):
        won = _race(spark, f"{location.rstrip('/')}/_tidegate/probe-{uuid.uuid4().hex}")
    if won > 1:
        raise CommitError(f"{location}: the log store {named} {_CARELESS}")
    _asked.add(bucket)


def _race(spark: Any, uri: str) -> int:
    """Let several writers make the first commit of a table at *uri*, at once; returns how many did.

    At once, because a later one sees what is there before it writes. Through the log store alone, which every
    commit of Delta's uses. Raises: Py4JError.
    """
    py4j: Any = importlib.import_module("py4j.protocol")
    jvm, session = spark._jvm, spark._jsparkSession
    directory = jvm.org.apache.hadoop.fs.Path(uri)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, uri)
    path = jvm.org.apache.hadoop.fs.Path(log.logPath(), _FIRST)
    conf = log.newDeltaHadoopConf()
    start = threading.Barrier(_WRITERS)

    def commit(actions: Any) -> bool:
        start.wait()
        try:
            log.store().write(path, actions, False, conf)
        except py4j.Py4JJavaError as exc:
            if exc.java_exception.getClass().getSimpleName() != _LOST:
                raise
            return False
        return True

    writers = [_actions(jvm, number) for number in range(_WRITERS)]
    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            return sum(pool.map(commit, writers))
    finally:
        directory.getFileSystem(conf).delete(directory, True)


def _actions(jvm: Any, writer: int) -> Any:
    """What *writer* commits, as a log store takes it."""
    lines = jvm.java.util.ArrayList()
    lines.add(f'{{"commitInfo":{{"writer":{writer}}}}}')
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
