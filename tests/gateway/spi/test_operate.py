"""The operator's contract: each request has a method, and what travels arrives as it was."""

from __future__ import annotations

import typing
from typing import Any, get_args

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.broker.operate.operations import Operations
from tidegate.spi import Identity, operate
from tidegate.spi.operate import METHODS, Answer, Operator, Request

ME = Identity("local:me", frozenset(), "", "", "operator")


class Recording:
    """An operator that says which of its methods was called."""

    def __getattr__(self, name: str) -> Any:
        async def method(_who: object, request: object) -> object:
            return name, request

        return method


def of(described: mi.Type) -> st.SearchStrategy[Any]:
    """Anything of the type *described*, as it is decoded from."""
    match described:
        case mi.StructType(array_like=True):
            return st.tuples(*[of(field.type) for field in described.fields]).map(list)
        case mi.StructType() | mi.DataclassType():
            fields = {field.encode_name: of(field.type) for field in described.fields}
            made = st.fixed_dictionaries(fields)
            tag = getattr(described, "tag", None)
            return made.map(lambda found: {"type": tag, **found}) if tag is not None else made
        case mi.UnionType():
            return st.one_of([of(item) for item in described.types])
        case mi.EnumType():
            return st.sampled_from([item.value for item in described.cls])
        case mi.IntType():
            low = described.ge if described.ge is not None else -(1 << 63)
            return st.integers(low, described.le if described.le is not None else (1 << 63) - 1)
        case mi.FloatType():
            return st.floats(described.ge, described.le, allow_nan=False, allow_infinity=False)
        case mi.StrType(pattern=str() as pattern):
            return st.from_regex(pattern).filter(lambda text: len(text) <= 20)
        case mi.StrType():
            return st.text(min_size=described.min_length or 0, max_size=described.max_length or 20)
        case mi.BytesType():
            return st.sampled_from(["", "aGVsbG8="])
        case mi.BoolType():
            return st.booleans()
        case mi.NoneType():
            return st.none()
        case mi.VarTupleType() | mi.ListType() | mi.SetType() | mi.FrozenSetType():
            return st.lists(of(described.item_type), min_size=described.min_length or 0, max_size=3)
        case mi.TupleType():
            return st.tuples(*[of(item) for item in described.item_types]).map(list)
        case mi.DictType():
            return st.dictionaries(st.text(max_size=9), of(described.value_type), max_size=3)
    raise AssertionError(f"a type that does not travel yet: {described}")


@pytest.mark.parametrize("kind", [*get_args(Request), *get_args(Answer)])
def test_what_travels_arrives_as_it_was(kind: Any) -> None:
    described = mi.type_info(kind)

    @settings(max_examples=10)
    @given(of(described))
    def travels(found: Any) -> None:
        union = Request if kind in get_args(Request) else Answer
        made = msgspec.convert(found, union, strict=False)
        assert type(made) is kind
        for encode, decode in (
            (msgspec.json.encode, msgspec.json.decode),
            (msgspec.msgpack.encode, msgspec.msgpack.decode),
        ):
            assert decode(encode(made), type=union) == made

    travels()


@pytest.mark.parametrize(("kind", "name"), METHODS.items())
async def test_each_request_has_the_method_of_its_name(kind: Any, name: str) -> None:
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    request = kind(*["x"] * required)
    said, got = typing.cast(
        "tuple[str, object]",
        await operate.perform(typing.cast("Operator", Recording()), ME, request),
    )
    assert said == name
    assert got is request
    for whose in (Operator, Operations):
        hints = typing.get_type_hints(getattr(whose, name))
        assert hints["request"] is kind
        assert hints["return"] in get_args(Answer)


def test_there_is_no_method_without_a_request() -> None:
    public = {name for name in vars(Operations) if not name.startswith("_")}
    for base in Operations.__mro__[1:-1]:
        public |= {name for name in vars(base) if not name.startswith("_")}
    assert public == set(METHODS.values())
    assert {name for name in vars(Operator) if not name.startswith("_")} == public


def test_what_the_modules_say_is_what_the_package_says() -> None:
    for kind in (*get_args(Request), *get_args(Answer)):
        if kind.__module__.startswith("tidegate.spi.operate."):
            assert kind.__name__ in operate.__all__
