"""Directories of Spark beside the gateway: removed with their process, or when it has been killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate_sink_spark.java.scratch import PREFIX, remove_abandoned

MAKE = """
import sys
from tidegate_sink_spark.java.scratch import make_scratch_directory
directory = make_scratch_directory()
(directory / "blockmgr").mkdir()
(directory / "blockmgr" / "shuffle").write_bytes(bytes(1000))
print(directory, flush=True)
sys.stdin.readline()
"""


def start(temporary: Path, program: str = MAKE) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=60)
    return process.returncode


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def test_those_of_the_dead_go_with_the_next_start_and_those_of_the_living_stay(
    tmp_path: Path,
) -> None:
    first, of_first = start(tmp_path)
    second, of_second = start(tmp_path)
    assert of_first != of_second
    assert (of_first.stat().st_mode & 0o777, of_first.parent) == (0o700, tmp_path)
    kill(first)
    third, of_third = start(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {of_second.name, of_third.name}
    assert (of_second / "blockmgr" / "shuffle").exists()
    assert (end(second), end(third)) == (0, 0)
    assert list(tmp_path.iterdir()) == [], "who ends takes its own along"


def test_a_child_neither_keeps_the_directory_of_a_dead_process_nor_takes_it(tmp_path: Path) -> None:
    """Java is a child, and may outlive what started it by some seconds; a fork ends like any process."""
    child = "import time; time.sleep(600)"
    program = MAKE.replace(
        "print(",
        f"""import os, subprocess
if os.fork() == 0:
    sys.exit(0)
os.wait()
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.DEVNULL)
(directory / "pid").write_text(str(child.pid))
print(""",
    )
    process, directory = start(tmp_path, program)
    pid = int((directory / "pid").read_text())
    try:
        remove_abandoned(tmp_path)
        assert directory.exists()
        kill(process)
        remove_abandoned(tmp_path)
        assert not directory.exists()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_what_was_half_removed_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}a" / "java").mkdir(parents=True)
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / ".tidegate-spark-young").mkdir()  # its process has not locked it yet
    before = sorted(tmp_path.rglob("*"))
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / f"{PREFIX}another").mkdir()
    us: Any = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    remove_abandoned(tmp_path)
    assert (tmp_path / f"{PREFIX}another").is_dir(), "another user's"
