"""Texts and JSON values as values of columns: what is one, and what is none."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from tidegate_sink_spark.staging import values
from tidegate_sink_spark.staging.values import NO_VALUE, Convert

DECIMAL_5_2 = values.decimal_converter(5, 2)
DECIMAL_38_0 = values.decimal_converter(38, 0)
DAY = 86_400_000_000
#: 2026-01-02T03:04:05Z
NOON = 1_767_323_045_000_000


@pytest.mark.parametrize(
    ("convert", "value", "expected"),
    [
        (values.to_string, "a", "a"),
        (values.to_string, 5, "5"),
        (values.to_string, Decimal("1.10"), "1.10"),
        (values.to_string, True, "true"),
        (values.to_string, [1, {"a": None, "b": Decimal("1.10")}], '[1,{"a":null,"b":1.10}]'),
        (values.to_long, "42", 42),
        (values.to_long, "-9223372036854775808", -(1 << 63)),
        (values.to_long, (1 << 63) - 1, (1 << 63) - 1),
        (values.to_long, 5.0, 5),
        (values.to_long, Decimal("5.00"), 5),
        (values.to_double, "1.5e3", 1500.0),
        (values.to_double, 1, 1.0),
        (values.to_double, Decimal("0.1"), 0.1),
        (values.to_boolean, "True", True),
        (values.to_boolean, False, False),
        (values.to_timestamp, "2026-01-02T03:04:05Z", NOON),
        (values.to_timestamp, "2026-01-02 03:04:05", NOON),
        (values.to_timestamp, "2026-01-02T05:04:05.000006+02:00", NOON + 6),
        (values.from_seconds, 1_767_323_045, NOON),
        (values.from_seconds, "1767323045.000006", NOON + 6),
        (values.from_milliseconds, 1_767_323_045_000.0, NOON),
        (values.from_microseconds, str(NOON), NOON),
        (values.from_milliseconds, -1, -1_000),
        (values.to_date, "2026-01-02", dt.date(2026, 1, 2)),
        (DECIMAL_5_2, "123.4", Decimal("123.40")),
        (DECIMAL_5_2, 999, Decimal("999.00")),
        (DECIMAL_5_2, 1.25, Decimal("1.25")),
        (DECIMAL_5_2, Decimal("1.2500"), Decimal("1.25")),
        (DECIMAL_38_0, 10**38 - 1, Decimal(10**38 - 1)),
    ],
)
def test_a_value_of_the_type(convert: Convert, value: Any, expected: Any) -> None:
    found = convert(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("convert", "none"),
    [
        (values.to_long, ["", " 1", "1_000", "\u0661", "0x1", "1.5", 1.5, True, 1 << 63, [], {}]),
        (values.to_long, [str(1 << 63), 1e300, Decimal("1E+999999999"), Decimal("1.5")]),
        (
            values.to_double,
            ["", "nan", "inf", "1_0", "1e99999", True, [], 10**400, Decimal("1E+9999")],
        ),
        (values.to_boolean, ["yes", 1, 0, "", None, []]),
        (values.to_timestamp, ["", "now", 5, "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z", []]),
        (values.to_timestamp, ["9999-12-31T23:59:59-12:00"]),
        (
            values.from_seconds,
            ["", "x", True, 10**30, Decimal("1E+999999999"), 1e300, "1e9999", []],
        ),
        (values.to_date, ["", "x", "2026-02-30", 5, True]),
        (
            DECIMAL_5_2,
            ["1.234", "1000", "", "NaN", "Infinity", True, 1e300, Decimal("1E+999999"), []],
        ),
        (DECIMAL_5_2, [Decimal("1E-999999"), "1e9999", float("inf")]),
    ],
)
def test_what_is_none_of_the_type_is_refused_and_not_bent(
    convert: Convert, none: list[Any]
) -> None:
    for value in none:
        with pytest.raises(NO_VALUE):
            convert(value)
