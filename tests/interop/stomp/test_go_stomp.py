"""go-stomp against the running gateway: every version, mode, transactions and heart-beats.

Needs Go; without it the tests are skipped with the reason, which `.ci/run` counts as a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from built import building, put

pytestmark = [
    pytest.mark.interop,
    pytest.mark.long,  # compiled for half a minute
    pytest.mark.skipif(
        shutil.which("go") is None, reason="go-stomp needs Go, and go is not on PATH"
    ),
]
SOURCE = Path(__file__).parent / "go_stomp"
BUILD = Path(__file__).resolve().parents[3] / "build" / "go_stomp"
RUN_TIMEOUT_S = 240.0
SCENARIOS = [
    "auto", "client", "individual", "nack", "transaction", "heartbeat", "headers", "error",
]  # fmt: skip


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled client. Built in a copy: Go writes a go.sum, and no lock file is kept here."""
    with building(BUILD):
        for name in ("go.mod", "main.go"):
            shutil.copyfile(SOURCE / name, BUILD / name)
        done = subprocess.run(
            ["go", "build", "-o", "made", "."],
            cwd=BUILD,
            env=os.environ
            | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod -buildvcs=false", "GOWORK": "off"},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, f"building the client failed:\n{done.stderr}"
        return put(BUILD / "made", BUILD / "go_stomp")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_go_stomp(gateway, program, version, scenario) -> None:
    done = subprocess.run(
        [str(program), f"127.0.0.1:{gateway.stomp_port}", version, scenario],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
