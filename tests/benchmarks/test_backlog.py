"""The benchmark of pending messages: its goals, and one small measurement from end to end."""

import importlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

backlog = importlib.import_module("benchkit.instead.backlog")
brokers = importlib.import_module("benchkit.brokers")
process = importlib.import_module("benchkit.process")
bench = importlib.import_module("bench")

RUN = backlog.BacklogRun(
    "tidegate",
    5_000_000,
    1,
    live_rate=50_000.0,
    publish_rate=60_000.0,
    published_now=200_000_000,
    published_peak=210_000_000,
    empty_s=0.4,
    accepts_s=(0.7, 0.5),
    first_s=2.6,
    drain_rate=75_000.0,
    drained_peak=290_000_000,
    cpu={"start": 1.94},
)


def test_the_line_has_every_figure() -> None:
    line = RUN.line()
    for part in (
        "tidegate 5,000,000 pending in 1 queues",
        "published at 60,000/s, 1.20 of the live 50,000/s",
        "memory 200 MB then, at most 210 MB, and 290 MB while it drains",
        "SIGKILL, accepts after 0.50 s (the best of 0.70 0.50; 1.9 s CPU; an empty one 0.40 s), first message after 2.60 s",
        "drained at 75,000/s, 1.50 of the live; 0 faults",
    ):
        assert part in line


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"published_peak": 300_000_000}, ["memory 300 MB < 300 MB"]),
        ({"drained_peak": 301_000_000}, ["memory 301 MB < 300 MB"]),
        ({"accepts_s": (1.2, 1.01)}, ["accepts 1.01 s <= 1 s"]),
        ({"first_s": 4.5}, ["first message 4.50 s <= 4 s"]),
        ({"publish_rate": 44_000.0}, ["published at 0.88 >= 0.9 of live"]),
        ({"drain_rate": 34_000.0}, ["drain 0.68 >= 1.0 of live"]),
        ({"faults": 2}, ["2 faults"]),
    ],
)
def test_each_goal_can_be_missed(change: dict[str, object], missed: list[str]) -> None:
    goals = replace(RUN, **change).goals()
    assert len(goals) == 6
    assert [text for reached, text in goals if not reached] == missed


def test_a_broker_that_was_not_killed_says_nothing_of_a_start() -> None:
    line = replace(RUN, broker="artemis", accepts_s=()).line()
    assert "SIGKILL" not in line
    assert "drained at 75,000/s" in line


def test_a_failure_has_its_reason_and_neither_figures_nor_goals() -> None:
    run = backlog.BacklogRun("tidegate", 1000, 7, error="no message came")
    assert run.line() == "tidegate 1,000 pending in 7 queues: failed: no message came"
    assert run.goals() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pending", "999"],
        ["--pending", "5000", "--idle", "5"],
        ["--pending", "5000", "--only", "stomp-1x1"],
        ["--pending", "5000", "--pending-queues", "0"],
        ["--pending", "5000", "--pending-starts", "0"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.parse_arguments(arguments)
    assert caught.value.code == 2


def test_memory_is_read_from_the_status_file() -> None:
    status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t1\n"
    assert process.memory_of(status) == process.Memory(1 << 20, 2 << 20)
    assert process.memory_of("Name:\tzombie\n") == process.Memory(0, 0)


@pytest.fixture(scope="module")
def loadgen() -> None:
    if shutil.which("go") is None:
        pytest.fail("the load generator needs Go")
    bench.build_load_generator()


@pytest.mark.usefixtures("loadgen")
@pytest.mark.parametrize(("queues", "starts"), [(1, 3), (3, 1)])
@pytest.mark.long
def test_a_killed_gateway_gives_every_message_of_its_backlog_once(
    tmp_path: Path, queues: int, starts: int
) -> None:
    port = free_port()
    config = tmp_path / "bench.toml"
    config.write_text(brokers.tidegate_config(tmp_path / "data", {"stomp": port}))
    command = [sys.executable, "-m", "tidegate", "run", "--config", str(config)]
    address = brokers.Address("127.0.0.1", port)
    run = backlog.measure(
        "tidegate",
        command,
        tmp_path / "log",
        address,
        3000,
        queues,
        live_seconds=0.4,
        starts=starts,
    )
    assert (run.error, run.faults) == ("", 0)
    assert run.live_rate > 0
    assert run.drain_rate > 0
    assert len(run.accepts_s) == starts
    assert 0 < run.accept_s <= run.accepts_s[-1] <= run.first_s
    assert run.empty_s > 0
    assert run.memory_peak > 10_000_000
