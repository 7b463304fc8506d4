"""The benchmark of retained messages: its arithmetic, and one small measurement from end to end."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

retained = importlib.import_module("benchkit.instead.retained")
brokers = importlib.import_module("benchkit.brokers")
process = importlib.import_module("benchkit.process")
bench = importlib.import_module("bench")
modes = importlib.import_module("benchkit.instead.modes")

REPORT = {
    "published": 1000,
    "publish_seconds": 0.5,
    "first_seconds": [0.001, 0.003, 0.002],
    "subscribe_seconds": [0.2, 0.1, 0.4],
    "generator_cpu_s": 0.1,
}


def test_the_line_has_every_figure() -> None:
    run = retained.run_from_report("tidegate", "mqtt5", 1000, REPORT, 2_048_000)
    line = run.line()
    for part in (
        "tidegate mqtt5 retained",
        "1,000 published at 2,000/s",
        "first after 2.0 ms",
        "all after 0.200 s (0.100..0.400), 5,000/s",
        "2.00 KiB",
    ):
        assert part in line


def test_a_failure_has_its_reason_and_no_figures() -> None:
    found = REPORT | {"error": "subscription 1: 9 of 10 retained messages came"}
    run = retained.run_from_report("artemis", "mqtt", 10, found, 0)
    assert run.line() == (
        "artemis mqtt retained: failed: subscription 1: 9 of 10 retained messages came"
    )
    assert run.all_s == ()


@pytest.mark.parametrize("arguments", [["--retained", "0"], ["--retained", "5", "--idle", "5"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.parse_arguments(arguments)
    assert caught.value.code == 2


def test_a_broker_without_wildcards_for_retained_messages_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(modes, "run_each", lambda targets, *_: asked.extend(targets) or [])
    targets = [brokers.Target(brokers.BROKERS[name]) for name in ("tidegate", "rabbitmq")]
    modes.run_retained(targets, bench.parse_arguments(["--retained", "5"]))
    assert [target.spec.name for target in asked] == ["tidegate"]


@pytest.mark.skipif(shutil.which("go") is None, reason="the load generator needs Go")
@pytest.mark.parametrize("protocol", ["mqtt", "mqtt5"])
def test_a_measurement_publishes_and_waits_for_all(tmp_path: Path, protocol: str) -> None:
    bench.build_load_generator()
    port = free_port()
    config = tmp_path / "bench.toml"
    config.write_text(brokers.tidegate_config(tmp_path / "data", {"mqtt": port}))
    address = brokers.Address("127.0.0.1", port)
    command = [sys.executable, "-m", "tidegate", "run", "--config", str(config)]
    with process.running(command, tmp_path / "log", [address]) as broker:
        found = retained.measure("tidegate", broker, address, protocol, 2_500, subscribes=2)
    assert found.error == ""
    assert len(found.all_s) == 2
    assert all(0 < first <= last for first, last in zip(found.first_s, found.all_s, strict=True))
    assert found.publish_s > 0
