"""Types in Spark's words and in those of Delta's log."""

from typing import Any

import pytest

from tidegate_sink_spark.delta_rs.types import delta_fields, delta_type, sql_type

_STRUCT = {
    "type": "struct",
    "fields": delta_fields([("name", "STRING"), ("values", "MAP<STRING,BIGINT>")]),
}


@pytest.mark.parametrize(
    ("sql", "delta"),
    [
        ("BIGINT", "long"),
        ("INT", "integer"),
        ("TIMESTAMP", "timestamp"),
        ("DECIMAL(10,2)", "decimal(10,2)"),
        (
            "MAP<STRING,STRING>",
            {
                "type": "map",
                "keyType": "string",
                "valueType": "string",
                "valueContainsNull": True,
            },
        ),
        (
            "ARRAY<STRUCT<name:STRING,values:MAP<STRING,BIGINT>>>",
            {"type": "array", "elementType": _STRUCT, "containsNull": True},
        ),
    ],
)
def test_a_type_goes_both_ways(sql: str, delta: Any) -> None:
    assert sql_type(delta) == sql
    assert delta_type(sql) == delta
    assert delta_type(sql.replace(",", ", ").replace(":", ": ")) == delta


@pytest.mark.parametrize("sql", ["", "MONEY", "ARRAY<BIGINT", "ARRAY<>", "MAP<STRING>", "SET<INT>"])
def test_what_is_no_type_is_refused(sql: str) -> None:
    with pytest.raises(ValueError, match=r"is not a type|lacks"):
        delta_type(sql)
