"""Fail when a pytest junit report holds a skipped test: what was skipped has not been shown to work.

Usage: check_no_skips.py REPORT.xml
Exit codes: 0 every test ran; 1 some were skipped (one line each on stderr), or none ran; 2 usage.
"""

from __future__ import annotations

import sys
from xml.etree import ElementTree


def main(arguments: list[str]) -> int:
    """Read the report named on the command line and say which tests were skipped."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    cases = list(ElementTree.parse(arguments[0]).iter("testcase"))
    skipped = list(skips(cases))
    for name, reason in skipped:
        print(f"skipped: {name}: {reason}", file=sys.stderr)
    if not cases:
        print("the report holds no test", file=sys.stderr)
    return 1 if skipped or not cases else 0


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
