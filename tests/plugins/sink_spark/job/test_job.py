"""The real job: PySpark, Java, and a Delta or Iceberg table on disk.

What is asserted is counted by conftest's readers, which are neither Spark nor Java, and once by a new
Spark process that opens the table cold.
"""

import asyncio
import fcntl
import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import SinkContext
from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._process import JobProcess
from tidegate_sink_spark._protocol import Command, Gap, JobConfig, Kept, Mark, Ready, Report
from tidegate_sink_spark._sink import SparkSink
from tidegate_sink_spark._spark_engine import SparkEngine
from tidegate_sink_spark.job import run
from tidegate_sink_spark.job.driver import Addition
from tidegate_sink_spark.job.files import lock_path
from tidegate_sink_spark.job.parquet import ParquetTable
from tidegate_sink_spark.job.table import Shape, application_id

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

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
print(json.dumps({
    "own": [spark.read.format("delta").load(path + " of its own").count(),
            spark.sparkContext.appName, routed(), refused(), sliced()],
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
print(json.dumps({
    "evolved": evolved(),
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


def read_cold(jobs: Jobs, *further: Path) -> dict[str, Any]:
    """What a program of one's own sees, in a new process that never had the table open."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", COLD_DELTA if jobs.format == "delta" else COLD_ICEBERG),
            *(json.dumps(dict(jobs.spark.conf_of_reader(jobs.format))), str(jobs.table), APP_ID),
            *(str(path) for path in further),
        ],
        cwd=jobs.directory,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# A whole scenario takes minutes: its tests go to the same process of pytest-xdist, which has it once.
OF_DELTA = pytest.mark.xdist_group("scenario of delta")
OF_ICEBERG = pytest.mark.xdist_group("scenario of iceberg")
BOTH = [
    pytest.param("delta", marks=[pytest.mark.long, OF_DELTA]),
    pytest.param("iceberg", marks=[pytest.mark.long, OF_ICEBERG]),
]


@pytest.fixture(scope="module", params=BOTH)
def begun(request: pytest.FixtureRequest, scenarios: Any) -> Facts:
    """A scenario, of which commits, re-delivery and a gap come first."""
    return scenarios(request.param)


@pytest.fixture(scope="module")
def scenarios(
    tmp_path_factory: pytest.TempPathFactory, spark: Any, kit: Any
) -> Callable[[str], Facts]:
    """The whole scenario by table format; run once."""
    return functools.cache(
        lambda table_format: whole_scenario(
            Jobs(tmp_path_factory.mktemp("job"), spark, kit, table_format)
        )
    )


@pytest.fixture(scope="module", params=BOTH)
def facts(request: pytest.FixtureRequest, scenarios: Callable[[str], Facts]) -> Facts:
    return scenarios(request.param)


@pytest.fixture(scope="module")
def delta(scenarios: Callable[[str], Facts]) -> Facts:
    return scenarios("delta")


@pytest.fixture(scope="module")
def iceberg(scenarios: Callable[[str], Facts]) -> Facts:
    return scenarios("iceberg")


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


def test_each_round_is_one_commit_and_the_mark_is_read_back(begun: Facts) -> None:
    marks = [report for report in begun.steady if isinstance(report, Mark)]
    assert len(marks) == len(begun.steady) == begun.rounds + 1
    assert [mark.mark for mark in marks] == list(range(0, begun.rounds * 100 + 1, 100))
    assert [mark.version for mark in marks] == list(range(begun.rounds + 1))
    assert {(mark.rows, mark.files) for mark in marks[1:]} == {(100, 1)}


def test_redelivery_under_the_same_and_other_names_adds_nothing(begun: Facts) -> None:
    assert begun.after_redelivery.mark == begun.rounds * 100 + 200
    assert begun.after_redelivery.is_exact


def test_nothing_is_written_past_a_gap_until_it_is_filled(begun: Facts) -> None:
    mark = begun.rounds * 100 + 200
    assert begun.gap == Gap(mark + 1, mark + 101)
    assert begun.mark_at_gap == mark
    assert begun.after_gap.mark == mark + 400
    assert begun.after_gap.is_exact


def test_no_setting_stands_on_a_command_line(begun: Facts) -> None:
    assert any(b"--properties-file" in line for line in begun.command_lines)
    assert not any(SECRET.encode() in line for line in begun.command_lines)


def test_two_jobs_at_once_write_every_row_once(facts: Facts) -> None:
    assert facts.exit_codes == [0, 0]
    assert facts.end.mark == 3_000 + 5 * 700
    assert facts.end.is_exact


def test_after_more_than_25_commits_a_cold_reader_sees_every_row_once(facts: Facts) -> None:
    """Delta 4.1 and 4.2 break here: at the first checkpoint, which only a cold reader needs."""
    assert facts.end.is_exact
    assert len(facts.end.commits) > 25
    assert facts.cold["cold"] == {"counts": [6_500] * 4, "mark": 6_500}


def test_the_mark_survives_compaction_and_the_end_of_its_snapshot(facts: Facts) -> None:
    assert facts.cold["optimized"] == facts.cold["cold"]
    assert facts.cold.get("snapshots", 1) == 1


@pytest.mark.long
def test_upkeep_beside_the_commits_of_two_jobs_makes_few_files_of_many(facts: Facts) -> None:
    """What came before it is one file; what both jobs committed meanwhile is there, once."""
    (kept,) = facts.kept
    assert kept.problem == ""
    assert kept.files_removed > 20
    assert kept.files_added == 1
    assert facts.end.is_exact


@pytest.mark.long
def test_upkeep_deletes_what_kills_left_and_nothing_young(facts: Facts) -> None:
    removed, added, left, young = facts.cold["upkeep"]
    assert removed > added == 1
    assert (left, young) == (False, True)


@pytest.mark.long
def test_spark_proves_the_table_and_its_contents_before_and_after_a_compaction(
    facts: Facts,
) -> None:
    (before, files), (after, fewer) = facts.cold["proved"]
    assert before[:3] == [[], 6_500, 6_500]
    assert before == after
    assert files > fewer > 0


@OF_DELTA
@pytest.mark.long
def test_a_session_of_ones_own_writes_and_reads_delta_tables(delta: Facts) -> None:
    assert delta.cold["own"][:2] == [5, "reader-test"]


@OF_ICEBERG
@pytest.mark.long
def test_a_name_in_a_catalog_is_a_table_that_no_zombie_gets_into(iceberg: Facts) -> None:
    """In a Hadoop and in a JDBC catalog, without the lock that local tables have besides."""
    assert iceberg.cold["own"][:2] == [[100, 100, False, True]] * 2


@OF_ICEBERG
@pytest.mark.long
def test_an_iceberg_table_of_an_older_gateway_gets_the_columns_it_has_not(iceberg: Facts) -> None:
    assert iceberg.cold["evolved"] == [True, 100]


def test_rows_of_some_destinations_have_a_table_of_their_own(facts: Facts) -> None:
    """All rows of a commit go to the other table; the main one has the position, and none of them."""
    assert facts.cold["own"][2] == [100, 100, 0, 100]


@OF_DELTA
@pytest.mark.long
def test_partitions_are_compacted_one_slice_after_the_other(delta: Facts) -> None:
    assert delta.cold["own"][4] == [[[6, 3], [0, 0], [0, 0]], 3, 200, 200]


def test_a_commit_that_wrote_less_than_it_must_is_none(facts: Facts) -> None:
    """And Delta computes the same mark that the table's log was read for."""
    assert facts.cold["own"][3] == ["100 rows instead of 101", True, 100]


@OF_ICEBERG
@pytest.mark.long
def test_spark_reads_a_table_of_parquet_files(iceberg: Facts) -> None:
    assert iceberg.cold["parquet"] == [100, 100, 100, "2026-01-02"]


def test_spark_reads_the_values_that_were_acknowledged(facts: Facts) -> None:
    row = facts.cold["row"]
    assert row["acked_text"] == "2026-01-02T03:04:05.000015"
    assert row["ack_date"] == "2026-01-02"
    assert row["message_id"] == "store-1-70"
    assert row["headers"] == "{'kind': 'order', 'n': '7'}"
    assert row["body"] == '{"n": 7}'


def test_the_table_is_clustered_and_a_commit_says_what_it_holds(facts: Facts) -> None:
    columns = ["destination", "acked_at"] if facts.format == "delta" else [5, 14]
    assert facts.cold["clustering"] == columns
    last = facts.cold["last_commit"]
    assert last["gateway"] == "gw"
    assert last["hi"] == 6_500
    assert last["n"] == last["hi"] - last["lo"] + 1


COMMIT_FILES = {
    "delta": "_delta_log/*.json",
    "iceberg": "metadata/v*.metadata.json",
}


class Outside:
    """What of a table is seen in its directory."""

    def __init__(self, table: Path, table_format: str) -> None:
        self._table = table
        self._commits = COMMIT_FILES[table_format]

    def commits(self) -> int:
        return len(list(self._table.glob(self._commits)))

    def data_files(self) -> int:
        return len(list(self._table.rglob("*.parquet")))


@pytest.mark.crash  # of kills, test_sink_kill.py is the one that takes less
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
async def test_killed_jobs_and_lost_local_state_leave_every_row_once(
    tmp_path: Path, spark: Any, kit: Any, table_format: str
) -> None:
    log = kit.MemoryLog()
    directory, table = tmp_path / "sink", tmp_path / "lake" / "table"
    options = SparkSinkOptions(
        table=str(table),
        format=table_format,
        layout="partitioned",
        commit_interval=0.1,
        segment_rows=1_000,
        segment_interval=0.05,
        drain_on_stop=False,
        spark_conf=dict(spark.SHORT_JOB),
    )

    def make() -> SparkSink:
        directory.mkdir(exist_ok=True)
        context = SinkContext("lake", "gw", directory)
        return SparkSink(context, options, SparkEngine(context, options), restart_delay=0.05)

    def check() -> None:
        """What is in the table at this very moment is the log up to the mark, each row once."""
        contents = kit.READERS[table_format](table, APP_ID)
        assert contents.is_exact
        assert log.released <= contents.mark

    async def kill() -> None:
        sink = make()
        await sink.start(log)
        outside = Outside(table, table_format)
        try:
            await kit.until(lambda: outside.commits() == 1, 240)  # the table is there, and empty
            for _ in range(4):
                before = outside.commits()
                log.grow(2_500)
                await kit.kill_job(sink, lambda before=before: outside.commits() > before)
                check()
            files = outside.data_files()
            log.grow(2_500)
            await kit.kill_job(sink, lambda: outside.data_files() > files)  # before its commit
            check()
        finally:
            await sink.stop()

    async def lose_everything() -> None:
        shutil.rmtree(directory)
        log.grow(3_000)
        log.released = max(0, log.released - 700)  # the store had not heard of the last release
        sink = make()
        await sink.start(log)
        try:
            await kit.until(lambda: log.released == log.last, 240)
        finally:
            await sink.stop()

    await kill()
    await lose_everything()
    contents = kit.READERS[table_format](table, APP_ID)
    assert contents.mark == log.last == 5 * 2_500 + 3_000
    assert contents.is_exact
    assert kit.staged_names(directory / "staging") == []
    data = table if table_format == "delta" else table / "data"
    assert (data / "ack_date=2026-01-02").is_dir()


def java_of(job_pid: int) -> int:
    """The Java process of a job, 0 when there is none."""
    for entry in Path("/proc").iterdir():
        try:
            is_ours = entry.name.isdigit() and os.getpgid(int(entry.name)) == job_pid
            if is_ours and (entry / "comm").read_text().strip() == "java":
                return int(entry.name)
        except OSError:
            continue  # it ended meanwhile
    return 0


@pytest.mark.crash
async def test_java_alone_is_killed_and_the_sink_comes_back(
    tmp_path: Path, spark: Any, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Python outlives it, and sees a connection that ends: in a commit, and in none."""
    caplog.set_level(logging.INFO, "tidegate_sink_spark")
    log, table = kit.MemoryLog(), tmp_path / "lake" / "table"
    options = SparkSinkOptions(
        table=str(table),
        layout="plain",
        commit_interval=0.1,
        segment_rows=1_000,
        segment_interval=0.05,
        drain_on_stop=False,
        spark_conf=dict(spark.SHORT_JOB),
    )
    directory = tmp_path / "sink"
    directory.mkdir()
    context = SinkContext("lake", "gw", directory)
    sink = SparkSink(context, options, SparkEngine(context, options), restart_delay=0.05)
    outside = Outside(table, "delta")

    def kill_java() -> None:
        java = java_of(sink.job_pid)
        assert java, "there is one while the job says how far it is"
        os.kill(java, signal.SIGKILL)

    async def comes_back(killed: int) -> None:
        """One more problem was told, in one line with what to do, and everything is in the table."""
        await kit.until(lambda: len(sink.health().problems) >= killed, 240)
        await kit.until(lambda: log.released == log.last and sink.health().problem == "", 240)
        contents = kit.READERS["delta"](table, APP_ID)
        assert contents.is_exact
        assert contents.mark == log.last

    await sink.start(log)
    try:
        log.grow(10)
        await kit.until(lambda: log.released == 10, 240)
        assert (sink.health().target_files, sink.health().dead_rows) == (1, 0)
        kill_java()  # it does nothing just now
        log.grow(2_500)
        await comes_back(1)
        files = outside.data_files()
        log.grow(2_500)
        async with asyncio.timeout(240):
            while outside.data_files() == files:
                await asyncio.sleep(0.0005)
        kill_java()  # it is about to commit, or just has
        log.grow(10)
        await comes_back(2)
    finally:
        await sink.stop()
    told = {problem.text for problem in sink.health().problems}
    assert all("Java machine ended" in text and "driver_memory" in text for text in told), told
    assert not any("\n" in record.getMessage() or record.exc_info for record in caplog.records)


def test_a_job_without_a_gateway_kills_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule alone, without Java: its stdin ends, and the whole group goes."""
    done: list[str] = []

    def killed(group: int, number: int) -> None:
        done.append(f"killpg {number}")
        raise SystemExit

    monkeypatch.setattr(run.os, "getpgrp", os.getpid)
    monkeypatch.setattr(run.os, "killpg", killed)
    with (tmp_path / "stdin").open("w+b") as stdin, pytest.raises(SystemExit):
        run._follow_stdin(stdin, run.queue.SimpleQueue())
    assert done == [f"killpg {signal.SIGKILL}"]


@pytest.mark.parametrize(
    "table_format",
    [
        pytest.param("delta", marks=pytest.mark.crash),
        pytest.param("iceberg", marks=pytest.mark.crash),
        pytest.param("parquet", marks=pytest.mark.long),
    ],
)
def test_dead_letters_survive_a_job_that_dies_between_the_two_commits(
    tmp_path: Path, spark: Any, kit: Any, table_format: str
) -> None:
    jobs = Jobs(tmp_path, spark, kit, table_format)
    letters = jobs.table.with_name("table_dlq")

    def contents() -> tuple[list[int], list[int]]:
        return jobs.contents().sequences, kit.READERS[table_format](letters, APP_ID).sequences

    async def main() -> None:
        kit.stage_dead(jobs.staging, 1, 10, [3, 7])
        kit.stage_dead(jobs.staging, 11, 12, [11, 12])
        first = await jobs.start("one")
        try:
            await until_mark(first, 12)
            assert tuple(map(sorted, contents())) == ([1, 2, 4, 5, 6, 8, 9, 10], [3, 7, 11, 12])
            is_java = table_format != "parquet"
            with (lock_path(jobs.table) if is_java else jobs.table / "_tidegate/lock").open(
                "r+"
            ) as lock:
                # The table waits, its dead letters do not.
                (fcntl.lockf if is_java else fcntl.flock)(lock, fcntl.LOCK_EX)
                kit.stage_dead(jobs.staging, 13, 20, [14])
                first.send(Command.COMMIT)
                await kit.until(lambda: 14 in contents()[1], 120)
                await first.end()
        finally:
            await first.end()
        for path in jobs.staging.iterdir():
            path.unlink()
        kit.stage_dead(jobs.staging, 13, 20, [15])  # 14 can be read again, and 15 cannot
        second = await jobs.start("two")
        try:
            await until_mark(second, 20)
        finally:
            await second.end()

    asyncio.run(main())
    rows, dead = contents()
    assert sorted(dead) == [3, 7, 11, 12, 14, 15]
    assert sorted(rows + dead) == list(range(1, 21))
