"""create_session: what a data engineer's own program starts beside the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from tidegate_sink_spark import create_session
spark = create_session("reader-test")
spark.range(5).write.format("delta").save(sys.argv[1])
rows = spark.read.format("delta").load(sys.argv[1])
print("FOUND", json.dumps([rows.count(), spark.sparkContext.appName]))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_session_writes_and_reads_delta_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "table")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    assert json.loads(line.removeprefix("FOUND ")) == [5, "reader-test"]
