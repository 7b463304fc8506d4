"""The real job: PySpark, Java, and a Delta or Iceberg table on disk.

What is asserted is counted by conftest's readers, which are neither Spark nor Java, and once by a new
Spark process that opens the table cold.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from job_scenario import BOTH, OF_DELTA, OF_ICEBERG, SECRET, Facts, Jobs, whole_scenario

from tidegate_sink_spark._protocol import Gap, Mark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


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


@OF_ICEBERG
@pytest.mark.long
def test_upkeep_of_a_table_that_has_no_row_yet_has_nothing_to_do(iceberg: Facts) -> None:
    assert iceberg.cold["unwritten"] == [0, 0]


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


@OF_DELTA
def test_a_staged_file_is_the_tables_own_until_the_table_asks_for_more_than_rows(
    delta: Facts,
) -> None:
    """The history counts what was written either way."""
    assert delta.cold["own"][5] == [[1, 1, "1", "100"], [2, 1, "1", "100"], 200, 200]


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
