"""Options as tables: those of docs/configuration.md are made here from the declarations
(:func:`tidegate.spi.option`), so neither can drift from the code."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from tidegate.config import plain_value, toml_text
from tidegate.spi import Kind, OptionInfo, format_duration, format_size, option_info

_WORDS: Final[Mapping[object, str]] = {
    bool: "`true` or `false`",
    int: "number",
    float: "decimal number",
    str: "string",
    Path: "path",
    dict: "table of strings",
}


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
        inner = _table_within(hints[field.name])
        if inner is not None:
            nested = option_table(inner).splitlines()[2:]
            rows += [row.replace("| `", f"| `{field.name}[].", 1) for row in nested]
    if len(rows) == 2:
        return "No options of its own.\n"
    return "\n".join(rows) + "\n"


def _table_within(annotation: Any) -> type | None:
    """What each table of a list of tables is read into."""
    if typing.get_origin(annotation) is not tuple:
        return None
    inner = cast("type", typing.get_args(annotation)[0])
    return inner if hasattr(inner, "__dataclass_fields__") else None


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
    return f"`{toml_text(plain_value(value, info))}`"


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
    if hasattr(cast("object", origin), "__dataclass_fields__"):
        return "table"
    return _WORDS.get(cast("object", origin), repr(annotation))


def _bound(bound: float | None, info: OptionInfo) -> str:
    if bound is None:
        return ""
    if info.kind is Kind.SIZE:
        return f'`"{format_size(int(bound))}"`'
    if info.kind is Kind.DURATION:
        return f'`"{format_duration(bound)}"`'
    return f"{bound:.0f}" if bound == int(bound) else f"{bound:g}"
