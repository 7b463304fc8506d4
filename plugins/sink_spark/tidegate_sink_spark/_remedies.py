"""Remedies for errors of Java, Spark, table formats and disks."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from tidegate.spi.commands import ClientError
from tidegate_sink_spark.java.jars import JarsError
from tidegate_sink_spark.job.driver import CommitError, first_line

#: Packages whose errors say what is wrong with Spark, Java or a table, not with a command.
_FOREIGN: Final = ("pyspark", "py4j")

#: A pattern of a problem's text, and the remedy; the first match counts.
_REMEDIES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (
            "java_gateway_exited|java gateway process exited",
            (
                "Java ended before Spark began: see that bin/java in java_home (else JAVA_HOME, PATH) runs, and that "
                "the machine has the memory that driver_memory asks for"
            ),
        ),
        (
            "has said nothing for",
            "its own log is here at level DEBUG; on a cluster, see that it has workers with free cores and memory",
        ),
        (
            "all masters are unresponsive|stopped sparkcontext",
            "see that the cluster's master runs, and that the option master names it",
        ),
        (
            "outofmemory|java heap space|gc overhead limit",
            "raise driver_memory, or lower segment_size",
        ),
        (
            (
                "py4jnetworkerror|answer from java side is empty|error while (sending|receiving)|"
                "trying to connect to the java server|java does not exist in the jvm"
            ),
            "its Java machine ended: killed, or out of memory (see the kernel's log; driver_memory)",
        ),
        (
            r"does not support managed table|catalog.?managed",
            (
                "the sink writes no table whose commits a catalog decides: let it write to a path or URI of its own, and "
                "make an external table of that in the catalog"
            ),
        ),
        ("no space left|disk quota", "free some space where the table is"),
        ("not a directory|errno 17", "a file is in the way: name another table, or remove it"),
        (
            "permission denied|accesscontrolexception|accessdenied|mkdirs failed|read-only file system",
            "let the gateway's user write there, or name another table",
        ),
        (
            "no filesystem for scheme|s3afilesystem not found|azurebfs.*not found",
            "add the jars of that file system: spark.jars in spark_conf",
        ),
        (
            "containernotfound|filesystemnotfound|nosuchbucket|bucket does not exist",
            "make that bucket or container, or name another one",
        ),
        (
            (
                "unknownhost|connection refused|connection reset|(connect|operation|read) timed out|sockettimeout|"
                r"apicall\w*timeout|dns error|unable to execute http request|no route to host|"
                "end of file exception between|cannot obtain block length|"
                "could only be (replicated|written) to|in safe ?mode"
            ),
            (
                "see that what the table is in can be reached from here, and its endpoint in spark_conf, "
                "storage_options or catalog"
            ),
        ),
        (
            (
                "invalidaccesskeyid|signaturedoesnotmatch|no aws credentials|forbidden|unauthorized|notauthorized|"
                "account must be specified|token request|service account file|authenticationfailed"
            ),
            "see the keys in spark_conf, storage_options or catalog",
        ),
    )
)


def with_remedy(problem: str) -> str:
    """*problem* in one line, with its remedy where one is known."""
    line = " ".join(problem.split())
    for pattern, remedy in _REMEDIES:
        if pattern.search(line):
            return line if remedy in line else f"{line}: {remedy}"
    return line


@contextmanager
def client_errors() -> Generator[None]:
    """Turn errors of a table, its jars, Spark or a disk into a :class:`ClientError`, a command's one line."""
    try:
        yield
    except Exception as error:
        is_foreign = type(error).__module__.partition(".")[0] in _FOREIGN
        if not is_foreign and not isinstance(error, CommitError | JarsError | OSError):
            raise
        raise ClientError(with_remedy(first_line(error))) from error
