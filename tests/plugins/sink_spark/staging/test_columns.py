"""What `[sinks.columns]` may say, and what is told of what it may not."""

import pyarrow as pa
import pytest

from tidegate.spi import ConfigError
from tidegate_sink_spark.staging.columns import COLUMNS_MAX, STEPS_MAX, find_columns


def test_columns_have_a_type_and_a_source() -> None:
    found = find_columns(
        {
            "device": "string header:device id",
            "order_id": " long  json:$.order.id",
            "Price": "DECIMAL(18, 2) json:$.price",
            "sent": "timestamp_ms header:timestamp",
        }
    )
    assert [(c.name, c.sql, c.header, c.path) for c in found] == [
        ("device", "STRING", "device id", ()),
        ("order_id", "BIGINT", "", ("order", "id")),
        ("Price", "DECIMAL(18,2)", "", ("price",)),
        ("sent", "TIMESTAMP", "timestamp", ()),
    ]
    assert found[2].arrow == pa.decimal128(18, 2)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", ()),
        ("$.a.b-c._d", ("a", "b-c", "_d")),
        ("$.a[0][12].b", ("a", 0, 12, "b")),
        ("""$['a key']["it's"].x""", ("a key", "it's", "x")),
        (r"$['it\'s']['a\\b']", ("it's", "a\\b")),
        ("$['größe'].größe", ("größe", "größe")),
    ],
)
def test_a_path_is_made_of_steps(path: str, steps: tuple[str | int, ...]) -> None:
    (column,) = find_columns({"x": f"string json:{path}"})
    assert column.path == steps


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("order.id", r"does not begin with '\$'"),
        ("$.a..b", r"from its character 4 on \('..b'\)"),
        ("$.a[*]", r"from its character 4 on .*no wildcards"),
        ("$.a[-1]", "character 4"),
        ("$.a[01]", "character 4"),
        ("$.a[?(@.b)]", "character 4"),
        ("$.a b", "character 4"),
        ("$['a", "character 2"),
        ("$.", "character 2"),
        ("$.1a", "character 2"),
        ("$" + ".a" * (STEPS_MAX + 1), f"more than {STEPS_MAX} steps"),
    ],
)
def test_a_path_with_an_error_in_it_is_told_with_the_place(path: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        find_columns({"x": f"string json:{path}"})
    assert caught.value.key == "columns.x"


@pytest.mark.parametrize(
    ("name", "spec", "text"),
    [
        ("destination", "string header:d", "is a column that every table has"),
        ("ACK_SEQ", "long header:d", "is a column that every table has"),
        ("body_text", "string header:d", "is a column that every table has"),
        ("_file", "string header:d", "is no name of a column"),
        ("a.b", "string header:d", "is no name of a column"),
        ("a" * 128, "string header:d", "is no name of a column"),
        ("größe", "string header:d", "is no name of a column"),
        ("x", "integer header:d", "'integer' is no type; take string, long"),
        ("x", "decimal(39,2) json:$.x", "precision is 1 to 38"),
        ("x", "decimal(5,6) json:$.x", "precision is 1 to 38"),
        ("x", "decimal json:$.x", "'decimal' is no type"),
        ("x", "string", "is not 'TYPE header:NAME'"),
        ("x", "header:d", "is not 'TYPE header:NAME'"),
        ("x", "string body:$.x", "is not 'TYPE header:NAME'"),
        ("x", "string header:", "is not 'TYPE header:NAME'"),
        ("x", "", "is not 'TYPE header:NAME'"),
    ],
)
def test_a_column_that_cannot_be_is_told_with_its_name(name: str, spec: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        find_columns({name: spec})
    assert caught.value.key == f"columns.{name}"


def test_two_names_that_are_one_to_spark_are_told() -> None:
    with pytest.raises(ConfigError, match="'Device' and 'device' are one name"):
        find_columns({"device": "string header:a", "Device": "string header:b"})


def test_there_is_a_limit() -> None:
    with pytest.raises(ConfigError, match=f"at most {COLUMNS_MAX}"):
        find_columns({f"c{n}": "string header:x" for n in range(COLUMNS_MAX + 1)})
