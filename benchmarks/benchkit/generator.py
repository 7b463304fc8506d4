"""The load generator: built, and run for its report."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from benchkit.brokers import BENCHMARKS
from benchkit.choice import SetupError

LOADGEN: Final = BENCHMARKS / "bin" / "loadgen"
#: It ends by itself at its own limit; so much later it is killed.
_GRACE_SECONDS: Final = 60.0


def build_load_generator() -> None:
    """Compile the load generator; Go builds only what has changed.

    Raises: SetupError when Go is missing or the build fails.
    """
    if shutil.which("go") is None:
        raise SetupError(
            "the load generator needs Go 1.23 or newer, and `go` is not on PATH: "
            "install it (https://go.dev/dl, or apt-get install golang) and run again"
        )
    LOADGEN.parent.mkdir(exist_ok=True)
    made = LOADGEN.with_name(f"{LOADGEN.name}.{os.getpid()}")  # another may be running the old one
    done = subprocess.run(
        ["go", "build", "-o", str(made), "."],
        cwd=BENCHMARKS / "loadgen",
        env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SetupError(f"building the load generator failed:\n{done.stderr}")
    made.replace(LOADGEN)


def report_of(arguments: Sequence[str], seconds_max: float) -> dict[str, Any]:
    """Run it once and return its report, which may say under "error" what went wrong.

    Raises: RuntimeError when it gives none; subprocess.TimeoutExpired.
    """
    done = subprocess.run(
        [str(LOADGEN), "-json", f"-timeout={seconds_max:.0f}s", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds_max + _GRACE_SECONDS,
    )
    if not done.stdout.startswith("{"):
        raise RuntimeError(
            done.stderr.strip()
            or f"the load generator gave no report (exit code {done.returncode})"
        )
    return json.loads(done.stdout)


def good_report_of(arguments: Sequence[str], seconds_max: float) -> dict[str, Any]:
    """The same. Raises: RuntimeError also when something went wrong."""
    report = report_of(arguments, seconds_max)
    if error := report.get("error"):
        raise RuntimeError(str(error))
    return report
