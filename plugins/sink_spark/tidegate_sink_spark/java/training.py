"""The Spark whose classes are archived: ``python -m tidegate_sink_spark.java.training ARCHIVE``.

It is started as the job's is, because Java uses an archive only with the class path it was made with, and does a little of
everything that a job does. Java writes the archive when it ends by itself. Imports nothing of the gateway.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any

from tidegate_sink_spark.job.session import DRIVER_FLAGS, spark_conf, start_session

_MEMORY_BYTES = 512 << 20
_STATEMENTS = (
    """create table rows using parquet location '{table}' as
       select id, cast(id as string) as text, id % 2 = 0 as flag, map('a', 'b') as headers,
              array(named_struct('name', 'a', 'value', 'b')) as pairs, current_timestamp() as at,
              current_date() as day, binary('a') as body
       from range(10)""",
    """select a.text, count(*), max(b.at), sum(length(b.body)), explode(a.headers)
       from rows a join rows b on a.id = b.id
       where a.id > 1 and a.day <= current_date()
       group by a.text, a.headers order by 1 limit 3""",
    """select id, row_number() over (partition by flag order by id)
       from rows where text in (select text from rows)""",
)


def main() -> None:
    """Run it in an empty working directory, with the environment of the job."""
    work = Path.cwd()
    flags = shlex.join(
        # The second compiler does not pay in some seconds.
        (f"-XX:ArchiveClassesAtExit={sys.argv[1]}", "-Xlog:cds*=off", "-XX:TieredStopAtLevel=1")
    )
    conf = spark_conf(
        jars=(),
        driver_memory_bytes=_MEMORY_BYTES,
        work_directory=work,
        overrides={DRIVER_FLAGS: flags, "spark.master": "local[1]"},
        table_format="parquet",
    )
    spark: Any = start_session(conf, work)
    for statement in _STATEMENTS:
        spark.sql(statement.format(table=work / "rows")).collect()
    spark.createDataFrame([(1, "a")], "id bigint, text string").filter("id > 0").collect()
    gateway = spark.sparkContext._gateway
    with contextlib.suppress(Exception):  # it ends before it can answer
        gateway.jvm.java.lang.System.exit(0)
    gateway.proc.wait()


if __name__ == "__main__":
    main()
