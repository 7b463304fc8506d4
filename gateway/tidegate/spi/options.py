"""Typed options: a frozen dataclass is the one description of a configuration table.

A field's annotation and its :func:`option` metadata say how the TOML value is read, what its unit
is, what is allowed, and what the option is for. The reference documentation is made from the same
data, so it cannot drift. Unknown keys are errors that name the nearest key.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from tidegate.spi.errors import ConfigError
from tidegate.spi.units import parse_duration, parse_size

T = TypeVar("T")

_SECRET: Final = re.compile(r"password|passphrase|passcode|secret|token|credential", re.IGNORECASE)
_NOT_SECRET: Final = re.compile(r"_(file|path|directory)$")


def is_secret(name: str) -> bool:
    """Whether the value of option *name* must never be shown, in any listing or error."""
    return bool(_SECRET.search(name)) and not _NOT_SECRET.search(name)


class Kind(enum.Enum):
    """How the value is written."""

    PLAIN = "plain"
    SIZE = "size"  # "32mb"; the field is int, bytes
    DURATION = "duration"  # "500ms"; the field is float, seconds


_META: Final = "tidegate"


@dataclasses.dataclass(frozen=True, slots=True)
class OptionInfo:
    """Description of one option; see :func:`option`."""

    help: str
    kind: Kind = Kind.PLAIN
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    zero: str = ""
    act: str = ""
    metric: str = ""


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    kind: Kind = Kind.PLAIN,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    zero: str = "",
    act: str = "",
    metric: str = "",
) -> Any:
    """A dataclass field that is a configuration option.

    Args:
        default: in the field's own unit (bytes, seconds); omitted: the option is required.
        help: one sentence: what it does and the failure it guards against.
        kind: how it is written; minimum, maximum: in the field's own unit, inclusive.
        choices: allowed strings.
        zero: what 0 means, when it means something special; then ``minimum`` does not apply to 0.
        act: for a limit on clients: what happens to whoever reaches it. The option is then
            listed in docs/limits.md.
        metric: for such a limit: which metric shows how near it is; "" when it is not counted.
    """
    info = OptionInfo(help, kind, minimum, maximum, tuple(choices), zero, act, metric)
    if isinstance(default, (list, dict)):
        kept: Any = cast(Any, default)
        return dataclasses.field(default_factory=lambda: copy.copy(kept), metadata={_META: info})
    return dataclasses.field(default=default, metadata={_META: info})


def option_info(field: dataclasses.Field[Any]) -> OptionInfo:
    """The :class:`OptionInfo` of a dataclass field (an empty one when it has none)."""
    return field.metadata.get(_META, OptionInfo(""))


def parse_options(
    options_type: type[T], table: Mapping[str, object], *, base: Path | None = None
) -> T:
    """Read a TOML table into *options_type*, a frozen dataclass.

    Args: base: directory that relative paths in the table start from; None: the working directory.
    Raises: ConfigError whose key is relative to the table.
    """
    if not dataclasses.is_dataclass(options_type):
        raise TypeError(f"{options_type!r} is not a dataclass")
    fields = {field.name: field for field in dataclasses.fields(options_type)}
    for key in table:
        if key not in fields:
            raise unknown_key(key, fields)
    hints = typing.get_type_hints(options_type)
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _read(name, table[name], hints[name], option_info(field), base)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError("is required, but missing", key=name)
    return cast(T, options_type(**values))


def unknown_key(key: str, known: typing.Iterable[str]) -> ConfigError:
    """The error for *key*, naming the nearest of the *known* keys."""
    names = list(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(sorted(names))}"
    return ConfigError(f"unknown key{hint}", key=key)


def _read(key: str, value: object, annotation: Any, info: OptionInfo, base: Path | None) -> object:
    try:
        result = _convert(value, annotation, info, base)
    except ConfigError as error:  # from a table within it
        raise error.at(prefix=key) from None
    except ValueError as error:
        text = str(error)
        if is_secret(key):
            text = text.replace(repr(value), "its value")
        raise ConfigError(text, key=key) from None
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        _check_range(key, result, info, value)
    return result


def _check_range(key: str, result: float, info: OptionInfo, written: object) -> None:
    if result == 0 and info.zero:
        return
    if info.minimum is not None and result < info.minimum:
        raise ConfigError(f"{written!r} is below the minimum of {info.minimum:g}", key=key)
    if info.maximum is not None and result > info.maximum:
        raise ConfigError(f"{written!r} is above the maximum of {info.maximum:g}", key=key)


def _convert(value: object, annotation: Any, info: OptionInfo, base: Path | None = None) -> object:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = inner[0]
    if info.kind is not Kind.PLAIN:
        return _convert_quantity(value, info.kind, info)
    origin: Any = typing.get_origin(annotation) or annotation
    if origin is bool:
        return _expect(value, bool, "true or false")
    if origin is int:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is not a whole number")
        return _expect(value, int, "a whole number")
    if origin is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{value!r} is not a number")
        if not abs(value) <= sys.float_info.max:  # also refuses nan, which TOML allows
            raise ValueError(f"{value!r} is not a finite number")
        return float(value)
    if origin is str:
        text = cast(str, _expect(value, str, "a string in quotes"))
        if info.choices and text not in info.choices:
            raise ValueError(f"{text!r} is not one of {', '.join(map(repr, info.choices))}")
        return text
    if origin is Path:
        path = cast(str, _expect(value, str, "a path in quotes"))
        if not path:
            raise ValueError("must not be empty")
        return Path(path) if base is None else base / path
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return _convert_enum(value, origin)
    if origin is tuple:
        items = cast("list[object]", _expect(value, list, "a list"))
        inner = typing.get_args(annotation)[0]
        one = OptionInfo("", choices=info.choices)
        return tuple(
            _convert_item(position, item, inner, one, base) for position, item in enumerate(items)
        )
    if origin is dict:
        return _convert_dict(value)
    if dataclasses.is_dataclass(cast("object", origin)):
        table = cast("dict[str, object]", _expect(value, dict, "a table"))
        return parse_options(cast("type[object]", origin), table, base=base)
    raise TypeError(f"options of type {annotation!r} are not supported")


def _convert_item(
    position: int, item: object, annotation: Any, info: OptionInfo, base: Path | None
) -> object:
    try:
        return _convert(item, annotation, info, base)
    except ConfigError as error:  # from a table: the prefix says which one
        raise error.at(prefix=f"[{position}]") from None


def _convert_quantity(value: object, kind: Kind, info: OptionInfo) -> object:
    if not isinstance(value, str):
        if value == 0 and info.zero and not isinstance(value, bool):
            return 0 if kind is Kind.SIZE else 0.0
        example = "'32mb'" if kind is Kind.SIZE else "'500ms'"
        raise ValueError(f"{value!r} has no unit; write a string such as {example}")
    return parse_size(value) if kind is Kind.SIZE else parse_duration(value)


def _convert_enum(value: object, choices: type[enum.Enum]) -> enum.Enum:
    names = {str(member.value).lower(): member for member in choices}
    if not isinstance(value, str) or value.lower() not in names:
        allowed = ", ".join(repr(str(member.value)) for member in choices)
        raise ValueError(f"{value!r} is not one of {allowed}")
    return names[value.lower()]


def _convert_dict(value: object) -> dict[str, str]:
    table = cast("dict[str, object]", _expect(value, dict, "a table"))
    for key, item in table.items():
        if not isinstance(item, str):
            raise ValueError(f"{key}: its value ({type(item).__name__}) is not a string in quotes")
    return cast("dict[str, str]", dict(table))


def _expect(value: object, wanted: type, description: str) -> object:
    if not isinstance(value, wanted):
        raise ValueError(f"{value!r} is not {description}")
    return value
