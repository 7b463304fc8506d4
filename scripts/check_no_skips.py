"""Fail when pytest junit reports hold a skipped test: what was skipped has not been shown to work.

Usage: check_no_skips.py [--every-file-of DIRECTORY] REPORT.xml...

--every-file-of: each test file below DIRECTORY must have a test in one of the reports. Not meant are
its folders `soak` and `fuzz` and files that only `make crash` runs, which have reports of their own.

Exit codes: 0 every test ran; 1 some were skipped (one line each on stderr), or none ran; 2 usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

#: Folders of tests that are run for themselves.
_APART = {"soak", "fuzz"}
_ONLY_CRASH = re.compile(r"^pytestmark = (?:\[[^]]*|.*)\bcrash\b", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Read the reports named on the command line and say which tests did not run."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--every-file-of", type=Path)
    parser.add_argument("reports", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    problems: list[str] = []
    cases: list[ElementTree.Element] = []
    for report in options.reports:
        found = list(ElementTree.parse(report).iter("testcase"))
        problems += [] if found else [f"the report holds no test: {report.name}"]
        cases += found
    problems += [f"skipped: {name}: {reason}" for name, reason in skips(cases)]
    if options.every_file_of is not None:
        problems += [f"did not run: {path}" for path in missing(cases, options.every_file_of)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def missing(cases: list[ElementTree.Element], directory: Path) -> Iterator[Path]:
    """Test files of which no test is among *cases*."""
    classes = {case.get("classname", "") for case in cases}
    for path in sorted(directory.rglob("test_*.py")):
        name = ".".join(path.relative_to(directory.parent).with_suffix("").parts)
        apart = not _APART.isdisjoint(path.parts) or _ONLY_CRASH.search(path.read_text())
        if not apart and not any(item == name or item.startswith(f"{name}.") for item in classes):
            yield path


def skips(cases: list[ElementTree.Element]) -> list[tuple[str, str]]:
    """Return name and reason of each skipped case; an expected failure did run and is none."""
    found: list[tuple[str, str]] = []
    for case in cases:
        for mark in case.findall("skipped"):
            if mark.get("type") != "pytest.xfail":
                name = f"{case.get('classname')}::{case.get('name')}"
                found.append((name, mark.get("message", "")))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
