"""The benchmark of hostile clients: its arithmetic, and one small measurement from end to end."""

import importlib
import json
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

hostile = importlib.import_module("benchkit.instead.hostile")
modes = importlib.import_module("benchkit.instead.modes")
choice = importlib.import_module("benchkit.choice")
attacks = importlib.import_module("benchkit.instead.attacks")
bench = importlib.import_module("bench")


def test_a_run_says_what_it_missed() -> None:
    good = hostile.run_from_times("a", [0.001] * 299 + [0.2])
    assert (good.count, good.p50, good.p99, good.worst) == (300, 1.0, 1.0, 200.0)
    assert good.reached
    assert good.line().endswith("(300 round trips)")
    slow = hostile.run_from_times("a", [0.001] * 299 + [0.3])
    assert not slow.reached
    assert slow.line().endswith("missed")
    assert not hostile.HostileRun("a", error="timed out").reached


def test_an_attack_that_there_is_not_is_refused() -> None:
    with pytest.raises(choice.SetupError, match="no attack x; there are nobody, mqtt-pings"):
        modes.run_hostile([], bench.parse_arguments(["--hostile", "--only", "x"]))


def test_it_is_not_measured_together_with_something_else() -> None:
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--hostile", "--idle", "5"])


def test_an_attacker_that_goes_is_gone() -> None:
    """Its own thread reads all the while: closing alone would leave the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        client = attacks.Client(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            connection.sendall(b"x")
            client.leave()
            assert connection.recv(1) == b""


@pytest.mark.long
def test_one_attack_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = ["--hostile", "--only", "mqtt-same-filter", "--duration", "0.2"]
    assert bench.main([*command, "--work", str(tmp_path), "--json", str(path)]) == 0
    (run,) = json.loads(path.read_text())["hostile"]
    assert run["error"] == ""
    assert run["count"] > 0
