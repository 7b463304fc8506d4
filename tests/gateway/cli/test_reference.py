"""The option tables of the documentation."""

from dataclasses import fields
from pathlib import Path

import pytest

from tidegate.cli._reference import block_names, host_tables, plugin_tables, update_document
from tidegate.config import BrokerConfig, DestinationPolicy

DOCUMENT = """# A
<!-- options: broker -->
old
<!-- end -->
between
<!-- options: store-unknown -->
kept
<!-- end -->
"""


def test_blocks_with_a_table_are_filled_and_all_else_stays() -> None:
    assert block_names(DOCUMENT) == ["broker", "store-unknown"]
    updated = update_document(DOCUMENT, {"broker": r"new \1" + "\n", "other": "x\n"})
    assert updated == DOCUMENT.replace("old", r"new \1")
    assert update_document(updated, {"broker": r"new \1" + "\n"}) == updated


@pytest.mark.parametrize(
    ("name", "table"), [("broker", BrokerConfig), ("destinations", DestinationPolicy)]
)
def test_every_option_of_the_host_has_a_row(name: str, table: type) -> None:
    text = host_tables()[name]
    for field in fields(table):
        assert f"| `{field.name}` |" in text


def test_what_a_table_keeps_for_its_plugin_is_no_option_of_the_host() -> None:
    tables = host_tables()
    assert "`options`" not in "".join(tables.values())
    assert set(tables) == {
        "broker",
        "listeners",
        "store",
        "destinations",
        "sinks",
        "extensions",
        "quotas",
    }


def test_only_plugins_of_ours_are_in_the_documentation(site) -> None:
    site.add_toys()
    assert plugin_tables(site.host()) == {}
    source = Path(site.path / "toys.py").read_text()
    site.add("ours", {"store-journal": "ours"}, source)
    tables = plugin_tables(site.host())
    assert list(tables) == ["store-journal"]
    assert "| `journal_max_file_length` |" in tables["store-journal"]
