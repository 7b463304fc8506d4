"""Options as text: each value the way the configuration file takes it, each type as a table.

Both the output of ``tidegate check-config`` and the tables in docs/configuration.md are made here
from the declarations (:func:`tidegate.spi.option`), so neither can drift from the code.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from tidegate.spi import Kind, OptionInfo, format_duration, format_size, option_info
from tidegate.spi.options import is_secret

#: Keys of a table of strings whose values are secrets: of Spark's settings for object stores.
_SECRET_KEY: Final = re.compile(
    r"password|passphrase|passcode|secret|token|credential|(access|account|private|api|encryption)[._-]?key|(^|[._])sas([._]|$)",
    re.IGNORECASE,
)
#: A secret inside a value: ``-Dfs.s3a.secret.key=…`` among Java's options.
_SECRET_INSIDE: Final = re.compile(rf"([^\s=]*(?:{_SECRET_KEY.pattern})[^\s=]*=)\S+", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]*@")
HIDDEN: Final = "***"
_WORDS: Final[Mapping[object, str]] = {
    bool: "`true` or `false`",
    int: "number",
    float: "decimal number",
    str: "string",
    Path: "path",
    dict: "table of strings",
}


def option_values(options: object) -> dict[str, object]:
    """Each option of *options*, a dataclass instance, as :func:`option_value`."""
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
    return _plain(value, option_info(field))


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


def option_table(options_type: type, *, skip: tuple[str, ...] = ()) -> str:
    """A Markdown table of the options of *options_type*, one row each, ending with a newline."""
    rows = ["| Option | Written as | Default | What it does, and what it guards against |"]
    rows.append("| --- | --- | --- | --- |")
    hints = typing.get_type_hints(options_type)
    for field in dataclasses.fields(options_type):
        if field.name in skip:
            continue
        info = option_info(field)
        cells = (
            f"`{field.name}`",
            _written_as(hints[field.name], info),
            _default(field, info),
            " ".join(info.help.split()),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if len(rows) == 2:
        return "No options of its own.\n"
    return "\n".join(rows) + "\n"


def limit_table(options_type: type) -> str:
    """A Markdown table of the options of *options_type* that have an ``act``; "" when none has."""
    rows: list[str] = []
    for field in dataclasses.fields(options_type):
        info = option_info(field)
        if info.act:
            metric = f"`{info.metric}`" if info.metric else ""
            default = info.zero if field.default == 0 and info.zero else _default(field, info)
            cells = (f"`{field.name}`", default, info.act, metric)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if not rows:
        return ""
    head = ("| Limit | Default | At the limit | Metric |", "| --- | --- | --- | --- |")
    return "\n".join((*head, *rows)) + "\n"


def _default(field: dataclasses.Field[Any], info: OptionInfo) -> str:
    if field.default is not dataclasses.MISSING:
        value: object = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    if value is None or (value == "" and not info.choices):
        return "left out"
    return f"`{toml_text(_plain(value, info))}`"


def _written_as(annotation: Any, info: OptionInfo) -> str:
    """What a user may write: the type in words, its limits, and what 0 means."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    text = _type_in_words(annotation, info)
    low, high = (_bound(bound, info) for bound in (info.minimum, info.maximum))
    if low and high:
        text += f", {low} to {high}"
    elif low:
        text += f", at least {low}"
    elif high:
        text += f", at most {high}"
    return f"{text}; `0` = {info.zero}" if info.zero else text


def _type_in_words(annotation: Any, info: OptionInfo) -> str:
    origin: Any = typing.get_origin(annotation) or annotation
    choices: list[str] = list(info.choices)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        choices = [str(member.value) for member in origin]
    if choices and origin is not tuple:
        return " or ".join(f'`"{choice}"`' for choice in choices)
    if info.kind is Kind.SIZE:
        return "size"
    if info.kind is Kind.DURATION:
        return "time"
    if origin is tuple:
        inner = _type_in_words(typing.get_args(annotation)[0], info)
        return f"list, each {inner}"
    return _WORDS.get(cast("object", origin), repr(annotation))


def _bound(bound: float | None, info: OptionInfo) -> str:
    if bound is None:
        return ""
    if info.kind is Kind.SIZE:
        return f'`"{format_size(int(bound))}"`'
    if info.kind is Kind.DURATION:
        return f'`"{format_duration(bound)}"`'
    return f"{bound:.0f}" if bound == int(bound) else f"{bound:g}"


def _plain(value: object, info: OptionInfo) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value, OptionInfo(""))
    if isinstance(value, (int, float)):
        if value == 0 and info.zero:
            return 0
        if info.kind is Kind.PLAIN:
            return value
        return format_size(int(value)) if info.kind is Kind.SIZE else format_duration(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {
            str(key): HIDDEN if item and _SECRET_KEY.search(str(key)) else _plain(item, info)
            for key, item in table.items()
        }
    if isinstance(value, (tuple, list, frozenset)):
        return [_plain(item, info) for item in cast("tuple[object, ...]", value)]
    return _SECRET_INSIDE.sub(rf"\1{HIDDEN}", _USER_INFO.sub(rf"\1:{HIDDEN}@", str(value)))
