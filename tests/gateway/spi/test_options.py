"""A frozen dataclass describes a configuration table: reading it, and every way to get it wrong."""

import dataclasses
import enum
import math
from pathlib import Path

import pytest

from tidegate.spi import ConfigError, Kind, OptionInfo, option, option_info, parse_options


class Mode(enum.Enum):
    ALWAYS = "always"
    NEVER = "never"


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    name: str = option(help="Required.")
    size: int = option(1 << 20, kind=Kind.SIZE, minimum=1024, maximum=1 << 30, help="A size.")
    interval: float = option(5.0, kind=Kind.DURATION, minimum=1, zero="never", help="A time.")
    count: int = option(3, minimum=1, maximum=10, help="A number.")
    ratio: float = option(0.5, minimum=0, maximum=1, help="A fraction.")
    active: bool = option(True, help="A switch.")
    directory: Path = option(Path("data"), help="A path.")
    mode: Mode = option(Mode.ALWAYS, help="A mode.")
    kind: str = option("one", choices=("one", "two"), help="A choice.")
    hosts: tuple[str, ...] = option((), help="A list.")
    kinds: tuple[str, ...] = option((), choices=("x", "y"), help="A list of choices.")
    extra: dict[str, str] = option({}, help="A table.")
    maybe: int | None = option(None, minimum=0, help="Optional.")
    plain: str = "no description"


def parse(**table: object) -> Options:
    return parse_options(Options, {"name": "n", **table})


def test_what_is_left_out_has_its_default() -> None:
    assert parse() == Options(name="n")
    assert parse().extra == {}


@pytest.mark.parametrize(
    ("key", "written", "expected"),
    [
        ("size", "32mb", 32 << 20),
        ("size", "1 KB", 1024),
        ("interval", "500 MIN", 30_000.0),
        ("interval", "0s", 0.0),
        ("interval", 0, 0.0),
        ("count", 10, 10),
        ("ratio", 1, 1.0),
        ("ratio", 0.25, 0.25),
        ("active", False, False),
        ("directory", "a/b", Path("a/b")),
        ("mode", "Never", Mode.NEVER),
        ("kind", "two", "two"),
        ("hosts", ["a", "b"], ("a", "b")),
        ("kinds", ["y", "x"], ("y", "x")),
        ("extra", {"a": "b"}, {"a": "b"}),
        ("maybe", 7, 7),
        ("plain", "text", "text"),
    ],
)
def test_a_value_is_read_as_its_field_says(key: str, written: object, expected: object) -> None:
    found = getattr(parse(**{key: written}), key)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("key", "written", "reason"),
    [
        ("name", 5, "not a string"),
        ("size", 1024, "has no unit.*'32mb'"),
        ("size", 0, "has no unit"),
        ("size", "1024", "not a size"),
        ("size", "1b", "below the minimum of 1024"),
        ("size", "2gb", "above the maximum"),
        ("interval", 500, "has no unit.*'500ms'"),
        ("interval", False, "has no unit"),
        ("interval", "10ms", "below the minimum of 1"),
        ("interval", "soon", "not a time"),
        ("count", 0, "below the minimum"),
        ("count", 11, "above the maximum"),
        ("count", True, "not a whole number"),
        ("count", 1.0, "not a whole number"),
        ("count", "1", "not a whole number"),
        ("ratio", "1", "not a number"),
        ("ratio", True, "not a number"),
        ("ratio", math.nan, "not a finite number"),
        ("ratio", math.inf, "not a finite number"),
        ("ratio", 10**400, "not a finite number"),
        ("ratio", 1.5, "above the maximum"),
        ("active", 1, "true or false"),
        ("active", "yes", "true or false"),
        ("directory", 1, "a path in quotes"),
        ("mode", "sometimes", "'always', 'never'"),
        ("mode", 1, "'always', 'never'"),
        ("kind", "three", "'one', 'two'"),
        ("hosts", "a", "not a list"),
        ("hosts", [1], "not a string"),
        ("kinds", ["z"], "'x', 'y'"),
        ("extra", [], "not a table"),
        ("extra", {"a": 1}, r"a: its value \(int\) is not a string"),
        ("maybe", -1, "below the minimum"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_the_reason(
    key: str, written: object, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse(**{key: written})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "hint"),
    [("intervl", "did you mean 'interval'?"), ("Size", "'size'"), ("zzzz", "known keys: active")],
)
def test_an_unknown_key_names_the_nearest_one(key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{key: 1})
    assert caught.value.key == key
    assert hint in str(caught.value)


def test_a_required_key_must_be_there() -> None:
    with pytest.raises(ConfigError, match="name: is required, but missing"):
        parse_options(Options, {})


def test_two_parsed_tables_share_nothing_with_the_file() -> None:
    written = {"a": "b"}
    found = parse(extra=written)
    written["a"] = "changed"
    assert found.extra == {"a": "b"}


def test_the_description_of_a_field_can_be_had() -> None:
    fields = {field.name: field for field in dataclasses.fields(Options)}
    info = option_info(fields["interval"])
    assert (info.help, info.kind, info.minimum, info.zero) == (
        "A time.", Kind.DURATION, 1, "never",
    )  # fmt: skip
    assert option_info(fields["plain"]) == OptionInfo("")


def test_only_a_dataclass_with_known_types_describes_a_table() -> None:
    @dataclasses.dataclass(frozen=True)
    class Strange:
        value: complex = 0j

    with pytest.raises(TypeError, match="complex"):
        parse_options(Strange, {"value": 1})
    with pytest.raises(TypeError, match="not a dataclass"):
        parse_options(int, {})


def test_a_secret_of_the_wrong_kind_is_not_in_the_error() -> None:
    @dataclasses.dataclass(frozen=True)
    class Secrets:
        password: str = option("", help="x")
        password_file: str = option("", help="x")

    with pytest.raises(ConfigError, match="its value is not a string") as caught:
        parse_options(Secrets, {"password": 271828})
    assert "271828" not in str(caught.value)
    with pytest.raises(ConfigError, match="271828"):
        parse_options(Secrets, {"password_file": 271828})
