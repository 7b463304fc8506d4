"""The benchmark in lock step: bursts go through, and each gateway is measured by itself."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

lockstep = importlib.import_module("lockstep")
slow = importlib.import_module("benchkit.instead.slow")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lockstep.py", *arguments])
    return lockstep.main()


@pytest.mark.long
def test_bursts_of_every_load_go_through_two_gateways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lockstep, "_WARM_UP", 1)
    monkeypatch.setattr(slow, "_UNACKNOWLEDGED", 100)
    more = ("--acl", "--unacknowledged", "--bursts", "2")
    assert run(monkeypatch, str(ROOT), str(ROOT), *more) == 0
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [row[1].strip() for row in rows] == [load for load in lockstep.LOADS for _ in "12"]
    assert all(float(row[3]) > 0 for row in rows)
    assert all(row[4].strip() == "1.00" for row in rows[::2])


def test_of_the_bursts_the_quickest_twentieth_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other programs cost shows in the slow ones alone."""

    class Fake:
        count = lockstep._MESSAGES

        def burst(self) -> None: ...

    asked = spent = 0

    def loop_seconds(gateway: object) -> float:
        nonlocal asked, spent
        asked += 1
        spent += 1 if asked % 3 else 1000
        return spent

    monkeypatch.setattr(lockstep, "loop_seconds", loop_seconds)
    monkeypatch.setattr(lockstep, "_PAUSE_SECONDS", 0)
    costs = lockstep.measure(["a", "b"], [Fake(), Fake()], 40)
    assert costs == [pytest.approx(1e6 / lockstep._MESSAGES)] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((str(ROOT), "--only", "mqtt5"), "the loads are stomp, qos1, qos0, one"), ((), "trees")],
)
def test_a_wrong_command_line_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    text: str,
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments)
    assert text in capsys.readouterr().err


def test_a_tree_without_a_gateway_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, str(tmp_path)) == 1
    assert "a gateway did not start" in capsys.readouterr().out
