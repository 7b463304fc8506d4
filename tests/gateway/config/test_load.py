"""Reading the file: what is accepted, and what each mistake is answered with."""

import os
from pathlib import Path

import pytest

from tidegate.config import Config, base_of, load_config, parse_config
from tidegate.spi import ConfigError

FULL = """
[broker]
name = "harbour-1"
data_directory = "/var/lib/tidegate"
persistent = false
connections_max = 50
pending_write_limit = "1024kb"
acknowledged_limit = "256 MB"
acknowledged_overflow = "discard_oldest"
acknowledged_age = 0

[[listeners]]
protocol = "stomp"
bind = ":61613"
transport = "tcp"
allow_anonymous = true
frame_bytes_max = "1mb"

[[listeners]]
protocol = "mqtt"

[store]
plugin = "journal"
journal_max_file_length = "32mb"

[[destinations]]
match = "orders.>"
cursor = "file"
memory_limit = "1G"
max_deliveries = 0

[[destinations]]
match = "topic://prices.*"
dead_letter = "dead"

[[sinks]]
plugin = "spark"
table = "/lake/messages"

[[sinks]]
plugin = "spark"
name = "second"
table = "/lake/again"

[[extensions]]
plugin = "door"
"""


def error_of(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return caught.value


def test_every_table_is_read_and_what_the_host_does_not_know_is_kept_for_the_plugin() -> None:
    config = parse_config(FULL, path="gw.toml")
    assert config.path == "gw.toml"
    assert config.broker.name == "harbour-1"
    assert config.broker.data_directory == Path("/var/lib/tidegate")
    assert config.broker.persistent is False
    assert config.broker.pending_write_limit == 1 << 20
    assert config.broker.acknowledged_limit == 256 << 20
    assert config.broker.acknowledged_overflow == "discard_oldest"
    assert config.broker.acknowledged_age == 0
    assert config.broker.transactions_open_max == 100
    first, second = config.listeners
    assert (first.protocol, first.bind, first.transport) == ("stomp", ":61613", "tcp")
    assert first.allow_anonymous is True
    assert dict(first.options) == {"frame_bytes_max": "1mb"}
    assert (second.bind, second.transport, second.allow_anonymous) == ("", "", None)
    assert dict(config.store.options) == {"journal_max_file_length": "32mb"}
    orders, prices = (table.policy for table in config.destinations)
    assert (orders.cursor, orders.memory_limit, orders.max_deliveries) == ("file", 1 << 30, 0)
    assert (prices.match, prices.dead_letter) == ("topic://prices.*", "dead")
    assert [sink.name for sink in config.sinks] == ["spark", "second"]
    assert [extension.plugin for extension in config.extensions] == ["door"]


def test_no_file_and_an_empty_file_are_the_embedded_default(tmp_path: Path) -> None:
    assert load_config(None) == Config()
    path = tmp_path / "empty.toml"
    path.write_text("")
    assert load_config(path) == Config(path=str(path))


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[brokr]", "brokr", "did you mean 'broker'"),
        ("[broker]\nnme = 'x'", "broker.nme", "did you mean 'name'"),
        ("[broker]\nname = 'a/b'", "broker.name", "letters, digits"),
        ("[broker]\nname = ''", "broker.name", "letters, digits"),
        ("[broker]\nname = '..'", "broker.name", "letters, digits"),
        ("[broker]\ndata_directory = ''", "broker.data_directory", "must not be empty"),
        ("[broker]\npersistent = 1", "broker.persistent", "true or false"),
        ("[broker]\nconnections_max = 0", "broker.connections_max", "below the minimum of 1"),
        ("[broker]\nacknowledged_age = 60", "broker.acknowledged_age", "no unit"),
        ("[broker]\npending_write_limit = '64'", "broker.pending_write_limit", "not a size"),
        ("[broker]\nacknowledged_overflow = 'x'", "broker.acknowledged_overflow", "refuse_publish"),
        ("broker = 1", "broker", "write [broker]"),
        ("[[broker]]", "broker", "write [broker]"),
        ("[listeners]\nprotocol = 'stomp'", "listeners", "write [[listeners]]"),
        ("listeners = []", "listeners", "no client could connect"),
        ("listeners = [1]", "listeners", "write [[listeners]]"),
        ("[[listeners]]", "listeners[0].protocol", "required"),
        ("[[listeners]]\nprutocol = 'stomp'", "listeners[0].prutocol", "did you mean 'protocol'"),
        ("[[listeners]]\nprotocol = 'a b'", "listeners[0].protocol", "is not a valid plugin name"),
        ("[[listeners]]\nprotocol='stomp'\nbind='1:2:3'", "listeners[0].bind", "brackets"),
        ("[[listeners]]\nprotocol='stomp'\nbind=61613", "listeners[0].bind", "string in quotes"),
        ("[store]\nplugin = 3", "store.plugin", "string in quotes"),
        ("[store]\nplugin = ''", "store.plugin", "is not a valid plugin name"),
        ("[[destinations]]", "destinations[0].match", "required"),
        ("[[destinations]]\nmatch = 'a.>.b'", "destinations[0].match", "must be the last level"),
        ("[[destinations]]\nmatch = 'queue://'", "destinations[0].match", "must not be empty"),
        (
            "[[destinations]]\nmatch='a'\ncursor=''",
            "destinations[0].cursor",
            "not a valid cursor name",
        ),
        (
            "[[destinations]]\nmatch='a'\nprefetch_count=65536",
            "destinations[0].prefetch_count",
            "above the maximum of 65535",
        ),
        (
            "[[destinations]]\nmatch='a'\nmemory_limt='1mb'",
            "destinations[0].memory_limt",
            "did you mean 'memory_limit'",
        ),
        (
            "[[destinations]]\nmatch='a'\ndead_letter='DLQ.{queue}'",
            "destinations[0].dead_letter",
            "{name} is the only placeholder",
        ),
        (
            "[[destinations]]\nmatch='a'\ndead_letter='DLQ.>'",
            "destinations[0].dead_letter",
            "wildcard",
        ),
        (
            "[[destinations]]\nmatch='a'\n[[destinations]]\nmatch='a'",
            "destinations[1].match",
            "never used: destinations[0]",
        ),
        (
            "".join(f"[[destinations]]\nmatch='{m}'\n" for m in ("a", "topic://a", "queue://a")),
            "destinations[0].match",
            "destinations[1] ('topic://a') and destinations[2] ('queue://a')",
        ),
        ("[[sinks]]\nname = 'x'", "sinks[0].plugin", "required"),
        ("[[sinks]]\nplugin='spark'\nname='a b'", "sinks[0].name", "letters, digits"),
        (
            "[[sinks]]\nplugin='spark'\n[[sinks]]\nplugin='spark'",
            "sinks[1].name",
            "the name 'spark' is already used by sinks[0]",
        ),
        ("[[extensions]]\nplugn = 'x'", "extensions[0].plugn", "did you mean 'plugin'"),
        ("name = ", "", "not valid TOML"),
        ("[broker]\nname = 'a'\nname = 'b'", "", "this key appears twice"),
    ],
)
def test_each_mistake_names_its_key_and_what_to_do(text: str, key: str, said: str) -> None:
    error = error_of(text)
    assert error.key == key
    assert said in error.problem


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff", "not UTF-8"), (b"[x", "not valid TOML"), (b"#" * (5 << 20), "larger than")],
)
def test_what_is_no_configuration_file_is_refused(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "gw.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(path)
    assert caught.value.path == str(path)


def test_the_mark_that_editors_of_windows_put_first_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text("[broker]\nname = 'x'", encoding="utf-8-sig")
    assert load_config(path).broker.name == "x"


def test_a_file_that_is_not_there_is_an_error_and_not_the_default(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_an_error_in_a_file_says_file_and_dotted_key(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text("[broker]\nnme = 'x'")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: broker.nme: unknown key; did you mean 'name'?"


def test_a_relative_path_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    file = there / "gw.toml"
    for written, meant in (("data", there / "data"), ("/data", Path("/data"))):
        file.write_text(f'[broker]\ndata_directory = "{written}"')
        assert load_config(file).broker.data_directory == meant
        assert load_config("../there/gw.toml").broker.data_directory.absolute().resolve() == meant
    file.write_text("")
    assert load_config(file).broker.data_directory == Path("tidegate-data")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert base_of(str(pipe)) is None
    assert base_of("") is None


@pytest.mark.parametrize("name", ["temp_limit", "tempLimit", "temporary_space"])
def test_the_room_of_temporary_files_has_its_name_in_the_documents_too(name: str) -> None:
    assert parse_config(f'[broker]\n{name} = "5mb"').broker.temporary_space == 5 << 20
    with pytest.raises(ConfigError) as caught:
        parse_config(f'[broker]\n{name} = "5k"')
    assert caught.value.key == f"broker.{name}"
    other = "temp_limit" if name == "temporary_space" else "temporary_space"
    with pytest.raises(ConfigError, match="keep only one of them") as caught:
        parse_config(f'[broker]\n{other} = "5mb"\n{name} = "5mb"')
    assert caught.value.key == f"broker.{name}"


@pytest.mark.parametrize("name", ["store_limit", "storeLimit", "storeUsage", "store_usage"])
def test_the_room_of_the_store_has_its_names_in_the_documents_too(name: str) -> None:
    assert parse_config(f'[broker]\n{name} = "5gb"').broker.store_limit == 5 << 30
    with pytest.raises(ConfigError, match="unit") as caught:
        parse_config(f"[broker]\n{name} = 5")
    assert caught.value.key == f"broker.{name}"
