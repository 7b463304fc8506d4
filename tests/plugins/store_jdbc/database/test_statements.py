"""Statements as data: each dialect has all of them, overrides are checked by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, opened, pending, postgres_options, sqlite_rows, write
from numbered import ack, add
from postgres_server import PostgresServer

from tidegate.spi import AddDuplicateId, ConfigError
from tidegate_store_jdbc import STATEMENTS, JdbcOptions
from tidegate_store_jdbc.database.postgres import DIALECT as POSTGRES
from tidegate_store_jdbc.database.sqlite import DIALECT as SQLITE
from tidegate_store_jdbc.database.statements import RETIRED, fill, resolve

DOCUMENT = Path(__file__).parents[4] / "docs" / "store-jdbc.md"


def statement_table() -> str:
    """What the document says of each statement."""
    lines = ["| Statement | Parameters | Gives |", "| --- | --- | --- |"]
    for name, info in STATEMENTS.items():
        gives = f"{info.columns} column{'s' * (info.columns > 1)}" if info.columns else "none"
        many = " (many)" if info.many else ""
        parameters = ", ".join(info.parameters) or "none"
        lines.append(f"| `{name}` | {parameters}{many} | {gives} |")
    return "\n".join(lines) + "\n"


def test_the_document_lists_every_statement() -> None:
    text = DOCUMENT.read_text()
    block = text.partition("<!-- statements -->\n")[2].partition("<!-- end statements -->")[0]
    assert block == statement_table()


WORDS = {"message_table": "M", "now": "0"}


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES])
def test_a_dialect_has_every_statement_and_no_other(dialect: object) -> None:
    assert dialect in (SQLITE, POSTGRES)
    assert set(dialect.statements) == set(STATEMENTS)  # type: ignore[attr-defined]


def test_an_unknown_statement_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'add_message_statement'") as caught:
        resolve(SQLITE.statements, {"add_mesage_statement": ""}, {})
    assert caught.value.key == "statements.add_mesage_statement"


SEEDS = [
    "add_message",
    "update_message",
    "remove_message",
    "find_message_sequence_id",
    "find_message",
    "find_all_messages",
    "find_last_sequence_id_in_msgs",
    "find_last_sequence_id_in_acks",
    "create_durable_sub",
    "find_durable_sub",
    "find_all_durable_subs",
    "update_last_ack_of_durable_sub",
    "delete_subscription",
    "find_all_durable_sub_messages",
    "find_durable_sub_messages",
    "find_all_destinations",
    "remove_all_messages",
    "remove_all_subscriptions",
    "delete_old_messages",
    "lock_create",
    "lock_update",
    "next_durable_subscriber_message",
    "durable_subscriber_message_count",
    "last_acked_durable_subscriber_message",
    "destination_message_count",
    "find_next_message",
]


def test_every_statement_of_the_jdbc_adapter_is_known() -> None:
    for seed in SEEDS:
        name = f"{seed}_statement"
        assert (name in STATEMENTS) != (name in RETIRED), name


def test_a_statement_without_a_job_says_what_does_it() -> None:
    with pytest.raises(ConfigError, match="remove_pending_statement acknowledges") as caught:
        resolve(SQLITE.statements, {"update_last_ack_of_durable_sub_statement": "x"}, {})
    assert caught.value.key == "statements.update_last_ack_of_durable_sub_statement"
    text = DOCUMENT.read_text()
    assert all(f"`{name}`" in text for name in RETIRED)


def test_placeholders_are_filled_and_unknown_ones_refused() -> None:
    assert fill("DELETE FROM {message_table}", WORDS, "k") == "DELETE FROM M"
    for template, problem in (("{messages}", "unknown placeholder"), ("{", "not a template")):
        with pytest.raises(ConfigError, match=problem) as caught:
            fill(template, WORDS, "statements.k")
        assert caught.value.key == "statements.k"


BAD = [
    ("find_next_message_statement", "SELECT nothing FROM {message_table}"),
    ("find_next_message_statement", "SELECT sequence FROM {message_table}"),
    ("add_message_statement", "INSERT INTO {message_table} (sequence) VALUES (1)"),
    ("lock_update_statement", "UPDAET {lock_table}"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
async def test_a_statement_that_sqlite_refuses_is_named_at_start(
    name: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        await opened(tmp_path, statements={name: text})
    assert caught.value.key == f"statements.{name}"


@pytest.mark.parametrize(("name", "text"), BAD)
async def test_a_statement_that_postgres_refuses_is_named_at_start(
    name: str, text: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, statements={name: text})
    with pytest.raises(ConfigError) as caught:
        await opened(tmp_path, options)
    assert caught.value.key == f"statements.{name}"


OWN = {
    # One row at a time, a column of its own, and another order.
    "add_message_statement": (
        "INSERT INTO {message_table} (sequence, destination, priority, received_at, expires_at,"
        " client_id, protocol, content_type, reply_to, correlation_data, headers, lists,"
        " body_bytes, body, message, site)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'site 7')"
    ),
    "remove_pending_statement": "DELETE FROM {acks_table} WHERE pending_list = ? AND sequence = ?",
}
TABLE = SQLITE.create["message_table"][0].replace("(", "(site TEXT, ", 1)


async def test_own_statements_and_tables_are_used(tmp_path: Path) -> None:
    options = JdbcOptions(statements=OWN, create_statements={"message_table_name": TABLE})

    store, _ = await opened(tmp_path, options)
    await write(store, QUEUE, *[add(n) for n in range(1, 40)])
    await write(store, ack(*range(1, 30)))
    assert await pending(store) == list(range(30, 40))
    await store.close()
    rows = sqlite_rows(tmp_path, "SELECT DISTINCT site FROM TIDEGATE_MSGS")
    assert rows == [("site 7",)]


async def test_a_create_statement_that_is_refused_is_named(tmp_path: Path) -> None:
    options = JdbcOptions(create_statements={"message_table_name": "CREATE THING x"})
    with pytest.raises(ConfigError) as caught:
        await opened(tmp_path, options)
    assert caught.value.key == "create_statements.message_table_name"


async def test_names_and_types_of_the_schema_are_those_of_the_options(tmp_path: Path) -> None:
    options = dataclasses.replace(
        JdbcOptions(),
        message_table_name="ACTIVEMQ_MSGS",
        table_prefix="P_",
        brokerid="7",
        container_name_data_type="VARCHAR(10)",
    )

    store, _ = await opened(tmp_path, options)
    await write(store, QUEUE, add(1))
    await store.close()
    table = "P_ACTIVEMQ_MSGS_7"
    schema = sqlite_rows(tmp_path, f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
    assert "destination VARCHAR(10)" in schema[0][0]
    assert sqlite_rows(tmp_path, f"SELECT destination FROM {table}") == [("queue://q",)]


async def test_every_column_type_can_be_set(postgres: PostgresServer, tmp_path: Path) -> None:
    """What is longer than a column is cut there, and whole where the gateway reads it."""
    types = {
        "binary_data_type": "BYTEA",
        "container_name_data_type": "VARCHAR(6)",
        "string_id_data_type": "VARCHAR(5)",
        "msg_id_data_type": "VARCHAR(3)",
        "sequence_data_type": "NUMERIC(20)",
        "long_data_type": "NUMERIC(19)",
        "small_data_type": "INTEGER",
        "text_data_type": "VARCHAR",
        "key_data_type": "BYTEA",
    }
    assert set(types) == {name for name in JdbcOptions.__slots__ if name.endswith("_data_type")}
    options = postgres_options(postgres, tmp_path, **types)

    store, _ = await opened(tmp_path, options, keep=True)
    duplicate = AddDuplicateId("queue://q", "order-1", 1)
    await write(store, QUEUE, add(1), add(2), duplicate, ack(2))
    found = await store._adapter.fetch(  # pyright: ignore[reportPrivateUsage]
        "find_all_duplicate_ids_statement", ()
    )
    assert len(found) == 1
    await store.close()
    store, _ = await opened(tmp_path, options, keep=True)
    assert await pending(store) == [1]
    assert [known.duplicate_id for known in await store.recovered_duplicate_ids()] == ["order-1"]
    page = await store.acknowledged(0, 10, 1 << 20)
    assert [(row.sequence, row.client_id) for row in page.rows] == [(2, "client")]
    await store.close()


async def test_a_binary_column_that_is_not_binary_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    options = postgres_options(postgres, tmp_path, binary_data_type="TEXT")
    with pytest.raises(ConfigError, match=r"type text, not bytea \(binary_data_type\)") as caught:
        await opened(tmp_path, options)
    assert caught.value.key.startswith("statements.find_")
