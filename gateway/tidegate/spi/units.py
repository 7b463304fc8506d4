"""Sizes and times as the seed documents write them: ``"32mb"``, ``"256 MB"``, ``"1G"``, ``"500ms"``.

Case and white space do not matter; one-, two- and three-letter (``kib``) size units mean the same
power of 1024 (AMQ message store, attribute ``maxFileLength``). Unlike the seeds, a bare number is
an error in the configuration: whether ``6000`` means milliseconds or seconds is exactly the
mistake that units prevent.
"""

from __future__ import annotations

import re
import time
from typing import Final

_SIZE_FACTORS: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_FACTORS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """Parse a size such as ``"1024kb"`` into bytes.

    Raises: ValueError that says what is accepted.
    """
    match = _QUANTITY.fullmatch(text.strip().lower())
    unit = match.group(2) if match else ""
    letter = unit[:1]
    if match is None or letter not in _SIZE_FACTORS or unit[1:] not in ("", "b", "ib"):
        raise ValueError(f"{text!r} is not a size; write a number and a unit, e.g. '32mb' or '1G'")
    return int(float(match.group(1)) * _SIZE_FACTORS[letter])


def parse_duration(text: str) -> float:
    """Parse a time such as ``"500ms"`` or ``"30s"`` into seconds.

    Raises: ValueError that says what is accepted.
    """
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match.group(2) not in _TIME_FACTORS_US:
        raise ValueError(
            f"{text!r} is not a time; write a number and a unit (us, ms, s, min, h, d), e.g. '500ms'"
        )
    return float(match.group(1)) * _TIME_FACTORS_US[match.group(2)] / 1_000_000


def format_size(size_bytes: int) -> str:
    """Write *size_bytes* the way :func:`parse_size` reads it, exactly, in the largest whole unit."""
    for unit, factor in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}b"


def format_duration(seconds: float) -> str:
    """Write *seconds* the way :func:`parse_duration` reads it, to the microsecond."""
    microseconds = round(seconds * 1_000_000)
    for unit, factor in (
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("min", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
    ):
        if microseconds and microseconds % factor == 0:
            return f"{microseconds // factor}{unit}"
    return f"{microseconds}us" if microseconds else "0s"


def moment(seconds: float) -> str:
    """Seconds since the Unix epoch for people, in UTC: ``2026-11-24T02:26:19Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
