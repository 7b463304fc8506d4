"""The documents' names for the options of ``[[destinations]]``, read as our own options.

They come from FUSE's chapter on cursors (here) and Artemis's on paging (``_paging_names``), in the
documents' spelling or in snake_case. docs/cursors.md has a row for each. None may stand beside the
option that it is another name for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Final

from tidegate.config._document_names import DocumentName, Given, Written, snake_case
from tidegate.config._paging_names import FULL_POLICY, PAGE, PAGING_ELSEWHERE, PAGING_NAMES
from tidegate.config._policies import SPOOLED, DestinationPolicy
from tidegate.spi import ConfigError, unknown_key

#: By option: FUSE's names for it, and our names for its cursors. The last cursor name of each is
#: ActiveMQ's name for the cursor that FUSE does not name, because it is the default. FUSE's examples
#: spell the name for ``durable_cursor`` in two ways.
_CURSORS: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "cursor": (
        ("pendingQueuePolicy",),
        {"vmQueueCursor": "vm", "fileQueueCursor": "file", "storeCursor": "store"},
    ),
    "subscriber_cursor": (
        ("pendingSubscriberPolicy",),
        {"vmCursor": "vm", "fileCursor": "file"},
    ),
    "durable_cursor": (
        (
            "pendingDurableSubscriberMessageStoragePolicy",
            "PendingDurableSubscriberMessageStoragePolicy",
            "pendingDurableSubscriberPolicy",
        ),
        {
            "vmDurableCursor": "vm",
            "fileDurableSubscriberCursor": "file",
            "fileDurableSubscriberPolicy": "file",
            "storeDurableSubscriberCursor": "store",
        },
    ),
}


def _read_cursor(option: str, value: object, table: Written) -> Iterable[Given]:
    for name, ours in _CURSORS[option][1].items():
        if value in (name, snake_case(name)):
            return [(option, ours)]
    wanted = ", ".join(map(repr, _CURSORS[option][1]))
    for (key, *_), values in _CURSORS.values():
        if any(value in (name, snake_case(name)) for name in values):
            raise ValueError(f"{value!r} is a value of {key}; here use one of {wanted}")
    raise ValueError(f"{value!r} is not one of {wanted}; or use {option} instead")


def _read_tmp_storage(value: object, table: Written) -> Iterable[Given]:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false; or use non_persistent instead")
    return [("non_persistent", SPOOLED if value else "store")]


_HIGH_WATER: Final = "cursor_memory_high_water_mark"

CURSOR_NAMES: Final = (
    *(
        DocumentName(written, (option,), partial(_read_cursor, option), values)
        for option, (written, values) in _CURSORS.items()
    ),
    DocumentName(("tmp-storage",), ("non_persistent",), _read_tmp_storage),
    DocumentName(
        ("cursorMemoryHighWaterMark",), (_HIGH_WATER,), lambda value, _: [(_HIGH_WATER, value)]
    ),
)
#: What the chapters have that is not an option of destinations, and what replaces it here.
ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("destinationPolicy", "policyMap", "policyEntries", "policyEntry"),
        "each [[destinations]] table takes the place of a policyEntry",
    ),
    "queue": 'write match = "queue://NAME"',
    "topic": 'write match = "topic://NAME"',
    **PAGING_ELSEWHERE,
}
#: Each name in every accepted spelling.
SPELLINGS: Final[Mapping[str, DocumentName]] = {
    spelling: name
    for name in (*CURSOR_NAMES, *PAGING_NAMES)
    for written in name.written
    for spelling in (written, snake_case(written))
}


def translated(table: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """A ``[[destinations]]`` table with only our own options.

    Returns: the table, and by option the key under which it was written.
    Raises: ConfigError that names the key as it was written.
    """
    known = [field.name for field in fields(DestinationPolicy)]
    whole = Written(
        {SPELLINGS[key].written[0] if key in SPELLINGS else key: v for key, v in table.items()}
    )
    given: dict[str, object] = {}
    written: dict[str, str] = {}
    for key, value in table.items():
        try:
            if key in SPELLINGS:
                found = SPELLINGS[key].read(value, whole)
            elif key in known:
                found = [(key, value)]
            else:
                raise _unknown(key, known)
        except ValueError as error:
            raise ConfigError(str(error), key=key) from None
        for option, its_value in found:
            if option in written:
                raise _twice(option, written[option], key)
            given[option], written[option] = its_value, key
    return given, written


def paging_key(table: Mapping[str, object]) -> str:
    """The key of *table* that asks for paging rather than another policy; "" when there is none."""
    for key, value in table.items():
        if key in SPELLINGS and SPELLINGS[key].written[0] == FULL_POLICY:
            return key if str(value).upper() == PAGE else ""
    return ""


def _unknown(key: str, known: Iterable[str]) -> ConfigError:
    for name, instead in ELSEWHERE.items():
        if key in (name, snake_case(name)):
            return ConfigError(f"is not an option of destinations: {instead}", key=key)
    return unknown_key(key, [*known, *SPELLINGS])


def _twice(option: str, first: str, second: str) -> ConfigError:
    if option in (first, second):
        other = second if option == first else first
        return ConfigError(f"is another name for {option}; keep only one of them", key=other)
    return ConfigError(f"means {option}, as {first} does; keep only one of them", key=second)
