"""What a report of pip-audit comes to, and what our own ranges let in.

`pip_audit_nothing_looked_up.json` was recorded (and cut) where the service knows no distribution:
pip-audit calls that "no known vulnerabilities". `advisories.json` holds advisories for what the rooms
depend on, so that a range that lets a vulnerable version in is found without a network: an excerpt
made by hand, which says so itself.
"""

import datetime
import importlib.metadata
import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
_SPEC = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
assert _SPEC is not None
assert _SPEC.loader is not None
audit: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["audit"] = audit  # where its dataclass looks itself up
_SPEC.loader.exec_module(audit)

TODAY = datetime.date(2026, 11, 22)
FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"], "description": "…"}


def report(*vulnerabilities: dict[str, Any], skip_reason: str = "") -> dict[str, Any]:
    ours = {"name": "tidegate", "skip_reason": "distribution marked as editable"}
    other = {"name": "rich", "version": "1.0", "vulns": list(vulnerabilities)}
    skipped = [{"name": "lark", "skip_reason": skip_reason}] if skip_reason else []
    return {"dependencies": [ours, other, *skipped], "fixes": []}


def exception(name: str, until: datetime.date) -> dict[str, Any]:
    return {"id": name, "package": "rich", "reason": "r", "until": until}


def test_nothing_known_is_nothing_to_say() -> None:
    assert audit.judge(report(), [], TODAY) == audit.Verdict(0, ["looked up: 1"])


def test_a_vulnerability_is_named_with_what_mends_it() -> None:
    verdict = audit.judge(report(FOUND), [], TODAY)
    assert verdict.code == audit.KNOWN
    assert verdict.lines[0] == "VULNERABLE rich 1.0: CVE-1, PYSEC-1; fixed in: 2.0"


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-1"])
def test_an_exception_counts_until_its_day(name: str) -> None:
    tomorrow = TODAY + datetime.timedelta(days=1)
    assert audit.judge(report(FOUND), [exception(name, tomorrow)], TODAY).code == 0
    over = audit.judge(report(FOUND), [exception(name, TODAY)], TODAY)
    assert over.code == audit.KNOWN
    assert any("ended on 2026-11-22" in line for line in over.lines)
    assert any("VULNERABLE rich" in line for line in over.lines)


def test_an_exception_that_nobody_needs_goes() -> None:
    tomorrow = TODAY + datetime.timedelta(days=1)
    verdict = audit.judge(report(), [exception("CVE-9", tomorrow)], TODAY)
    assert verdict.code == audit.KNOWN
    assert "CVE-9 is not found any more" in verdict.lines[0]


def test_what_could_not_be_looked_up_is_no_proof() -> None:
    verdict = audit.judge(report(skip_reason="Dependency not found"), [], TODAY)
    assert verdict == audit.Verdict(audit.UNKNOWN, ["NOT LOOKED UP 1: lark", "looked up: 1"])
    assert audit.judge(report(FOUND, skip_reason="x"), [], TODAY).code == audit.KNOWN


def test_the_recorded_report_of_a_place_without_advisories(capsys) -> None:
    code = audit.main(["--report", str(HERE / "pip_audit_nothing_looked_up.json")])
    assert code == audit.UNKNOWN
    out = capsys.readouterr().out
    assert "NOT LOOKED UP 4: transitions, typer, uvloop, websockets" in out
    assert out.splitlines()[-1].startswith("That proves nothing. Run it where the service answers")
    assert "looked up: 0" in out


@pytest.mark.parametrize("text", ["", "{}", '{"dependencies": []}', "no network"])
def test_no_report_is_no_proof_either(tmp_path: Path, text: str, capsys) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    assert audit.main(["--report", str(file)]) == audit.UNKNOWN
    told = capsys.readouterr().err
    assert "nothing could be looked up" in told
    assert "Run it where the service answers" in told


def test_what_is_accepted_has_a_reason_and_an_end() -> None:
    for item in tomllib.loads(audit.EXCEPTIONS.read_text()).get("exception", []):
        assert set(item) == {"id", "package", "reason", "until"}
        assert isinstance(item["until"], datetime.date)
        assert item["reason"]


# ---------------------------------------------------------------------------- without a network


def advisories() -> list[dict[str, str]]:
    return json.loads((HERE / "advisories.json").read_text())["advisories"]


def is_affected(advisory: dict[str, str], version: Version) -> bool:
    return Version(advisory["introduced"]) <= version < Version(advisory["fixed"])


def requirements() -> list[tuple[Path, Requirement]]:
    found: list[tuple[Path, Requirement]] = []
    for path in [
        ROOT / "pyproject.toml",
        *ROOT.glob("*/pyproject.toml"),
        *ROOT.glob("*/*/pyproject.toml"),
    ]:
        tables = tomllib.loads(path.read_text())
        project = tables.get("project", {})
        texts = [*project.get("dependencies", ())]
        for extra in project.get("optional-dependencies", {}).values():
            texts += extra
        texts += tables.get("dependency-groups", {}).get("dev", ())
        found += [(path, Requirement(text)) for text in texts]
    return found


def test_no_range_lets_a_vulnerable_version_in() -> None:
    known = advisories()
    seen = set()
    for path, requirement in requirements():
        lowest = [
            item.version for item in requirement.specifier if item.operator in (">=", "==", "~=")
        ]
        for advisory in known:
            if advisory["package"] != canonicalize_name(requirement.name):
                continue
            seen.add(advisory["package"])
            assert lowest, f"{path}: {requirement} has no lower bound"
            for text in (lowest[0], advisory["introduced"]):
                version = Version(text)
                lets_in = requirement.specifier.contains(version) and is_affected(advisory, version)
                assert not lets_in, f"{path}: {requirement} lets {advisory['id']} in"
    assert "pyarrow" in seen


def test_nothing_vulnerable_is_installed() -> None:
    for advisory in advisories():
        try:
            installed = Version(importlib.metadata.version(advisory["package"]))
        except importlib.metadata.PackageNotFoundError:
            continue
        assert not is_affected(advisory, installed), f"{advisory['id']}: {installed}"
