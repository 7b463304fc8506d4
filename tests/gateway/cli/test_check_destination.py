"""``tidegate check-config --destination``: what one queue or topic has, and from where."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import main

TABLES = """
[[destinations]]
match = ">"
max_deliveries = 9
[[destinations]]
match = "queue://orders.*"
pendingQueuePolicy = "fileQueueCursor"
[[destinations]]
match = "orders.>"
memory_limit = "10M"
[[destinations]]
match = "orders.*"
cursor = "vm"
[[destinations]]
match = "topic://prices"
durable_cursor = "vm"
[[destinations]]
match = "topic://prices.>"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "gw.toml"
    path.write_text(TABLES)
    return str(path)


def described(capsys: pytest.CaptureFixture[str], file: str, name: str) -> dict[str, Any]:
    assert main(["check-config", file, "--destination", name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_value_says_where_it_comes_from(capsys: pytest.CaptureFixture[str], file: str) -> None:
    found = described(capsys, file, "queue://orders.eu")
    assert found["table"] == "destinations[1]"
    values = found["values"]
    assert values["cursor"] == {"value": "file", "from": "destinations[1].pendingQueuePolicy"}
    assert values["max_deliveries"] == {"value": 6, "from": "default"}  # tables are not merged
    assert "durable_cursor" not in values
    wide = described(capsys, file, "topic://orders.eu.new")["values"]
    assert wide["memory_limit"] == {"value": "10mb", "from": "destinations[2].memory_limit"}


def test_a_cursor_that_follows_another_option_says_so(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    values = described(capsys, file, "topic://orders.eu")["values"]
    for option in ("cursor", "durable_cursor", "subscriber_cursor"):
        assert values[option] == {"value": "vm", "from": "destinations[3].cursor"}
    prices = described(capsys, file, "topic://prices")["values"]
    assert prices["durable_cursor"] == {"value": "vm", "from": "destinations[4].durable_cursor"}
    assert prices["subscriber_cursor"] == {"value": "file", "from": "default"}


def test_all_tables_that_match_are_named_with_why_each_is_before_the_next(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert described(capsys, file, "queue://orders.eu")["ranked"] == [
        {
            "table": "destinations[1]",
            "match": "queue://orders.*",
            "before_the_next": "it applies to queues only",
        },
        {
            "table": "destinations[3]",
            "match": "orders.*",
            "before_the_next": "its level 2 is '*', and that of the next one is '>'",
        },
        {
            "table": "destinations[2]",
            "match": "orders.>",
            "before_the_next": "its level 1 is 'orders', and that of the next one is '>'",
        },
        {"table": "destinations[0]", "match": ">", "before_the_next": None},
    ]
    prices = described(capsys, file, "topic://prices")["ranked"]
    assert prices[0]["before_the_next"] == "it ends where the next one has '>'"


def test_people_get_the_same_as_a_tree(capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert main(["check-config", file, "--destination", "queue://orders.eu"]) == 0
    out = capsys.readouterr().out
    assert (
        'has: destinations[1], match = "queue://orders.*"; it comes before the next table because'
        in out
    )
    assert 'cursor = "file"  # destinations[1].pendingQueuePolicy' in out
    assert "max_deliveries = 6  # default" in out


def test_what_no_table_matches_has_the_defaults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "gw.toml"
    path.write_text('[[destinations]]\nmatch = "a"\n')
    found = described(capsys, str(path), "queue://b")
    assert (found["table"], found["ranked"]) == (None, [])
    assert {value["from"] for value in found["values"].values()} == {"default"}
    assert main(["check-config", str(path), "--destination", "queue://b"]) == 0
    assert "no table matches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("orders.eu", "write queue://orders.eu or topic://orders.eu"),
        ("/queue/orders.eu", "write queue://orders.eu"),
        ("/topic/orders.eu", "write topic://orders.eu"),
        ("orders/eu", "the MQTT topic 'orders/eu' is called topic://orders.eu here"),
        ("queue://", "must not be empty"),
        ("topic://a.>.b", "must be the last level"),
    ],
)
def test_another_spelling_is_told_the_canonical_one(
    capsys: pytest.CaptureFixture[str], file: str, name: str, said: str
) -> None:
    assert main(["check-config", file, "--destination", name]) == 2
    assert said in capsys.readouterr().err
