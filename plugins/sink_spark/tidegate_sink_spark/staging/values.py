"""Converts a header's text, or a JSON document's value, to a column's value.

Each function takes JSON's types (``str``, ``int``, ``float`` or ``Decimal``, ``bool``, ``list``, ``dict``; never None),
and a header's value as ``str``. It raises one of :data:`NO_VALUE` for a value that does not fit its type: nothing is
rounded, cut off or guessed.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

Convert = Callable[[Any], Any]

#: What a conversion raises for a value that does not fit its type.
NO_VALUE: Final = (ValueError, OverflowError, ArithmeticError, TypeError)

_LONG: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1
#: Whole numbers up to here are exact in a double.
_EXACT_MAX: Final = 1 << 53
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
#: Dates that readers have in any time zone: the second day of the year 1 to the last but one of 9999.
_TIME_MIN: Final = -62_135_510_400_000_000
_TIME_MAX: Final = 253_402_214_399_999_999
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def to_string(value: Any) -> str:
    """A text as it is; anything else as its JSON."""
    if type(value) is str:
        return value
    return str(value) if type(value) is Decimal else _encode(value).decode()


def to_long(value: Any) -> int:
    """A whole number of 64 bits; ``5.0`` is one."""
    if type(value) is str:
        if not _LONG.fullmatch(value):
            raise ValueError
        value = int(value)
    elif type(value) is float:
        if abs(value) > _EXACT_MAX or not value.is_integer():
            raise ValueError
        return int(value)
    elif type(value) is Decimal:
        # Compared first: int() of 1e999999999 would take all the memory.
        if not _LONG_MIN <= value <= _LONG_MAX or value != value.to_integral_value():
            raise ValueError
        return int(value)
    elif type(value) is not int:
        raise ValueError
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise ValueError
    return value


def to_double(value: Any) -> float:
    """A finite number."""
    if type(value) is bool or (type(value) is str and not _NUMBER.fullmatch(value)):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def to_boolean(value: Any) -> bool:
    """``true`` or ``false``, also as a text."""
    if type(value) is bool:
        return value
    if type(value) is str and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def to_timestamp(value: Any) -> int:
    """Microseconds since the epoch, from an ISO 8601 text; UTC where it names no offset."""
    if type(value) is not str:
        raise ValueError
    time = dt.datetime.fromisoformat(value)
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return _in_range((time - _EPOCH) // _MICROSECOND)


def from_seconds(value: Any) -> int:
    """Microseconds, from seconds since the epoch; fractions count."""
    return _since_epoch(value, 1_000_000)


def from_milliseconds(value: Any) -> int:
    """The same from milliseconds."""
    return _since_epoch(value, 1_000)


def from_microseconds(value: Any) -> int:
    """The same from microseconds."""
    return _since_epoch(value, 1)


def _since_epoch(value: Any, microseconds: int) -> int:
    if type(value) is int:
        return _in_range(value * microseconds)
    if type(value) is str:
        if not _NUMBER.fullmatch(value):
            raise ValueError
        value = Decimal(value)
    if type(value) is float or type(value) is Decimal:
        scaled = value * microseconds
        if not _TIME_MIN <= scaled <= _TIME_MAX:
            raise ValueError
        return round(scaled)
    raise ValueError


def _in_range(microseconds: int) -> int:
    if not _TIME_MIN <= microseconds <= _TIME_MAX:
        raise ValueError
    return microseconds


def to_date(value: Any) -> dt.date:
    """From a text ``2026-01-02``."""
    if type(value) is not str:
        raise ValueError
    return dt.date.fromisoformat(value)


def decimal_converter(precision: int, scale: int) -> Convert:
    """For ``DECIMAL(precision, scale)``: a number with no more digits than that."""
    context = decimal.Context(
        prec=precision,
        traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow],
        Emin=-999_999,
        Emax=999_999,
    )
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (str, float, int, Decimal)):
            raise ValueError
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise ValueError
        number = value if isinstance(value, (int, Decimal)) else str(value)
        # More digits than the scale are Inexact, more before the point InvalidOperation.
        return Decimal(number).quantize(unit, context=context)

    return convert
