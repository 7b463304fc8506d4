"""The bench that a sink is tried on."""

from pathlib import Path
from typing import Any

import pytest
from sink_bench import Bench

from tidegate_sink_spark.java import runtime
from tidegate_sink_spark.java.runtime import JavaRuntime


@pytest.fixture
def bench(tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(runtime, "find_java", lambda *_: JavaRuntime(Path("/no/jdk"), 17, "a test"))
    return Bench(tmp_path, kit)
