"""Options as a configuration file writes them, without secrets: for people and operators."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from tidegate.spi import Kind, OptionInfo, format_duration, format_size, option_info
from tidegate.spi.options import is_secret

#: Keys in a table of strings whose values are secrets: for Spark's settings for object stores.
_SECRET_KEY: Final = re.compile(
    r"password|passphrase|passcode|secret|token|credential|(access|account|private|api|encryption)[._-]?key|(^|[._])sas([._]|$)",
    re.IGNORECASE,
)
#: A secret inside a value: ``-Dfs.s3a.secret.key=…`` among Java's options.
_SECRET_INSIDE: Final = re.compile(rf"([^\s=]*(?:{_SECRET_KEY.pattern})[^\s=]*=)\S+", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]*@")
HIDDEN: Final = "***"


def option_values(options: object) -> dict[str, object]:
    """Each option of *options*, a dataclass instance, as by :func:`option_value`."""
    return {
        field.name: option_value(field, getattr(options, field.name))
        for field in dataclasses.fields(cast("Any", options))
    }


def option_value(field: dataclasses.Field[Any], value: object) -> object:
    """*value* of *field* as a file would give it: ``"64mb"``, not 67108864; a password hidden.

    Returns: str, int, float, bool, None, or a list or dict of these.
    """
    if is_secret(field.name) and value:
        return HIDDEN
    return plain_value(value, option_info(field))


def toml_text(value: object) -> str:
    """A value of :func:`option_value` as TOML; "unset" for None, which TOML cannot write."""
    if value is None:
        return "unset"
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        items = (f"{json.dumps(key)} = {toml_text(item)}" for key, item in table.items())
        return "{ " + ", ".join(items) + " }" if table else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_text, cast("list[object]", value))) + "]"
    return json.dumps(value, ensure_ascii=False)


def options_set(options: object) -> dict[str, str]:
    """Those of *options*, a dataclass instance, that differ from their defaults, as TOML."""
    return {
        field.name: toml_text(option_value(field, getattr(options, field.name)))
        for field in dataclasses.fields(cast("Any", options))
        if getattr(options, field.name) != _default(field)
    }


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default  # MISSING for a required option


def plain_value(value: object, info: OptionInfo) -> object:
    """*value* as a file would give it: ``"64mb"``, not 67108864."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain_value(value.value, OptionInfo(""))
    if isinstance(value, (int, float)):
        if value == 0 and info.zero:
            return 0
        if info.kind is Kind.PLAIN:
            return value
        return format_size(int(value)) if info.kind is Kind.SIZE else format_duration(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {
            str(key): HIDDEN if item and _SECRET_KEY.search(str(key)) else plain_value(item, info)
            for key, item in table.items()
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: option_value(field, getattr(value, field.name))
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, (tuple, list, frozenset)):
        return [plain_value(item, info) for item in cast("tuple[object, ...]", value)]
    return _SECRET_INSIDE.sub(rf"\1{HIDDEN}", _USER_INFO.sub(rf"\1:{HIDDEN}@", str(value)))
