"""The benchmark of a gateway that is watched: its arithmetic, and one small run from end to end."""

import importlib
import json
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts there are no distribution

watched = importlib.import_module("benchkit.instead.watched")
modes = importlib.import_module("benchkit.instead.modes")
choice = importlib.import_module("benchkit.choice")
bench = importlib.import_module("bench")


def test_an_interval_has_the_ratio_of_the_medians_and_is_wider_the_more_windows_differ() -> None:
    calm = watched.interval([10.0, 10.1, 9.9] * 10, [11.0, 11.1, 10.9] * 10)
    assert calm == watched.interval([10.0, 10.1, 9.9] * 10, [11.0, 11.1, 10.9] * 10)
    assert 1.07 < calm[0] <= 1.1 <= calm[1] < 1.13
    noisy = watched.interval([5.0, 10.0, 20.0] * 10, [6.0, 11.0, 19.0] * 10)
    assert noisy[1] - noisy[0] > 5 * (calm[1] - calm[0])


def test_windows_with_and_without_are_in_turn_and_each_comes_first_as_often() -> None:
    class Watcher:
        is_watching = False

        def watching(self) -> "Watcher":
            return self

        def __enter__(self) -> None:
            self.is_watching = True

        def __exit__(self, *_: object) -> None:
            self.is_watching = False

    class Broker:
        seconds = 0.0

        def cpu_seconds(self) -> float:
            self.seconds += 1
            return self.seconds

    seen: list[bool] = []
    watcher = Watcher()

    def window() -> tuple[float, int]:
        seen.append(watcher.is_watching)
        return (3.0, 500_000) if watcher.is_watching else (2.0, 1_000_000)

    run = watched.in_turn(watched.Bench(Broker(), (0, 0, 0), watcher, 1.0, 4), "x", "ms", window)
    assert seen[1:] == [False, True, True, False, False, True, True, False]
    assert (run.without, run.beside, run.result) == ([2.0] * 4, [3.0] * 4, 1.5)
    assert (run.low, run.high, run.cpu_us, run.cpu_beside_us) == (1.5, 1.5, 1.0, 2.0)
    assert "2.00 -> 3.00 ms: 1.500 (1.500 to 1.500, 4 windows each); goal missed" in run.line()


def test_a_message_that_comes_in_pieces_is_timed_once_and_acknowledged() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = watched.Client(ours, b"watched/0")
        client.publish(12.5)
        sent = theirs.recv(1000)
        theirs.sendall(b"\x40\x02\0\1" + sent[:5])  # its PUBACK, and the beginning of the message
        assert client.received() == []
        theirs.sendall(sent[5:])
        assert client.received() == [12.5]
        assert theirs.recv(1000) == b"\x40\x02\0\1"


def test_a_measurement_that_there_is_not_is_refused() -> None:
    with pytest.raises(choice.SetupError, match="no measurement x; there are latency, throughput"):
        modes.run_watched([], bench.parse_arguments(["--watched", "5", "--only", "x"]))


def test_it_is_not_measured_together_with_something_else() -> None:
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--watched", "5", "--hostile"])
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--watched", "0"])


@pytest.mark.long
def test_every_measurement_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = ["--watched", "20", "--duration", "0.3", "--rounds", "1"]
    assert bench.main([*command, "--work", str(tmp_path), "--json", str(path)]) == 0
    runs = json.loads(path.read_text())["watched"]
    assert [(run["name"], run["error"]) for run in runs] == [
        (name, "") for name in watched.MEASUREMENTS
    ]
    assert all(min(run["beside"]) > 0 for run in runs)
