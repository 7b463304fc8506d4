"""SECURITY.md names its proofs: each test file that it speaks of is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "SECURITY.md"


def rows() -> list[list[str]]:
    """The cells of the table of attacks."""
    _, _, table = PAGE.read_text().partition("\n| attack | defence | test |\n|---|---|---|\n")
    lines = [line for line in table.split("\n\n")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_attack_has_a_defence_and_a_test_that_exists() -> None:
    found = rows()
    assert len(found) > 15
    for cells in found:
        assert len(cells) == 3, cells
        assert all(cells), cells
        folder = Path()
        names = re.findall(r"`([^`]+)`", cells[2])
        assert names, f"no test is named: {cells[0]}"
        for name in names:
            # A name without a folder stands beside the one before it.
            path = Path(name) if "/" in name else folder / name
            folder = path.parent
            assert (ROOT / path).exists(), f"{path}: {cells[0]}"
