"""docs/portable-format.md names every table, column and key, and its query works."""

import re
from pathlib import Path

import msgspec
import pytest

from tidegate.portable import FORMAT_NAME, FORMAT_VERSION, Manifest, TableFacts
from tidegate.portable._in import UNFINISHED
from tidegate.portable._merge import READ_AHEAD_BYTES, RUN_BYTES
from tidegate.portable._tables import ROW_GROUP_BYTES, ROW_GROUP_ROWS, SCHEMAS

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "portable-format.md").read_text()


def section(table: str) -> str:
    found = re.search(rf"^### `{table}`\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no section on {table}"
    return found[1]


def test_there_is_a_section_for_each_table_and_no_other() -> None:
    assert set(re.findall(r"^### `(\w+)`", TEXT, re.MULTILINE)) == set(SCHEMAS)


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_described(table: str) -> None:
    text = section("messages") if table == "retained" else section(table)
    assert [name for name in SCHEMAS[table].names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("kind", [Manifest, TableFacts])
def test_every_key_of_the_manifest_is_described(kind: type[msgspec.Struct]) -> None:
    assert [name for name in kind.__struct_fields__ if f"`{name}`" not in TEXT] == []


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"`{FORMAT_NAME}`" in TEXT
    assert f"| `version` | {FORMAT_VERSION}, " in TEXT
    assert f"at most {READ_AHEAD_BYTES >> 20} MiB of bodies" in TEXT
    assert f"beyond {RUN_BYTES >> 20} MiB" in TEXT
    assert f"{ROW_GROUP_BYTES >> 20} MiB of bodies or {ROW_GROUP_ROWS:,} rows" in TEXT
    assert UNFINISHED.removeprefix("queue://") in TEXT


def test_every_command_of_the_journal_is_in_its_document() -> None:
    from typer.main import get_command

    from tidegate_store_journal.tools.command import app

    text = (DOCS / "store-journal.md").read_text()
    overview = (DOCS / "configuration.md").read_text()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert re.search(rf"^\| .*`{name}[` ]", text, re.MULTILINE), name
        assert f"`{name}`" in overview or f"`tidegate journal {name}`" in overview
        for parameter in command.params:
            for option in parameter.opts:
                shown = {"--help", "--config", "-c", "--directory", "-d", "--json", "--records"}
                if option.startswith("-") and option not in shown:
                    assert option in text, option
