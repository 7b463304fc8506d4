"""A run in which a suite was skipped does not pass for one in which it succeeded."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_no_skips.py"
_PASSED = '<testcase classname="a" name="passed"/>'
_SKIPPED = (
    '<testcase classname="a" name="b"><skipped type="pytest.skip" message="no Java"/></testcase>'
)
_XFAILED = '<testcase classname="a" name="c"><skipped type="pytest.xfail" message=""/></testcase>'


@pytest.mark.parametrize(
    ("cases", "code", "said"),
    [
        (_PASSED, 0, ""),
        (_PASSED + _XFAILED, 0, ""),
        (_PASSED + _SKIPPED, 1, "skipped: a::b: no Java"),
        ("", 1, "the report holds no test"),
    ],
)
def test_the_exit_code_tells_whether_every_test_ran(
    cases: str, code: int, said: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    done = subprocess.run(
        [sys.executable, SCRIPT, report], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (code, said)
