"""The endpoints, derived from the requests of the operator's contract.

A request added there becomes an endpoint here: its tag is the path, its fields are the parameters,
and its answer has the type that the operator's method returns. Read-only requests are GET.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.spi import operate

PREFIX: Final = "/api/v1/"
#: First words of read-only tags: any other tag changes something, or might.
_LOOKS: Final = frozenset({"browse", "count", "explain", "find", "list", "read", "show"})
#: Types whose query parameters are strings in JSON.
_MANY: Final = (
    msgspec.inspect.VarTupleType,
    msgspec.inspect.ListType,
    msgspec.inspect.SetType,
    msgspec.inspect.FrozenSetType,
)


class ParameterError(ValueError):
    """The parameters do not form a request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One request. Attributes: tag, request (its type), answer (its type), many (fields that are lists)."""

    tag: str
    request: type[msgspec.Struct]
    answer: Any
    many: frozenset[str]

    @property
    def path(self) -> str:
        return PREFIX + self.tag

    @property
    def looks(self) -> bool:
        """Whether it only reads."""
        return self.tag.partition("-")[0] in _LOOKS

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.request) or self.tag).partition("\n")[0]

    @property
    def description(self) -> str:
        return inspect.getdoc(self.request) or ""

    def of_query(self, pairs: list[tuple[str, str]]) -> bytes:
        """JSON of the request that a query string asks for. Raises: ParameterError."""
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in self.many:
                values.setdefault(name, []).append(value)
            elif name in values:
                raise ParameterError(f"{name!r} is given twice")
            else:
                values[name] = value
        return self._made(values, strict=False)

    def of_body(self, body: bytes) -> bytes:
        """JSON of the request that a body asks for. Raises: ParameterError."""
        try:
            values = msgspec.json.decode(body or b"{}")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise ParameterError(f"the body is no JSON: {error}") from None
        if not isinstance(values, dict):
            raise ParameterError("the body is no JSON object")
        return self._made(typing.cast("dict[str, Any]", values), strict=True)

    def _made(self, values: Mapping[str, Any], *, strict: bool) -> bytes:
        # A misspelt selector must not count as no selector.
        unknown = [name for name in values if name not in self.request.__struct_fields__]
        if unknown:
            known = ", ".join(self.request.__struct_fields__) or "none"
            raise ParameterError(f"{unknown[0]!r} is no field of {self.tag}; there are: {known}")
        try:
            return msgspec.json.encode(msgspec.convert(values, self.request, strict=strict))
        except (msgspec.ValidationError, RecursionError) as error:
            raise ParameterError(str(error)) from None


def endpoints() -> tuple[Endpoint, ...]:
    """All of them, in the order of the contract."""
    found: list[Endpoint] = []
    for request, name in operate.METHODS.items():
        answer = typing.get_type_hints(getattr(operate.Operator, name))["return"]
        shown = msgspec.inspect.type_info(request)
        assert isinstance(shown, msgspec.inspect.StructType)
        many = frozenset(field.name for field in shown.fields if isinstance(field.type, _MANY))
        found.append(Endpoint(str(shown.tag), request, answer, many))
    return tuple(found)
