"""The idle benchmark's arithmetic, and one small measurement from end to end."""

import importlib
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

idle = importlib.import_module("benchkit.instead.idle")
brokers = importlib.import_module("benchkit.brokers")
process = importlib.import_module("benchkit.process")
bench = importlib.import_module("bench")


def run(**more: Any) -> Any:
    fields: dict[str, Any] = {
        "broker": "tidegate", "protocol": "stomp", "wanted": 10_000, "opened": 10_000,
        "survived": 9_999, "bytes_each": 5632.0, "cpu_percent": 6.25, "connects_per_s": 1881.0,
        "heart_beat_s": 10.0, "hold_s": 30.0,
    }  # fmt: skip
    return idle.IdleRun(**(fields | more))


@pytest.mark.parametrize(
    ("hard", "count"),
    [(resource.RLIM_INFINITY, 10_000), (10_300, 10_000), (10_299, 9_999), (100, 1)],
)
def test_the_limit_on_open_files_bounds_the_connections_and_is_named(
    monkeypatch: pytest.MonkeyPatch, hard: int, count: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, hard))
    possible, reason = idle.possible(10_000)
    assert possible == count
    assert (reason == "") == (count == 10_000)
    assert not reason or f"{hard:,}" in reason


def test_memory_and_files_are_those_of_all_processes_that_still_run(tmp_path: Path) -> None:
    for pid, pages, files in ((7, 10, 3), (8, 5, 2)):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "statm").write_text(f"900 {pages} 3 4 0 6 0\n")
        for number in range(files):
            (tmp_path / str(pid) / "fd" / str(number)).touch()
    assert idle.resident_bytes([7, 8, 9], tmp_path) == 15 * os.sysconf("SC_PAGE_SIZE")
    assert idle.open_files([7, 8, 9], tmp_path) == 5


def test_the_line_has_every_figure() -> None:
    line = run(limited="20,000 wanted").line()
    for part in (
        "10,000 connections",
        "1,881/s",
        "9,999 alive",
        "5.5 KiB",
        "6.2 %",
        "20,000 wanted",
    ):
        assert part in line
    assert run(error="refused").line() == "tidegate stomp idle: failed: refused"


@pytest.mark.parametrize("arguments", [["--idle", "0"], ["--idle", "5", "--idle-hold", "0"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.parse_arguments(arguments)
    assert caught.value.code == 2


@pytest.mark.long
@pytest.mark.skipif(shutil.which("go") is None, reason="the load generator needs Go")
def test_a_measurement_opens_holds_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.build_load_generator()
    monkeypatch.setattr(idle, "_EDGE_SECONDS", 0.2)
    port = free_port()
    config = tmp_path / "bench.toml"
    config.write_text(brokers.tidegate_config(tmp_path / "data", {"stomp": port}))
    address = brokers.Address("127.0.0.1", port)
    command = [sys.executable, "-m", "tidegate", "run", "--config", str(config)]
    with process.running(command, tmp_path / "log", [address]) as broker:
        found = idle.measure(
            "tidegate", broker, address, "stomp", 30, hold_s=2.0, heart_beat_s=20.0
        )
    assert found.error == ""
    assert (found.opened, found.survived) == (30, 30)
    assert 0 <= found.cpu_percent < 100  # two seconds of little work may be below a clock tick
    assert found.connects_per_s > 0
