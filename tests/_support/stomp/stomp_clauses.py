"""The clauses of the STOMP specifications, the tests that prove them, and the table of both.

``python tests/_support/stomp/stomp_clauses.py`` rewrites the table in docs/stomp.md.
A test proves clauses by ``@pytest.mark.clause("stomp-1.1,1.2/send/destination", …)``.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
DOCUMENT: Final = ROOT / "docs" / "stomp.md"
VERSIONS: Final = ("1.0", "1.1", "1.2")
_CLAUSES: Final = ROOT / "tests" / "protocols" / "stomp" / "clauses.toml"
_FOLDERS: Final = ("protocols/stomp", "interop")
_BLOCK: Final = re.compile(r"(<!-- clauses -->\n).*?(<!-- end clauses -->)", re.DOTALL)
_MARK: Final = re.compile(r"stomp-([0-9.,]+)/(.+)")


@dataclass(frozen=True)
class Clause:
    """One sentence. Attributes: name; section; levels: version to the word it uses; text: ours."""

    name: str
    section: str
    levels: Mapping[str, str]
    text: str


def read_clauses() -> dict[str, Clause]:
    """All clauses by name, in the order of the specification."""
    data = tomllib.loads(_CLAUSES.read_text())
    return {name: Clause(name, **fields) for name, fields in data.items()}


def read_proofs() -> dict[tuple[str, str], list[str]]:
    """(version, clause name) to the tests that are marked with it, as ``folder/file::test``."""
    proofs: dict[tuple[str, str], list[str]] = {}
    for folder in _FOLDERS:
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
            for test, mark in _marks(ast.parse(path.read_text()).body, ""):
                match = _MARK.fullmatch(mark)
                assert match is not None, f"{path.name}::{test}: {mark!r} is no clause"
                for version in match[1].split(","):
                    where = f"{path.relative_to(ROOT / 'tests')}::{test}"
                    proofs.setdefault((version, match[2]), []).append(where)
    return proofs


def _marks(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        name = f"{prefix}{node.name}"
        for decorator in node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Attribute)
                and decorator.func.attr == "clause"
            ):
                for argument in decorator.args:
                    assert isinstance(argument, ast.Constant), f"{name}: write the clause out"
                    yield name, str(argument.value)
        if isinstance(node, ast.ClassDef):
            yield from _marks(node.body, f"{name}::")


def table() -> str:
    """The table of docs/stomp.md."""
    proofs = read_proofs()
    lines = [
        "| Clause | Section | 1.0 | 1.1 | 1.2 | What it says | Test |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for clause in read_clauses().values():
        tests: dict[str, None] = {}
        for version in clause.levels:
            tests.update(dict.fromkeys(proofs.get((version, clause.name), ())))
        levels = " | ".join(clause.levels.get(version, "-") for version in VERSIONS)
        shown = ", ".join(f"`{test.removeprefix('protocols/stomp/')}`" for test in tests)
        lines.append(f"| {clause.name} | {clause.section} | {levels} | {clause.text} | {shown} |")
    return "\n".join(lines) + "\n"


def with_table(document: str) -> str:
    """*document* with the table as it has to be."""
    found = table()
    text, count = _BLOCK.subn(lambda match: match[1] + found + match[2], document)
    assert count == 1, "docs/stomp.md needs one block `<!-- clauses -->` … `<!-- end clauses -->`"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
