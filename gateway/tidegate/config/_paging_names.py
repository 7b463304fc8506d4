"""Artemis's names for paging and slow consumers (its address settings), read as our own options.

``address-full-policy`` says what ``max-size-…`` limit: with PAGE the memory of the cursor, otherwise all
that the list may hold. ``page-limit-…`` limit the latter with PAGE. In Artemis they count everything an
address holds; here they count each queue and each durable subscription separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from tidegate.config._document_names import DocumentName, Given, Written
from tidegate.spi import parse_size

FULL_POLICY: Final = "address-full-policy"
PAGE: Final = "PAGE"
#: Our names for what Artemis does where it does not page.
_ACTS: Final = {"BLOCK": "slow", "FAIL": "refuse", "DROP": "drop_newest"}
_FULL_ACTS: Final = {name: _ACTS[name] for name in ("FAIL", "DROP")}
_UNLIMITED: Final = -1
#: Our names for what Artemis does with a slow consumer.
_SLOW_ACTS: Final = {"NOTIFY": "tell", "KILL": "disconnect"}
#: ``page_count`` for "as many as there are": its highest value.
_PAGE_COUNT_MOST: Final = 65_535


def _number(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-1|\d+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < _UNLIMITED:
        raise ValueError(f"{value!r} is neither a number of messages nor -1 for no limit")
    return value


def _size(value: object) -> int:
    """Bytes. A bare number is accepted: the option's name ends with its unit."""
    if isinstance(value, str) and not re.fullmatch(r"-1|\d+", value):
        return parse_size(value)
    try:
        return _number(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither a size such as '10M' nor -1 for no limit") from None


def _limit(read: Callable[[object], int], value: object) -> object:
    """In our notation: 0 for no limit, sizes with a unit."""
    found = read(value)
    if not found:
        raise ValueError("0 would accept nothing; write -1 for no limit")
    if found == _UNLIMITED:
        return 0
    return f"{found}b" if read is _size else found


def _full_policy(table: Written) -> str:
    return str(table.table.get(FULL_POLICY, PAGE)).upper()


def _act(value: object, acts: Mapping[str, str], others: tuple[str, ...] = ()) -> str:
    if not isinstance(value, str) or value.upper() not in (*others, *acts):
        wanted = ", ".join(map(repr, (*others, *acts)))
        raise ValueError(f"{value!r} is not one of {wanted}")
    return acts.get(value.upper(), "")


def _each(option: str, value: object, table: Written) -> Iterable[Given]:
    options = table.both(option)
    if not options:
        raise ValueError("has no effect: temporary destinations use the limits of their cursor")
    return [(name, value) for name in options]


def _is_limited(table: Written, bytes_name: str, messages_name: str) -> bool:
    """Whether one of the two is given and is a limit."""
    return any(
        table.table.get(name, _UNLIMITED) not in (_UNLIMITED, str(_UNLIMITED))
        for name in (bytes_name, messages_name)
    )


def _read_full_policy(value: object, table: Written) -> Iterable[Given]:
    act = _act(value, _ACTS, (PAGE,))
    if not act:
        return []
    if not _is_limited(table, "max-size-bytes", "max-size-messages"):
        raise ValueError(f"has no effect: {value} needs max-size-bytes or max-size-messages")
    return _each("overflow", act, table)


def _read_max_size(
    paged: str, unpaged: str, read: Callable[[object], int], value: object, table: Written
) -> Iterable[Given]:
    if _full_policy(table) != PAGE:
        return _each(unpaged, _limit(read, value), table)
    found = read(value)
    if read is _number:
        return [(paged, max(found, 1) if found != _UNLIMITED else 0)]
    if found == _UNLIMITED:
        raise ValueError(
            f"{paged} always has a limit; remove the key to use the default, and see "
            "cursor_memory_limit in [broker] for the limit of all together"
        )
    return [(paged, f"{max(found, 1)}b")]


def _read_page_limit(
    option: str, read: Callable[[object], int], value: object, table: Written
) -> Iterable[Given]:
    if _full_policy(table) != PAGE:
        raise ValueError(f"has no effect with {FULL_POLICY} = '{_full_policy(table)}'")
    if "page-full-policy" not in table.table:
        raise ValueError(
            "has no effect: choose with page-full-policy what happens at the limit, FAIL or DROP"
        )
    return _each(option, _limit(read, value), table)


def _read_page_full_policy(value: object, table: Written) -> Iterable[Given]:
    act = _act(value, _FULL_ACTS)
    if not _is_limited(table, "page-limit-bytes", "page-limit-messages"):
        raise ValueError("has no effect without page-limit-bytes or page-limit-messages")
    return _each("overflow", act, table)


def _read_page_count(value: object, table: Written) -> Iterable[Given]:
    found = _number(value)
    return [("page_count", _PAGE_COUNT_MOST if found == _UNLIMITED else found)]


def _read_page_bytes(value: object, table: Written) -> Iterable[Given]:
    return [("page_bytes", _limit(_size, value))]


def _read_slow_threshold(value: object, table: Written) -> Iterable[Given]:
    try:
        found = _number(value)
    except ValueError:
        raise ValueError(
            f"{value!r} is neither a number of messages per second nor -1 for off; "
            "slow_consumer_rate allows fractions"
        ) from None
    if not found:
        raise ValueError("0 would never match; write -1 for off")
    return [("slow_consumer_rate", max(found, 0))]


def _read_slow_policy(value: object, table: Written) -> Iterable[Given]:
    return [("slow_consumer_act", _act(value, _SLOW_ACTS))]


PAGING_NAMES: Final = (
    DocumentName((FULL_POLICY,), ("overflow",), _read_full_policy, {PAGE: "", **_ACTS}),
    DocumentName(
        ("max-size-bytes",),
        ("memory_limit", "bytes_max"),
        partial(_read_max_size, "memory_limit", "bytes_max", _size),
    ),
    DocumentName(
        ("max-size-messages",),
        ("memory_messages", "messages_max"),
        partial(_read_max_size, "memory_messages", "messages_max", _number),
    ),
    DocumentName(
        ("page-limit-bytes",), ("bytes_max",), partial(_read_page_limit, "bytes_max", _size)
    ),
    DocumentName(
        ("page-limit-messages",),
        ("messages_max",),
        partial(_read_page_limit, "messages_max", _number),
    ),
    DocumentName(
        ("page-full-policy", "page-limit-policy"), ("overflow",), _read_page_full_policy, _FULL_ACTS
    ),
    DocumentName(
        ("max-read-page-messages", "prefetch-page-messages"), ("page_count",), _read_page_count
    ),
    DocumentName(
        ("max-read-page-bytes", "prefetch-page-bytes", "page-size-bytes"),
        ("page_bytes",),
        _read_page_bytes,
    ),
    DocumentName(("slow-consumer-threshold",), ("slow_consumer_rate",), _read_slow_threshold),
    DocumentName(("slow-consumer-policy",), ("slow_consumer_act",), _read_slow_policy, _SLOW_ACTS),
)
#: What the chapters have that is not an option of destinations, and what replaces it here.
PAGING_ELSEWHERE: Final[Mapping[str, str]] = {
    "page-max-cache-size": "use max-read-page-messages and max-read-page-bytes to set how much is read",
    "page-sync-timeout": "spools are not synced, because they do not outlive the process",
    "slow-consumer-check-period": "all consumers are checked every 10 seconds",
    "slow-consumer-threshold-measurement-unit": "slow_consumer_rate is in messages per second, from 0.1",
    "paging-directory": "spools are in data_directory of [broker]",
    "global-max-size": "use cursor_memory_limit and unstored_memory_limit in [broker]",
    "global-max-messages": "use cursor_memory_limit and unstored_memory_limit in [broker]",
    "max-disk-usage": "use store_limit, disk_free_limit and temporary_space in [broker]",
    "min-disk-free": "use disk_free_limit and temporary_free_limit in [broker]",
}
