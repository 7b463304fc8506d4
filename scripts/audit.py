"""Ask whether anything installed has a known vulnerability; `make audit`.

Usage: audit.py [--report FILE] [-- ARGUMENTS OF PIP-AUDIT]

pip-audit is installed into `build/audit-env`, from the index that pip is configured with, and asks a
service for advisories about each distribution in `.venv`; ours are not asked about. Its report is
judged here, because pip-audit itself is content with a service that knows none of them.
--report: judge this report (pip-audit's JSON) and ask nobody.

What is known and accepted stands in `scripts/audit_exceptions.toml`, each with a reason and the last
day on which it counts.

Exit codes: 0 everything was looked up and nothing is known; 1 a vulnerability is known, or an
exception is over or without use; 2 usage; 3 not everything could be looked up (no network, a service
that does not know a distribution): that is no proof of anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXCEPTIONS = Path(__file__).with_name("audit_exceptions.toml")
TOOL_ENV = ROOT / "build" / "audit-env"
REQUIREMENT = "pip-audit>=2.7,<3"
KNOWN, USAGE, UNKNOWN = 1, 2, 3
_TIMEOUT_S = 900
_WITHOUT_ANSWERS = (
    "That proves nothing. Run it where the service answers, or ask another one:"
    " make audit ARGS='-- --vulnerability-service osv'. A report that was made elsewhere"
    " (pip-audit --format json) is judged with ARGS='--report FILE'. Without a network,"
    " make test ARGS=tests/scripts/test_audit.py holds our ranges, and what is installed, against an"
    " excerpt of what was known when it was written."
)


@dataclass(frozen=True)
class Verdict:
    """What a report comes to. Attributes: code (of the process), lines (to print)."""

    code: int
    lines: list[str]


def main(arguments: list[str]) -> int:
    """Ask, or read, and judge."""
    given, separator, passed_on = _split(arguments)
    parser = argparse.ArgumentParser(prog="audit.py", usage=__doc__)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(given)
    if options.report is not None and separator:
        parser.error("--report asks nobody: nothing can be passed on to pip-audit")
    try:
        text = options.report.read_text() if options.report else ask(passed_on)
        exceptions = tomllib.loads(EXCEPTIONS.read_text()).get("exception", [])
        verdict = judge(json.loads(text), exceptions, datetime.datetime.now(datetime.UTC).date())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"audit: nothing could be looked up: {error}\n{_WITHOUT_ANSWERS}", file=sys.stderr)
        return UNKNOWN
    print("\n".join(verdict.lines))
    if verdict.code == UNKNOWN:
        print(_WITHOUT_ANSWERS)
    return verdict.code


def judge(
    report: Mapping[str, Any], exceptions: Iterable[Mapping[str, Any]], today: datetime.date
) -> Verdict:
    """Weigh pip-audit's *report* against the *exceptions*. Raises: ValueError: it is none."""
    found = report.get("dependencies")
    if not isinstance(found, list) or not found:
        raise ValueError("the report names no distribution")
    open_until = {item["id"]: item["until"] for item in exceptions}
    used: set[str] = set()
    bad: list[str] = []
    unasked: list[str] = []
    asked = 0
    for item in found:
        reason = item.get("skip_reason", "")
        if reason:
            if "editable" not in reason:  # ours are: nobody else has them
                unasked.append(item["name"])
            continue
        asked += 1
        for vulnerability in item["vulns"]:
            names = {vulnerability["id"], *vulnerability.get("aliases", ())}
            excused = {name for name in names if open_until.get(name, today) > today}
            used |= names & set(open_until)
            if not excused:
                fixed = ", ".join(vulnerability.get("fix_versions", ())) or "no version yet"
                known = ", ".join(sorted(names))
                bad.append(f"{item['name']} {item['version']}: {known}; fixed in: {fixed}")
    bad += [
        f"audit_exceptions.toml: {name} ended on {until}"
        for name, until in open_until.items()
        if until <= today
    ]
    if not unasked:
        bad += [
            f"audit_exceptions.toml: {name} is not found any more; remove it"
            for name in open_until
            if name not in used
        ]
    lines = [f"VULNERABLE {line}" for line in bad]
    if unasked:
        lines.append(f"NOT LOOKED UP {len(unasked)}: {', '.join(sorted(unasked))}")
    lines.append(f"looked up: {asked}")
    return Verdict(KNOWN if bad else UNKNOWN if unasked else 0, lines)


def ask(passed_on: list[str]) -> str:
    """Run pip-audit over what is installed here; its report. Raises: OSError, SubprocessError."""
    python = TOOL_ENV / "bin" / "python"
    if not python.exists():
        venv.create(TOOL_ENV, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", REQUIREMENT]
    subprocess.run(install, check=True, timeout=_TIMEOUT_S, stdout=sys.stderr)
    done = subprocess.run(
        [
            python,
            *("-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
            *("--skip-editable", "--path", sysconfig.get_paths()["purelib"]),
            *passed_on,
        ],
        check=False,  # 1: it found something, which is in its report
        timeout=_TIMEOUT_S,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in arguments:
        return arguments, False, []
    at = arguments.index("--")
    return arguments[:at], True, arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
