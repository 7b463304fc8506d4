"""A run in which a suite was skipped, or left out, does not pass for one in which it succeeded."""

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


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("cases", "code", "said"),
    [
        (_PASSED, 0, ""),
        (_PASSED + _XFAILED, 0, ""),
        (_PASSED + _SKIPPED, 1, "skipped: a::b: no Java"),
        ("", 1, "the report holds no test: report.xml"),
    ],
)
def test_the_exit_code_tells_whether_every_test_ran(
    cases: str, code: int, said: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    done = check(report)
    assert (done.returncode, done.stderr.strip()) == (code, said)


def test_every_test_file_must_be_in_one_of_the_reports(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    for name in ("a/test_one.py", "a/test_two.py", "soak/test_hours.py", "test_cuts.py"):
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).write_text("")
    (tests / "test_cuts.py").write_text("pytestmark = [\n    # Why.\n    pytest.mark.crash,\n]")
    reports = [tmp_path / "test.xml", tmp_path / "long.xml"]
    for report, name in zip(reports, ("test_one", "test_two.TestClass"), strict=True):
        report.write_text(f'<testsuite><testcase classname="tests.a.{name}" name="x"/></testsuite>')
    assert check("--every-file-of", tests, *reports).returncode == 0
    done = check("--every-file-of", tests, reports[0])
    assert (done.returncode, done.stderr) == (1, f"did not run: {tests / 'a' / 'test_two.py'}\n")
