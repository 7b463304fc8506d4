"""The benchmark of slow consumers: its goals, and one small measurement from end to end."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

slow = importlib.import_module("benchkit.instead.slow")
modes = importlib.import_module("benchkit.instead.modes")
choice = importlib.import_module("benchkit.choice")
bench = importlib.import_module("bench")


def test_a_run_says_every_round_and_what_became_of_the_goal() -> None:
    run = slow.SlowRun(
        "tidegate",
        "durable",
        "us a publish",
        [20.0, 21.0],
        [2020.0, 3021.0],
        21.0,
        900.0,
        2.5,
        "at most 3",
        True,
    )
    assert "20 -> 2,020  21 -> 3,021 us a publish: 2.50; goal reached: at most 3" in run.line()
    assert run.line().endswith("CPU a message 21.0 -> 900.0 us")
    many = dataclasses.replace(run, without=[1.0, 2.0, 3.0] * 2, beside=[4.0, 5.0, 6.0] * 2)
    assert "durable         2 -> 5 us a publish" in many.line()
    assert slow.SlowRun("artemis", "stopped", error="refused").line().endswith("failed: refused")


def test_a_measurement_that_there_is_not_is_refused() -> None:
    with pytest.raises(choice.SetupError, match="no measurement x; there are durable, stopped"):
        modes.run_slow([], bench.parse_arguments(["--slow", "--only", "x"]))


def test_it_is_not_measured_together_with_something_else() -> None:
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--slow", "--hostile"])


@pytest.mark.long
def test_every_measurement_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = ["--slow", "--peers", "none", "--duration", "0.3", "--rounds", "1"]
    assert bench.main([*command, "--work", str(tmp_path), "--json", str(path)]) == 0
    runs = json.loads(path.read_text())["slow"]
    assert [(run["name"], run["error"]) for run in runs] == [
        (name, "") for name in slow.MEASUREMENTS
    ]
    assert all(run["without"][0] > 0 and run["beside"][0] > 0 for run in runs)
