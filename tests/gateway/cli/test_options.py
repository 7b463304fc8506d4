"""Options as text: values as the file takes them, types as tables."""

import dataclasses
import enum
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidegate.cli._options import option_table
from tidegate.config import HIDDEN, BrokerConfig, DestinationPolicy, option_values, toml_text
from tidegate.spi import Kind, option, parse_options


class Sync(enum.Enum):
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Options:
    where: Path = option(help="A path.")
    size: int = option(32 << 20, kind=Kind.SIZE, minimum=1 << 20, help="A size | with a bar.")
    age: float = option(0.0, kind=Kind.DURATION, zero="for ever", maximum=86_400, help="A time.")
    sync: Sync = option(Sync.ALWAYS, help="A choice.")
    ratio: float = option(0.5, minimum=0, maximum=1.5, help="A ratio.")
    count: int = option(3, minimum=1, help="A number.")
    label: str | None = option(None, help="A name.")
    hosts: tuple[str, ...] = option((), help="Hosts.")
    headers: dict[str, str] = option({}, help="More.")
    mode: str = option("a", choices=("a", "b"), help="One of two.")


@dataclass(frozen=True, slots=True)
class Secrets:
    password: str = option("", help="x")
    api_token: str = option("", help="x")
    password_file: str = option("", help="x")
    url: str = option("", help="x")


def test_a_table_says_how_to_write_each_option_its_limits_and_its_default() -> None:
    assert option_table(Options).splitlines()[2:] == [
        "| `where` | path | required | A path. |",
        '| `size` | size, at least `"1mb"` | `"32mb"` | A size \\| with a bar. |',
        '| `age` | time, at most `"1d"`; `0` = for ever | `0` | A time. |',
        '| `sync` | `"always"` or `"never"` | `"always"` | A choice. |',
        "| `ratio` | decimal number, 0 to 1.5 | `0.5` | A ratio. |",
        "| `count` | number, at least 1 | `3` | A number. |",
        "| `label` | string | left out | A name. |",
        "| `hosts` | list, each string | `[]` | Hosts. |",
        "| `headers` | table of strings | `{}` | More. |",
        '| `mode` | `"a"` or `"b"` | `"a"` | One of two. |',
    ]


def test_a_type_without_options_says_so() -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    assert option_table(Nothing) == "No options of its own.\n"


@pytest.mark.parametrize(
    "options",
    [
        Options(where=Path("/x y"), hosts=("a", 'b"c'), headers={"k": "v w"}, age=90.0),
        BrokerConfig(pending_write_limit=5 << 10, acknowledged_age=0.0),
        DestinationPolicy(match="orders.>", memory_limit=1, max_deliveries=0),
    ],
)
def test_what_is_shown_can_be_read_back(options: object) -> None:
    shown = {key: value for key, value in option_values(options).items() if value is not None}
    text = "".join(f"{key} = {toml_text(value)}\n" for key, value in shown.items())
    assert parse_options(type(options), tomllib.loads(text)) == options


def test_passwords_are_never_shown_but_it_is_shown_that_there_is_one() -> None:
    shown = option_values(Secrets("p1", "t1", "/etc/pw", "postgres://me:p2@db:5432/x?y=1"))
    assert shown == {
        "password": HIDDEN,
        "api_token": HIDDEN,
        "password_file": "/etc/pw",
        "url": "postgres://me:***@db:5432/x?y=1",
    }
    assert option_values(Secrets())["password"] == ""


def test_what_toml_cannot_write_is_called_unset() -> None:
    assert toml_text(None) == "unset"


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.azure.account.key.box.dfs.example",
        "spark.hadoop.fs.azure.sas.fixed.token.box",
        "spark.authenticate.secret",
        "spark.ssl.keyPassword",
    ],
)
def test_secrets_in_a_table_of_settings_are_hidden(key: str) -> None:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        conf: dict[str, str]

    shown = option_values(Settings({key: "hunter2", "spark.master": "local[2]", "e.secret": ""}))
    assert shown["conf"] == {key: HIDDEN, "spark.master": "local[2]", "e.secret": ""}


def test_a_secret_inside_a_value_is_hidden() -> None:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        conf: dict[str, str]

    java = "-XX:+UseSerialGC -Dfs.s3a.secret.key=hunter2 -Da=b"
    (shown,) = option_values(Settings({"spark.driver.extraJavaOptions": java})).values()
    assert shown == {
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Dfs.s3a.secret.key=*** -Da=b"
    }
