"""Presets: the names, sizes and layout that a seed document has, as defaults for our options.

An option that is set wins over the preset. What each preset sets is the table here and nothing
else, so ``docs/store-journal.md`` is tested against it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidegate.spi import StoreContext

#: Every destination: the value of ``per_destination`` for the flat-file layout.
ALL_DESTINATIONS: Final = ("queue://>", "topic://>")

_MIB: Final = 1 << 20

#: Option → value, for each preset. Values that equal the default are there on purpose: they are the
#: document's, and stay when our defaults change.
PRESETS: Final[Mapping[str, Mapping[str, object]]] = {
    "kahadb": {
        "directory": "kahadb",
        "journal_max_file_length": 32 * _MIB,
        "checkpoint_interval": 5.0,
        "cleanup_interval": 30.0,
        "directory_archive": "archive",
    },
    "amq": {
        "directory": "activemq-data/{gateway}",
        "journal_max_file_length": 32 * _MIB,
        "checkpoint_interval": 6.0,
        "cleanup_interval": 30.0,
        "directory_archive": "archive",
    },
    "artemis": {
        "directory": "data",
        "journal_max_file_length": 10 * _MIB,
        "journal_min_files": 2,
        "journal_pool_files": -1,
        "journal_compact_min_files": 10,
        "journal_compact_percentage": 30,
    },
    "flatfile": {
        "directory": "instances/{gateway}/fs350",
        "per_destination": ALL_DESTINATIONS,
        "max_record_size": _MIB,
        "filepool_limit": 100,
        "filepool_cleanratio": 0,
        "message_cleanup": False,
    },
}
NO_PRESET: Final = "none"
CHOICES: Final = (NO_PRESET, *PRESETS)

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class Default:
    """Marks a value that nobody set: it differs from the same value set by a user."""

    __slots__ = ()


class DefaultInt(Default, int):
    """A number."""


class DefaultFloat(Default, float):
    """A time."""


class DefaultText(Default, str):
    """A word."""

    __slots__ = ()


class DefaultList(Default, tuple[str, ...]):
    """Several of them."""

    __slots__ = ()


_DEFAULTS: Final = {int: DefaultInt, float: DefaultFloat, str: DefaultText, tuple: DefaultList}


def is_default(value: object) -> bool:
    """Tell whether nobody set *value*; True and False cannot be told apart."""
    return isinstance(value, Default)


def preset_values(preset: str) -> dict[str, object]:
    """The options that *preset* sets, each marked as set by nobody."""
    values = PRESETS.get(preset, {})
    return {
        key: _DEFAULTS[type(value)](value) if type(value) in _DEFAULTS else value  # type: ignore[arg-type]
        for key, value in values.items()
    }


def directory_of(context: StoreContext, directory: str) -> Path:
    """Where the store is: ``{gateway}`` is the gateway's name in characters that any disk takes."""
    name = _UNSAFE.sub("_", context.gateway_name) or "_"
    return context.data_directory / directory.replace("{gateway}", name)
