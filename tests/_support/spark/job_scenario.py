"""One scenario of real jobs over one table, what was seen of it, and programs that read the table cold."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidegate_sink_spark._process import JobProcess
from tidegate_sink_spark._protocol import Command, JobConfig, Kept, Mark, Ready, Report
from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.table import Shape, application_id

APP_ID = application_id("gw", "store-1")


SECRET = "s3cret-of-the-object-store"


def command_lines(group: int) -> list[bytes]:
    """What every user of the machine can read of the job's processes."""
    found: list[bytes] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            continue  # it ended meanwhile
    return found


class Jobs:
    """Real jobs over one staging directory and one table."""

    def __init__(self, directory: Path, spark: Any, kit: Any, table_format: str = "delta") -> None:
        self.kit = kit
        self.format = table_format
        self.spark = spark
        self.directory = directory
        self.staging = directory / "staging [1] {x}"  # Spark takes paths as patterns
        self.table = directory / "a lake" / "table"

    def stage(self, lo: int, hi: int) -> Path:
        return self.kit.stage(self.staging, lo, hi)

    async def start(self, name: str, layout: str = "clustered") -> JobProcess:
        work = self.directory / name
        work.mkdir()
        config = JobConfig(
            gateway_name="gw",
            store_id="store-1",
            staging_directory=str(self.staging),
            table=str(self.table),
            layout=layout,
            commit_interval=3600.0,
            floor=0,
            vacuum_retention=3600.0,
            spark_conf=self.spark.conf(work, self.format)
            | {"spark.hadoop.fs.s3a.secret.key": SECRET},
            format=self.format,
        )
        return await JobProcess.start(
            config, environment=self.spark.environment, work_directory=work
        )

    def contents(self) -> Any:
        return self.kit.READERS[self.format](self.table, APP_ID)


async def until_mark(job: JobProcess, mark: int) -> list[Report]:
    """Read reports up to the one that says *mark*; all of them but those of being ready."""
    reports: list[Report] = []
    async with asyncio.timeout(240):
        while True:
            report = await job.next_report()
            assert report is not None, f"the job ended at {reports}: {job.tail}"
            if isinstance(report, Ready):
                continue  # said behind each round
            reports.append(report)
            if isinstance(report, Mark) and report.mark == mark:
                return reports


#: What `tidegate sink verify` says of a table that Spark reads: even where delta-rs could.
PROVED = """
from tidegate.spi import LogState
from tidegate_sink_spark._target import Target
from tidegate_sink_spark.verify import proof, seen
seen.find_spec = lambda _: None
def proved(name, kind):
    log = seen.Log("gw", "store-1")
    table = seen.look_at(Target(name, False, {}), kind, log, lambda: spark)
    missing = seen.look_at(Target(name + "_dlq", False, {}), kind, log, lambda: spark)
    state = LogState("store-1", table.mark + 1, table.mark)
    found = proof.prove(proof.Seen(state, state, (), table, {}, missing, True), content=True)
    return [found.problems, found.rows, found.mark, found.content], found.files
"""

COLD_DELTA = (
    PROVED
    + """
import json, os, sys
from pathlib import Path
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.job import delta
from tidegate_sink_spark.job.delta import DeltaTable
from tidegate_sink_spark.job.table import Shape
from tidegate_sink_spark.job.driver import Addition, CommitError
from tidegate_sink_spark.job.routed import RoutedTable
from tidegate_sink_spark.upkeep import delta as upkeep_delta
from tidegate_sink_spark.upkeep.delta import DeltaUpkeep
conf, path, app_id, staged = json.loads(sys.argv[1]), *sys.argv[2:5]
spark = create_session("reader-test", SparkSinkOptions(table=path, spark_conf=conf))
def facts():
    table = spark.read.format("delta").load(path)
    row = table.selectExpr("count(*)", "count(DISTINCT ack_seq)", "max(ack_seq)",
                           "count(DISTINCT message_id)").first()
    return {"counts": list(row), "mark": DeltaTable(spark, path, Shape("clustered"), app_id).state().mark}
cold, proved_cold = facts(), proved(path, "delta")
table = spark.read.format("delta").load(path)
detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("userMetadata IS NOT NULL").orderBy(
    "version").collect()
row = table.where("ack_seq = 7").selectExpr(
    "*", "date_format(acked_at, \\"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\\") AS acked_text").first().asDict()
left, young = Path(path) / "left-by-a-kill.parquet", Path(path) / "of-a-commit.parquet"
for made in (left, young):
    made.write_bytes(b"PAR1")
os.utime(left, (0, 0))
turn = DeltaUpkeep(spark, DeltaTable(spark, path, Shape("clustered"), app_id), retention=3600.0).turn(vacuums=True)
def routed():
    names = [f"{path} main", f"{path} eu"]
    main, eu = [DeltaTable(spark, name, Shape("clustered"), app_id) for name in names]
    table = RoutedTable(main, {"queue://orders.>": names[1]}, lambda name: eu, Path(path).parent)
    table.append(Addition([Path(staged)], 0, 100, 100))
    return [table.state().mark, eu.state().mark, *(
        spark.read.format("delta").load(name).count() for name in names)]
spark.range(5).write.format("delta").save(path + " of its own")
def sliced():
    # Three destinations, two commits each; one partition after the other is compacted.
    shape = Shape("partitioned", partition_by=("ack_date", "destination"))
    table, empty = [DeltaTable(spark, path + name, shape, app_id) for name in (" parts", " empty")]
    for number in (0, 100):
        table.append(Addition([Path(staged)], number, number + 100, 100))
    version, upkeep_delta.PARTITIONS_MAX = table.state().version, 1
    turns = [DeltaUpkeep(spark, each, retention=0.0).turn(vacuums=False) for each in (table, table, empty)]
    after = table.state()
    return [[[turn.removed, turn.added] for turn in turns], after.version - version, after.mark,
            spark.read.format("delta").load(path + " parts").count()]
def refused():
    # Less than was promised is written; then the mark in the log, as Delta itself computes it.
    table = DeltaTable(spark, path + " main", Shape("clustered"), app_id)
    before = table.state()
    try:
        table.append(Addition([Path(staged)], 100, 201, 101))
    except CommitError as exc:
        said = str(exc)
    delta.COMMITS_READ_MAX = 0
    return [said.partition(" are behind")[0], table.state() == before, before.mark]
def whole():
    # The staged file is the table's, until the table asks for more than rows.
    name = path + " whole"
    table = DeltaTable(spark, name, Shape("clustered"), app_id)
    def commit(after):
        table.append(Addition([Path(staged)], after, after + 100, 100))
        metrics = spark.sql(f"DESCRIBE HISTORY delta.`{name}` LIMIT 1").first()["operationMetrics"]
        data = [file for file in Path(name).iterdir() if file.suffix == ".parquet"]
        return [len(data), sum(file.samefile(staged) for file in data), metrics["numFiles"], metrics["numOutputRows"]]
    first = commit(0)
    spark.sql(f"ALTER TABLE delta.`{name}` ADD CONSTRAINT positive CHECK (ack_seq > 0)")
    return [first, commit(100), table.state().mark, spark.read.format("delta").load(name).count()]
print(json.dumps({
    "own": [spark.read.format("delta").load(path + " of its own").count(),
            spark.sparkContext.appName, routed(), refused(), sliced(), whole()],
    "upkeep": [turn.removed, turn.added, left.exists(), young.exists()],
    "cold": cold, "optimized": facts(), "proved": [proved_cold, proved(path, "delta")],
    "row": {**{key: str(value) for key, value in row.items()}, "body": row["body"].decode()},
    "clustering": list(detail["clusteringColumns"]),
    "last_commit": json.loads(history[-1]["userMetadata"]),
}))
spark.stop()
"""
)


#: Snapshots expire and files are compacted here: the summaries of our commits go, the mark stays.
#: Then what the one job of this scenario did not try: catalogs by name, and Spark on a Parquet table.
COLD_ICEBERG = (
    PROVED
    + """
import json, os, sys
from pathlib import Path
from tidegate_sink_spark import create_session
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark.job import table as columns
from tidegate_sink_spark.upkeep import iceberg as upkeep
from tidegate_sink_spark.job.driver import Addition, CommitError, MarkMovedError
from tidegate_sink_spark.job.iceberg import IcebergTable
from tidegate_sink_spark.job.table import Shape
from tidegate_sink_spark.job.routed import RoutedTable
conf, path, app_id, staged, parquet = json.loads(sys.argv[1]), *sys.argv[2:6]
lake = str(Path(path).parent / "warehouse")
hadoop = {"spark.sql.catalog.files": "org.apache.iceberg.spark.SparkCatalog",
          "spark.sql.catalog.files.type": "hadoop", "spark.sql.catalog.files.warehouse": lake}
spark = create_session("reader-test", SparkSinkOptions(
    format="iceberg", table="lake.sales.acknowledged", spark_conf={**conf, **hadoop},
    catalog={"type": "jdbc", "uri": f"jdbc:sqlite:{lake}.db", "warehouse": lake}))
def facts():
    table = spark.read.format("iceberg").load(path)
    row = table.selectExpr("count(*)", "count(DISTINCT ack_seq)", "max(ack_seq)",
                           "count(DISTINCT message_id)").first()
    return {"counts": list(row), "mark": IcebergTable(spark, path, Shape("clustered"), app_id).state().mark}
cold, proved_cold = facts(), proved(path, "iceberg")
table = IcebergTable(spark, path, Shape("clustered"), app_id)._table
last_commit = json.loads(table.currentSnapshot().summary()["tidegate.commit"])
row = spark.read.format("iceberg").load(path).where("ack_seq = 7").selectExpr(
    "*", "date_format(acked_at, \\"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\\") AS acked_text").first().asDict()
left, young = Path(path) / "data" / "left-by-a-kill.parquet", Path(path) / "data" / "of-a-commit.parquet"
for made in (left, young):
    made.write_bytes(b"PAR1")
os.utime(left, (0, 0))
keep = upkeep.IcebergUpkeep(spark, IcebergTable(spark, path, Shape("clustered"), app_id), retention=3600.0)
turn = keep.turn(vacuums=True)
gone = [left.exists(), young.exists()]
upkeep._before = lambda seconds: 2**62  # an hour and a day later
keep.turn(vacuums=True)
table.refresh()
optimized, proved_optimized = facts(), proved(path, "iceberg")
snapshots = len(list(table.snapshots()))
def by_name(name):
    # Another driver commits between what a zombie compared and what it would swap.
    named, zombie, late = [
        IcebergTable(spark, name, Shape("partitioned"), app_id, is_name=True) for _ in range(3)]
    files = zombie._write(spark.read.parquet(staged))
    base, changed = zombie._prepare(files, Addition([], 0, 60, 60))
    named.append(Addition([Path(staged)], 0, 100, 100))
    swapped = zombie._swap(base, changed)
    try:
        late._commit(files, Addition([], 0, 60, 60))
    except MarkMovedError:
        refused = True
    again = IcebergTable(spark, name, Shape("partitioned"), app_id, is_name=True)
    return [again.state().mark, spark.table(name).count(), swapped, refused]
def routed():
    names = ["lake.sales.main", "lake.sales.eu"]
    main, eu = [IcebergTable(spark, name, Shape("clustered"), app_id, is_name=True) for name in names]
    table = RoutedTable(main, {"queue://orders.>": names[1]}, lambda name: eu, Path(path).parent)
    table.append(Addition([Path(staged)], 0, 100, 100))
    return [table.state().mark, eu.state().mark, *(spark.table(name).count() for name in names)]
def refused():
    # Less than was promised is written, and no commit has it.
    table = IcebergTable(spark, "lake.sales.main", Shape("clustered"), app_id, is_name=True)
    before = table.state()
    try:
        table.append(Addition([Path(staged)], 100, 201, 101))
    except CommitError as exc:
        said = str(exc)
    return [said.partition(" are behind")[0], table.state() == before, before.mark]
def evolved():
    # One that an older gateway made has fifteen columns.
    now, columns.COLUMNS = columns.COLUMNS, columns.COLUMNS[:15]
    IcebergTable(spark, "lake.sales.old", Shape("clustered"), app_id, is_name=True)
    columns.COLUMNS = now
    table = IcebergTable(spark, "lake.sales.old", Shape("clustered"), app_id, is_name=True)
    table.append(Addition([Path(staged)], 0, 100, 100))
    return [len(now) == len(spark.table("lake.sales.old").columns), table.state().mark]
def unwritten():
    # A table without a row has no directory of data yet.
    table = IcebergTable(spark, "lake.sales.unwritten", Shape("clustered"), app_id, is_name=True)
    turn = upkeep.IcebergUpkeep(spark, table, retention=3600.0).turn(vacuums=True)
    return [turn.removed, turn.added]
print(json.dumps({
    "evolved": evolved(), "unwritten": unwritten(),
    "own": [by_name("files.sales.acknowledged"), by_name("lake.sales.acknowledged"), routed(), refused()],
    "upkeep": [turn.removed, turn.added, *gone],
    "cold": cold, "optimized": optimized, "snapshots": snapshots,
    "proved": [proved_cold, proved_optimized],
    "row": {**{key: str(value) for key, value in row.items()}, "body": row["body"].decode()},
    "clustering": [field.sourceId() for field in table.sortOrder().fields()],
    "last_commit": last_commit,
    "parquet": list(spark.read.parquet(parquet).selectExpr(
        "count(*)", "count(DISTINCT ack_seq)", "max(ack_seq)", "min(CAST(ack_date AS STRING))").first()),
}))
spark.stop()
"""
)


@dataclass
class Facts:
    """What was seen while one scenario ran; each test below looks at one part of it.

    One scenario and not one per test, because each start of Java costs some ten seconds.
    Attributes: rounds: how many commits of a hundred rows it begins with.
    """

    rounds: int = 24
    format: str = "delta"
    steady: list[Report] = field(default_factory=list)
    after_redelivery: Any = None
    gap: Report | None = None
    mark_at_gap: int = 0
    after_gap: Any = None
    second_start: Report | None = None
    end: Any = None
    kept: list[Kept] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    cold: dict[str, Any] = field(default_factory=dict)
    command_lines: list[bytes] = field(default_factory=list)


async def commit(job: JobProcess, mark: int) -> list[Report]:
    job.send(Command.COMMIT)
    return await until_mark(job, mark)


async def steady(jobs: Jobs, job: JobProcess, facts: Facts) -> None:
    facts.steady += await until_mark(job, 100)
    for n in range(1, facts.rounds):
        jobs.stage(n * 100 + 1, n * 100 + 100)
        facts.steady += await commit(job, n * 100 + 100)


async def redeliver(jobs: Jobs, job: JobProcess, facts: Facts) -> None:
    mark = facts.rounds * 100
    jobs.stage(mark - 99, mark)  # the same name again
    jobs.stage(mark - 150, mark - 50)  # the same rows under another name
    jobs.stage(mark - 49, mark + 100)  # an overlap with what is new
    jobs.stage(mark + 50, mark + 200)  # an overlap with that
    await commit(job, mark + 200)
    facts.after_redelivery = jobs.contents()


async def withhold_and_fill(jobs: Jobs, job: JobProcess, facts: Facts) -> None:
    mark = facts.rounds * 100 + 200
    jobs.stage(mark + 101, mark + 400)
    job.send(Command.COMMIT)
    while isinstance(facts.gap, Ready | None):  # the last commit's
        facts.gap = await job.next_report()
    facts.mark_at_gap = jobs.contents().mark
    jobs.stage(mark + 1, mark + 100)
    await commit(job, mark + 400)
    facts.after_gap = jobs.contents()


async def race(jobs: Jobs, both: list[JobProcess], facts: Facts) -> None:
    """Both commit at the same time. What the second one finds staged overlaps with what the first
    one finds, without being equal, so that their transactions have different versions."""
    mark = 3_000
    for step in range(5):
        jobs.stage(mark + 1, mark + 500)
        both[step % 2].send(Command.COMMIT)
        jobs.stage(mark + 501, mark + 700)
        jobs.stage(mark + 301, mark + 650)
        both[1 - step % 2].send(Command.COMMIT)
        mark += 700
        for job in both:
            job.send(Command.COMMIT)
        for reports in await asyncio.gather(*(until_mark(job, mark) for job in both)):
            facts.kept += [report for report in reports if isinstance(report, Kept)]
    async with asyncio.timeout(240):
        while not facts.kept:
            report = await both[0].next_report()
            facts.kept += [report] if isinstance(report, Kept) else []


def of_program(script: str, *arguments: str, **environment: Any) -> Any:
    """What the last line is that a Python program of one's own prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        **environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def read_cold(jobs: Jobs, *further: Path) -> dict[str, Any]:
    """What a program of one's own sees, in a new process that never had the table open."""
    return of_program(
        COLD_DELTA if jobs.format == "delta" else COLD_ICEBERG,
        *(json.dumps(dict(jobs.spark.conf_of_reader(jobs.format))), str(jobs.table), APP_ID),
        *(str(path) for path in further),
        cwd=jobs.directory,
    )


# A whole scenario takes minutes: its tests go to the same process of pytest-xdist, which has it once.
OF_DELTA = pytest.mark.xdist_group("scenario of delta")
OF_ICEBERG = pytest.mark.xdist_group("scenario of iceberg")
BOTH = [
    pytest.param("delta", marks=[pytest.mark.long, OF_DELTA]),
    pytest.param("iceberg", marks=[pytest.mark.long, OF_ICEBERG]),
]


def whole_scenario(jobs: Jobs) -> Facts:
    """Run it: 27 commits, re-delivery, a gap, a second job at once, and a cold reader."""
    facts = Facts(format=jobs.format)

    async def main() -> None:
        jobs.stage(1, 100)
        both = [await jobs.start("one")]
        try:
            await steady(jobs, both[0], facts)
            facts.command_lines = command_lines(both[0].pid)
            both.append(await jobs.start("two"))
            await redeliver(jobs, both[0], facts)
            await withhold_and_fill(jobs, both[0], facts)
            async with asyncio.timeout(240):
                facts.second_start = await both[1].next_report()
                both[1].send(Command.COMMIT)
            await until_mark_or_is(both[1], facts.second_start, 3_000)
            both[0].send(Command.COMPACT_AND_VACUUM)  # it is at it while both commit
            await race(jobs, both, facts)
            for job in both:
                job.send(Command.STOP)
            facts.exit_codes += await asyncio.gather(*(job.wait() for job in both))
        finally:
            for job in both:
                await job.end()

    asyncio.run(main())
    facts.end = jobs.contents()
    staged, parquet = jobs.kit.stage(jobs.directory / "more", 1, 100), jobs.directory / "files"
    if jobs.format == "delta":
        facts.cold = read_cold(jobs, staged)
        return facts
    ParquetTable(parquet, Shape("partitioned"), APP_ID).append(
        Addition([staged], after=0, through=100, count=100)
    )
    facts.cold = read_cold(jobs, staged, parquet)
    return facts


async def until_mark_or_is(job: JobProcess, first: Report | None, mark: int) -> None:
    """The second job may have started before or after the last commit of the first one."""
    if not (isinstance(first, Mark) and first.mark == mark):
        await until_mark(job, mark)
