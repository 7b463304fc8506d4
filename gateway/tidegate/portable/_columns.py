"""Columns from the contract's own types, so that a field added to one of them is carried automatically.

Each field becomes a column of its name: text and bytes as they are, whole numbers as int64, an
enumeration by its member's name in lower case, a tuple as a list, a mapping as a map, a structure
inside another as a struct. A field that no column fits is an error when the module is imported,
never a silent loss.
"""

from __future__ import annotations

import enum
import functools
import importlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

pa: Final[Any] = importlib.import_module("pyarrow")

_PAIR: Final = tuple[str, str]
_UINT64: Final = frozenset({"sequence", "pending_list", "ack_sequence"})

Encode = Callable[[Any], Any]


def arrow_fields(struct: type) -> list[Any]:
    """The Arrow fields of a structure of the contract. Raises: TypeError."""
    return [
        pa.field(name, _arrow_type(annotation, name), nullable=True)
        for name, annotation in _annotations(struct).items()
    ]


def encode_row(value: msgspec.Struct) -> dict[str, Any]:
    """A structure as one row: values that fit :func:`arrow_fields`."""
    return {
        name: encode(getattr(value, name)) if encode is not None else getattr(value, name)
        for name, encode in _encoders(type(value))
    }


def decode_row(struct: type, row: Mapping[str, Any]) -> Any:
    """The structure of a row; a missing or null column gives the field's default.

    Raises: ValueError when a value does not fit, or one without a default is missing.
    """
    values: dict[str, Any] = {}
    for name, decode in _decoders(struct):
        value = row.get(name)
        if value is not None:
            values[name] = decode(value) if decode is not None else value
    try:
        return struct(**values)
    except TypeError as error:
        raise ValueError(f"a row of {struct.__name__} is incomplete: {error}") from error


@functools.cache
def _annotations(struct: type) -> dict[str, Any]:
    hints = typing.get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}  # type: ignore[attr-defined]


@functools.cache
def _encoders(struct: type) -> list[tuple[str, Encode | None]]:
    return [(name, _encoder(annotation)) for name, annotation in _annotations(struct).items()]


@functools.cache
def _decoders(struct: type) -> list[tuple[str, Encode | None]]:
    return [(name, _decoder(annotation)) for name, annotation in _annotations(struct).items()]


def _optional(annotation: Any) -> Any:
    """``X`` of ``X | None``; anything else as it is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(parts) == 1:
            return parts[0]
    return annotation


def _item(annotation: Any) -> Any:
    """``X`` of ``tuple[X, ...]``; None for anything else."""
    parts = typing.get_args(annotation)
    is_list = typing.get_origin(annotation) is tuple and len(parts) == 2 and parts[1] is Ellipsis
    return parts[0] if is_list else None


def _parts(annotation: Any) -> tuple[Any, ...]:
    """``X, Y`` of ``tuple[X, Y]``, a list of fixed length; () for anything else."""
    parts = typing.get_args(annotation)
    is_fixed = typing.get_origin(annotation) is tuple and Ellipsis not in parts
    return parts if is_fixed else ()


def _arrow_type(annotation: Any, name: str) -> Any:
    annotation = _optional(annotation)
    simple = {str: pa.string(), bytes: pa.large_binary(), bool: pa.bool_(), float: pa.float64()}
    if annotation in simple:
        return simple[annotation]
    if annotation is int:
        return pa.uint64() if name in _UINT64 else pa.int64()
    item = _item(annotation)
    if item == _PAIR:
        return pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())]))
    if item is not None:
        return pa.list_(_arrow_type(item, name))
    if parts := _parts(annotation):
        return pa.struct([pa.field(f"_{n}", _arrow_type(p, name)) for n, p in enumerate(parts)])
    if annotation == dict[str, str]:
        return pa.map_(pa.string(), pa.string())
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return pa.string()
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return pa.struct(arrow_fields(annotation))
    raise TypeError(f"no column of the portable format fits {name}: {annotation}")


def _encoder(annotation: Any) -> Encode | None:
    """Turns a field's value into a column's; None when they are the same."""
    annotation = _optional(annotation)
    item = _item(annotation)
    if item == _PAIR:
        return lambda value: [{"name": name, "value": text} for name, text in value]
    if item is not None:
        inner = _encoder(item)
        return list if inner is None else lambda value: [inner(one) for one in value]
    if parts := _parts(annotation):
        inner_ones = [_encoder(part) for part in parts]
        return lambda value: {
            f"_{n}": one if encode is None else encode(one)
            for n, (encode, one) in enumerate(zip(inner_ones, value, strict=True))
        }
    if annotation == dict[str, str]:
        return lambda value: list(value.items())
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return lambda value: cast("enum.Enum", value).name.lower()
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return lambda value: None if value is None else encode_row(value)
    return None


def _decoder(annotation: Any) -> Encode | None:
    annotation = _optional(annotation)
    item = _item(annotation)
    if item == _PAIR:
        return lambda value: tuple((pair["name"], pair["value"]) for pair in value)
    if item is not None:
        inner = _decoder(item)
        return tuple if inner is None else lambda value: tuple(inner(one) for one in value)
    if parts := _parts(annotation):
        inner_ones = [_decoder(part) for part in parts]
        return lambda value: tuple(
            value[f"_{n}"] if decode is None else decode(value[f"_{n}"])
            for n, decode in enumerate(inner_ones)
        )
    if annotation == dict[str, str]:
        return lambda value: dict(cast("Sequence[tuple[str, str]]", value))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        members = {member.name.lower(): member for member in annotation}
        return lambda value: _member(members, value)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return lambda value: decode_row(annotation, value)
    return None


def _member(members: Mapping[str, enum.Enum], value: str) -> enum.Enum:
    try:
        return members[value]
    except KeyError:
        raise ValueError(f"{value!r} is not one of {', '.join(members)}") from None
