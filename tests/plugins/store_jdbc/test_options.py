"""Every option: its default, its limits, and what cannot go together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.spi import ConfigError, parse_options
from tidegate_store_jdbc._options import (
    TABLE_NAME_MAX,
    TABLES,
    JdbcOptions,
    check,
    data_types,
    table_names,
)


def test_defaults_are_those_of_the_documents() -> None:
    defaults = parse_options(JdbcOptions, {})
    assert defaults.create_tables_on_startup
    assert defaults.use_database_lock
    assert defaults.cleanup_period == 300
    assert defaults.lock_renew_period == 2
    assert defaults.lock_expiration == 20
    assert defaults.network_timeout == 20
    assert (defaults.table_prefix, defaults.brokerid) == ("", "")
    check(defaults)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lock_renew_period", "0s"),
        ("lock_expiration", 20000),
        ("network_timeout", "never"),
        ("cleanup_period", "2d"),
        ("cleanup_limit", 0),
        ("connections_max", 0),
        ("lock_policy", "hope"),
        ("statements", {"add_message_statement": 5}),
        ("tableprefix", "x"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(JdbcOptions, {key: value})
    assert caught.value.key.startswith(key)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (JdbcOptions(lock_renew_period=11), "lock_renew_period"),
        (JdbcOptions(use_database_lock=False, lock_policy="fail"), "lock_policy"),
        (JdbcOptions(use_database_lock=False, lock_renew_period=1), "lock_renew_period"),
        (JdbcOptions(use_database_lock=False, lock_expiration=60), "lock_expiration"),
        (JdbcOptions(network_timeout=21), "network_timeout"),
        (JdbcOptions(table_prefix="a;b"), "table_prefix"),
        (JdbcOptions(brokerid="a_b"), "brokerid"),
        (JdbcOptions(message_table_name="drop table"), "message_table_name"),
        (JdbcOptions(message_table_name="x" * (TABLE_NAME_MAX + 1)), "message_table_name"),
        (JdbcOptions(lock_table_name="tidegate_msgs"), "lock_table_name"),
        (JdbcOptions(create_statements={"message": "CREATE"}), "create_statements.message"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: JdbcOptions, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(options)
    assert caught.value.key == key


def test_without_a_lease_its_limits_do_not_apply() -> None:
    check(JdbcOptions(use_database_lock=False, network_timeout=60))


def test_every_table_has_prefix_and_suffix() -> None:
    names = table_names(JdbcOptions(table_prefix="mq.A_", brokerid="B7"))
    assert set(names) == set(TABLES.values())
    assert names["message_table"] == "mq.A_TIDEGATE_MSGS_B7"
    assert all(name.startswith("mq.A_") and name.endswith("_B7") for name in names.values())


def test_set_column_types_are_found_by_placeholder() -> None:
    options = JdbcOptions(binary_data_type="LONGBLOB", string_id_data_type="VARCHAR(128)")
    assert data_types(options) == {"binary": "LONGBLOB", "string_id": "VARCHAR(128)"}


def test_the_document_describes_every_option_as_it_is() -> None:
    document = Path(__file__).parents[3] / "docs" / "store-jdbc.md"
    done = subprocess.run(
        [Path(sys.executable).with_name("tidegate"), "option-tables"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    start = "<!-- options: store-jdbc -->\n"
    table = done.stdout.partition(start)[2].partition("<!-- end -->")[0]
    assert "lock_expiration" in table
    assert document.read_text().partition(start)[2].partition("<!-- end -->")[0] == table
