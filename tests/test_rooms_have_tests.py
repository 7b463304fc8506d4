"""Tests follow packages: every room, and every package of the host and the protocols, has a folder of tests.

gateway/tidegate/broker/        -> tests/gateway/broker/
protocols/tidegate_protocols/stomp/ -> tests/protocols/stomp/
plugins/cursors/tidegate_cursors/   -> tests/plugins/cursors/

A package that has folders has them here, too, where its tests are many: a folder holds 15 files at most.
Which file inside holds which test is free, so that a redesign of a package moves no tests.
"""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER_FILES_MAX = 15


def packages() -> list[tuple[Path, Path]]:
    """Return each package with the folder of its tests."""
    found: list[tuple[Path, Path]] = []
    for room, tests in ((ROOT / "gateway", "gateway"), (ROOT / "protocols", "protocols")):
        for init in sorted(room.glob("*/*/__init__.py")):
            found.append((init.parent, ROOT / "tests" / tests / init.parent.name))
    for folder in sorted((ROOT / "plugins").iterdir()):
        for init in folder.glob("*/__init__.py"):
            found.append((init.parent, ROOT / "tests" / "plugins" / folder.name))
    return found


@pytest.mark.parametrize(("package", "tests"), packages(), ids=lambda path: path.name)
def test_a_package_has_a_folder_of_tests(package: Path, tests: Path) -> None:
    assert any(tests.rglob("test_*.py")), f"{package.relative_to(ROOT)}: no test in {tests}"


def test_every_room_is_seen() -> None:
    names = {package.name for package, _ in packages()}
    assert names >= {"broker", "spi", "stomp", "mqtt", "tidegate_store_journal"}
    assert names >= {"tidegate_cursors", "tidegate_sink_spark"}


def test_no_folder_of_tests_holds_too_many_files() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.*") if path.is_file()]
    counts = Counter(
        str(path.parent.relative_to(ROOT)) for path in files if path.parent.name != "__pycache__"
    )
    assert sum(counts.values()) > 500, "the tests were not found"
    assert {folder: n for folder, n in counts.items() if n > FOLDER_FILES_MAX} == {}
