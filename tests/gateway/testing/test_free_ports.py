"""Two runs of the tests at once do not get each other's ports, also those that nobody listens on yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from free_ports import free_port

SUPPORT = Path(__file__).resolve().parents[2] / "_support" / "processes"


def test_a_port_is_given_to_one_process_only() -> None:
    mine = {free_port() for _ in range(5)}
    assert len(mine) == 5
    code = "import free_ports; print(*[free_ports.free_port() for _ in range(500)])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SUPPORT, capture_output=True, text=True, check=True
    )
    theirs = {int(port) for port in done.stdout.split()}
    assert len(theirs) > 400
    assert not mine & theirs
