"""The normative statements of MQTT 3.1.1 and 5.0, the tests that prove them, the tables of both.

``python tests/_support/mqtt/mqtt_clauses.py`` rewrites the tables in docs/mqtt.md.

A test proves statements by ``@pytest.mark.mqtt_clause("3.1.1:MQTT-3.1.2-1", …)``, or in short by
:func:`proves` and :func:`both`. Cases that are data do it by
``pytest.param(case, marks=pytest.mark.mqtt_clause(*case.clauses))``; therefore the marks are read by
collecting the tests, in a process of its own, and not from their text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
DOCUMENT: Final = ROOT / "docs" / "mqtt.md"
VERSIONS: Final = ("3.1.1", "5.0")
MARK: Final = "mqtt_clause"
#: Tests that are written out for one statement; the table says how many more there are.
TESTS_SHOWN_MAX: Final = 3

_COLLECT_TIMEOUT_S: Final = 240
_OPTION: Final = "--mqtt-clauses-file"
_STATEMENT: Final = re.compile(r"MQTT-(\d+)\.(\d+)\.(\d+)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One numbered statement.

    Attributes:
        version: of the standard.
        number: e.g. ``MQTT-3.1.2-1``.
        side: whom it binds.
        text: what it says, in our words.
        broken: what the gateway does with a client that breaks it, "" for what is no rule for
            clients alone.
        reason: why there is no test, "" when there has to be one.
    """

    version: str
    number: str
    side: Literal["server", "client", "both"]
    text: str
    broken: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        assert _STATEMENT.fullmatch(self.number), f"{self.number} is no number of a statement"
        assert self.side in ("server", "client", "both"), f"{self.number}: {self.side}"
        assert not (self.broken and self.side != "client"), f"{self.number} binds the gateway"
        assert not (self.broken and self.reason), f"{self.number}: either a test or a reason"
        assert self.broken or self.reason or self.side != "client", f"{self.number}: say what is"

    @property
    def mark(self) -> str:
        """What a test names it by."""
        return f"{self.version}:{self.number}"

    @property
    def section(self) -> str:
        """E.g. ``3.1.2``."""
        return self.number.removeprefix("MQTT-").partition("-")[0]


def read_statements() -> dict[str, Statement]:
    """All statements of both versions by their mark, in the order of the standards."""
    found: dict[str, Statement] = {}
    for version in VERSIONS:
        path = Path(__file__).with_name(f"mqtt_clauses_{version.replace('.', '_')}.toml")
        for number, fields in tomllib.loads(path.read_text()).items():
            statement = Statement(version=version, number=number, **fields)
            found[statement.mark] = statement
    return found


def proves(version: str, numbers: str) -> pytest.MarkDecorator:
    """The mark of a test of one *version*; *numbers* as in ``"3.1.2-1 3.1.2-2"``."""
    return pytest.mark.mqtt_clause(*(f"{version}:MQTT-{number}" for number in numbers.split()))


def both(v311: str = "", v5: str = "") -> pytest.MarkDecorator:
    """Run the test with ``version`` 4 and 5; it proves these numbers of the two standards."""
    params = [
        pytest.param(level, id=version, marks=proves(version, numbers))
        for level, version, numbers in ((4, "3.1.1", v311), (5, "5.0", v5))
    ]
    return pytest.mark.parametrize("version", params)


def read_proofs() -> dict[str, list[str]]:
    """Mark to the tests that have it, as ``folder/file::test`` below tests/, each once."""
    files = [
        str(path)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARK in path.read_text()
    ]
    if not files:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "marks.json")
        command = [sys.executable, "-m", "pytest", "-p", "mqtt_clauses", _OPTION, str(target)]
        command += ["-p", "no:cacheprovider", "--collect-only", "-q", "-m", "", *files]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_COLLECT_TIMEOUT_S
        )
        assert done.returncode == 0, f"the tests cannot be collected:\n{done.stdout}{done.stderr}"
        marked: list[list[str]] = json.loads(target.read_text())
    proofs: dict[str, dict[str, None]] = {}
    for name, mark in marked:
        proofs.setdefault(mark, {})[name] = None
    return {mark: list(tests) for mark, tests in proofs.items()}


def gaps(statements: Mapping[str, Statement], proofs: Mapping[str, object]) -> list[str]:
    """Marks of the statements that have neither a test nor a reason."""
    return [s.mark for s in statements.values() if not s.reason and s.mark not in proofs]


def table(
    version: str, statements: Mapping[str, Statement], proofs: Mapping[str, list[str]]
) -> str:
    """The table of one version."""
    lines = ["| Statement | Binds | What it says | Test |", "| --- | --- | --- | --- |"]
    breadth = Counter(test for tests in proofs.values() for test in tests)
    for statement in statements.values():
        if statement.version != version:
            continue
        text = statement.text
        if statement.broken:
            text += f" *When a client breaks it:* {statement.broken}"
        proof = _shown(proofs.get(statement.mark, []), breadth)
        if statement.reason:
            proof = f"none: {statement.reason}" + (f" See {proof}" if proof else "")
        lines.append(f"| {statement.number} | {statement.side} | {text} | {proof} |")
    return "\n".join(lines) + "\n"


def with_tables(
    document: str, statements: Mapping[str, Statement], proofs: Mapping[str, list[str]]
) -> str:
    """*document* with the tables as they have to be."""
    for version in VERSIONS:
        block = re.compile(
            rf"(<!-- clauses {re.escape(version)} -->\n).*?(<!-- end clauses -->)", re.DOTALL
        )
        found = table(version, statements, proofs)
        document, count = block.subn(lambda match, new=found: match[1] + new + match[2], document)
        assert count == 1, (
            f"docs/mqtt.md needs one block `<!-- clauses {version} -->` … `<!-- end clauses -->`"
        )
    return document


def _shown(tests: Iterable[str], breadth: Mapping[str, int]) -> str:
    # The proofs over a real connection say most, and among them those of few statements.
    names = sorted(tests, key=lambda name: ("/conformance/" not in name, breadth[name], name))
    more = len(names) - TESTS_SHOWN_MAX
    shown = ", ".join(
        f"`{name.removeprefix('protocols/mqtt/')}`" for name in names[:TESTS_SHOWN_MAX]
    )
    return shown + (f" and {more} more" if more > 0 else "")


# -------------------------------------------------------------------- the collecting process's side


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that :func:`read_proofs` uses."""
    parser.addoption(_OPTION, help="write the marks of MQTT statements to this file, as JSON")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write who is marked with what."""
    target = session.config.getoption(_OPTION)
    if target is None:
        return
    marked: list[tuple[str, str]] = []
    for item in session.items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        for mark in item.iter_markers(MARK):
            marked.extend((name, str(number)) for number in mark.args)
    Path(target).write_text(json.dumps(marked))


if __name__ == "__main__":
    every, proved = read_statements(), read_proofs()
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(), every, proved))
    for missing in gaps(every, proved):
        print(f"no test and no reason: {missing}")
