"""The benchmark of the sink: its goals, and one small run from end to end."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

modes = importlib.import_module("benchkit.instead.modes")
choice = importlib.import_module("benchkit.choice")
pipeline = importlib.import_module("benchkit.sink.pipeline")
gateways = importlib.import_module("benchkit.sink.gateways")
figures = importlib.import_module("benchkit.sink.figures")
bench = importlib.import_module("bench")


def figure(**more: Any) -> Any:
    fields: dict[str, Any] = {
        "part": "lag",
        "name": "spark",
        "value": 2.5,
        "unit": "s",
        "load": 4.0,
    }
    return figures.Figure(**(fields | more))


@pytest.mark.parametrize(
    ("goal", "reached", "said"),
    [
        ({}, True, "2.5 s (load 4)"),
        ({"most": 3.0}, True, "2.5 s; goal reached: at most 3 (load 4)"),
        ({"most": 2.0}, False, "2.5 s; goal missed: at most 2 (load 4)"),
        ({"least": 2.5, "detail": "more"}, True, "goal reached: at least 2.5; more (load 4)"),
        ({"least": 3.0}, False, "goal missed: at least 3"),
        ({"error": "no Java"}, False, "failed: no Java"),
    ],
)
def test_a_figure_says_its_goal_and_whether_it_is_reached(
    goal: dict[str, Any], reached: bool, said: str
) -> None:
    made = figure(**goal)
    assert (made.reached, said in made.line()) == (reached, True), made.line()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--only", "no part x; there are staging, delta"),
        ("--engines", "no engine x; there are spark"),
    ],
)
def test_a_part_or_an_engine_that_there_is_not_is_refused(option: str, text: str) -> None:
    with pytest.raises(choice.SetupError, match=text):
        modes.run_sink([], bench.parse_arguments(["--sink", option, "x"]))


def test_it_is_not_measured_together_with_something_else() -> None:
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--sink", "--slow"])


def test_a_day_of_files_is_those_since_the_last_compaction_and_what_was_compacted() -> None:
    kept = pipeline.Kept(5_000, 10.0, 100_000, 20, 25, 6_000_000, 2, 5_000_000, 1.0)
    assert kept.a_day_without == 2 * 86_400
    assert kept.a_day(1 << 20, 60) == 5_000 * 86_400 * 50 / (1 << 20) + 2 + 2 * 60


def test_the_files_of_an_iceberg_table_are_those_of_its_newest_snapshot(tmp_path: Path) -> None:
    assert pipeline.live_files(tmp_path) == (0, 0)
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    old = {"snapshot-id": 1, "summary": {"total-data-files": "9", "total-files-size": "90"}}
    new = {"snapshot-id": 2, "summary": {"total-data-files": "2", "total-files-size": "80"}}
    for current, found in ((None, (0, 0)), (2, (2, 80))):
        text = json.dumps({"current-snapshot-id": current, "snapshots": [old, new]})
        (metadata / "v3.metadata.json").write_text(text)
        (metadata / "version-hint.text").write_text("3")
        assert pipeline.live_files(tmp_path) == found


def test_the_sink_of_a_gateway_is_written_with_units() -> None:
    text = gateways.sink_table("deltalake", Path("/t"), staging_max="1mb")
    assert 'engine = "deltalake"' in text
    assert 'commit_interval = "5000ms"' in text
    assert 'lag_goal = "800ms"' in text
    assert 'staging_max = "1mb"' in text


@pytest.mark.long
def test_every_part_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = ["--sink", "--engines", "deltalake", "--duration", "0.5", "--rounds", "1"]
    command += ["--messages", "2000", "--idle-hold", "1", "--work", str(tmp_path)]
    command += ["--only", "staging,start,lag,files,messaging,log,idle,replay"]
    assert bench.main([*command, "--json", str(path)]) == 0
    found = json.loads(path.read_text())["sink"]
    assert [each for each in found if each["error"]] == []
    assert len({each["part"] for each in found}) == 8
    assert all(each["value"] > 0 for each in found if each["part"] not in {"idle", "log"})
