"""The configuration meets the installed plugins."""

from pathlib import Path
from typing import Any

import pytest

from tidegate.config import (
    Config,
    DestinationPolicy,
    PolicyMap,
    ResolvedConfig,
    load_config,
    named_plugins,
    parse_config,
    resolve,
)
from tidegate.plugins import PluginHost, PluginKind
from tidegate.spi import Authenticator, ConfigError, PluginContractError, PluginLoadError

TOYS_EVERYWHERE = """
[store]
plugin = "toy"
[[destinations]]
match = ">"
cursor = "toy"
"""
LISTENER = '[[listeners]]\nprotocol = "toy"\n'


def resolved(site, text: str) -> ResolvedConfig:
    return resolve(parse_config(text, path="gw.toml"), site.host())


def error_of(site, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolved(site, text)
    assert caught.value.path == "gw.toml"
    return caught.value


def test_factories_are_looked_up_and_options_parsed(site) -> None:
    site.add_toys()
    config = resolved(
        site,
        TOYS_EVERYWHERE.replace('"toy"\n', '"toy"\njournal_max_file_length = "64 MB"\n', 1)
        + LISTENER
        + 'frame_bytes_max = "1kb"\n[[sinks]]\nplugin = "toy"\nname = "lake"\ntable = "t"\n'
        + '[[extensions]]\nplugin = "door"\n',
    )
    assert config.store.name == "toy"
    store_options: Any = config.store.options
    assert store_options.journal_max_file_length == 64 << 20
    listener = config.listeners[0]
    assert (listener.config.host, listener.config.port) == ("127.0.0.1", 4711)
    assert listener.config.transport == "tcp"
    listener_options: Any = listener.config.options
    assert listener_options.frame_bytes_max == 1024
    assert listener.key == "listeners[0]"
    sink = config.sinks[0]
    sink_options: Any = sink.options
    assert (sink.name, sink.plugin, sink_options.table) == ("lake", "toy", Path("t"))
    assert isinstance(config.extensions[0].instance, Authenticator)
    assert set(config.cursors) == {"toy"}


def test_the_data_directory_is_the_same_wherever_a_plugin_works(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_toys()
    monkeypatch.chdir(tmp_path)
    config = resolved(site, TOYS_EVERYWHERE + LISTENER)
    assert config.broker.data_directory == tmp_path / "tidegate-data"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (
            '[store]\nplugin="toy"\njournal_max_file_lenght="1mb"',
            "store.journal_max_file_lenght",
            "did you mean 'journal_max_file_length'",
        ),
        (
            '[store]\nplugin="toy"\njournal_max_file_length=5',
            "store.journal_max_file_length",
            "has no unit",
        ),
        (LISTENER + 'bnd = "127.0.0.1:1"', "listeners[0].bnd", "did you mean 'bind'"),
        (LISTENER + 'frame_bytes_max = "1b"', "listeners[0].frame_bytes_max", "below the minimum"),
        (LISTENER + 'transport = "udp"', "listeners[0].transport", "it has: 'tcp', 'tls'"),
        (LISTENER + "[[sinks]]\nplugin='toy'", "sinks[0].table", "required"),
        (LISTENER + "[[sinks]]\nplugin='toy'\ntable='nonsense'", "sinks[0]", "no table"),
        (LISTENER + LISTENER, "listeners[1].bind", "collides with 127.0.0.1:4711 of listeners[0]"),
        (
            LISTENER + "bind='127.0.0.1:9'\n" + LISTENER + "bind=':9'\nallow_anonymous=true",
            "listeners[1].bind",
            "collides",
        ),
        (LISTENER + "allow_anonymous = false", "listeners[0].allow_anonymous", "none could ever"),
    ],
)
def test_each_mistake_in_a_plugins_options_names_file_and_key(
    site, text: str, key: str, said: str
) -> None:
    site.add_toys()
    store = "" if "[store]" in text else '[store]\nplugin = "toy"\n'
    listener = "" if "[[listeners]]" in text else LISTENER
    policy = '[[destinations]]\nmatch = ">"\ncursor = "toy"\n'
    error = error_of(site, f"{store}\n{text}\n{listener}\n{policy}")
    assert error.key == key
    assert said in error.problem


@pytest.mark.parametrize("bind", [":9", "0.0.0.0:9", "192.0.2.1:9", "[::]:9", "example.org:9"])
def test_a_listener_that_others_reach_needs_authentication_or_says_that_it_does_not(
    site, bind: str
) -> None:
    site.add_toys()
    base = TOYS_EVERYWHERE + LISTENER + f'bind = "{bind}"\n'
    error = error_of(site, base)
    assert error.key == "listeners[0].bind"
    assert "allow_anonymous = true" in error.problem
    assert "[[extensions]]" in error.problem
    assert '"127.0.0.1:9"' in error.problem
    open_to_all = resolved(site, base + "allow_anonymous = true\n")
    assert open_to_all.listeners[0].config.allow_anonymous is True
    guarded = resolved(site, base + '[[extensions]]\nplugin = "door"\n')
    assert guarded.listeners[0].config.allow_anonymous is False


def test_an_extension_that_does_not_authenticate_does_not_count(site) -> None:
    site.add_toys()
    text = TOYS_EVERYWHERE + LISTENER + 'bind = ":9"\n[[extensions]]\nplugin = "open"\n'
    assert error_of(site, text).key == "listeners[0].bind"


def test_anonymous_clients_are_let_in_on_loopback_until_something_authenticates(site) -> None:
    site.add_toys()
    base = TOYS_EVERYWHERE + LISTENER
    door = '[[extensions]]\nplugin = "door"\n'
    assert resolved(site, base).listeners[0].config.allow_anonymous is True
    assert resolved(site, base + door).listeners[0].config.allow_anonymous is False
    both = resolved(site, base + "allow_anonymous = true\n" + door)
    assert both.listeners[0].config.allow_anonymous is True


CURSORS = """
from tidegate.spi import PluginInfo, hookimpl
tidegate_plugin = PluginInfo("a cursor", (1, 0))
class Factory:
    needs_store = {needs_store}
    spools = {spools}
    def create(self, context):
        raise NotImplementedError
@hookimpl
def register_cursor():
    return Factory()
"""


def add_cursors(site) -> None:
    for name in ("store", "file", "vm"):
        source = CURSORS.format(needs_store=name == "store", spools=name == "file")
        site.add(f"toy-{name}", {f"cursor-{name}": f"toy_{name}"}, source)


def test_each_policy_has_its_cursors_decided_and_the_last_covers_the_rest(site) -> None:
    site.add_toys()
    add_cursors(site)
    config = resolved(
        site,
        '[store]\nplugin = "toy"\n'
        + LISTENER
        + '[[destinations]]\nmatch = "a"\ncursor = "vm"\n'
        + '[[destinations]]\nmatch = "b"\ndurable_cursor = "vm"\nsubscriber_cursor = "toy"\n',
    )

    def cursors(policy: DestinationPolicy) -> tuple[str, ...]:
        return (policy.match, policy.cursor, policy.durable_cursor, policy.subscriber_cursor)

    policies = [table.policy for table in config.policies]
    assert [cursors(policy) for policy in policies] == [
        ("a", "vm", "vm", "vm"),
        ("b", "store", "vm", "toy"),
        (">", "store", "store", "file"),
    ]
    assert set(config.cursors) == {"vm", "store", "toy", "file"}
    assert PolicyMap(policies).of("queue://elsewhere") is policies[-1]


def test_no_more_cursors_are_loaded_than_are_needed(site) -> None:
    site.add_toys()
    add_cursors(site)
    text = (
        '[store]\nplugin = "toy"\n'
        + LISTENER
        + '[[destinations]]\nmatch = "queue://>"\ncursor = "vm"\n'
        + '[[destinations]]\nmatch = "topic://>"\ncursor = "toy"\n'
    )
    assert set(resolved(site, text).cursors) == {"vm", "toy"}


def test_an_unstored_subscription_cannot_have_a_cursor_that_reads_the_store(site) -> None:
    site.add_toys()
    add_cursors(site)
    text = (
        '[store]\nplugin = "toy"\n'
        + LISTENER
        + '[[destinations]]\nmatch = "a"\nsubscriber_cursor = "store"\n'
    )
    error = error_of(site, text)
    assert error.key == "destinations[0].subscriber_cursor"
    assert "'file' or 'vm'" in error.problem


def test_all_missing_plugins_are_reported_at_once_with_the_packages_that_have_them() -> None:
    with pytest.raises(PluginLoadError) as caught:
        resolve(Config(), PluginHost([]))
    text = str(caught.value)
    for name in ("protocol-stomp", "protocol-mqtt", "store-journal", "cursor-store", "cursor-file"):
        assert name in text
    assert (
        "pip install tidegate-protocols tidegate-admin tidegate-store-journal tidegate-cursors"
        in text
    )
    assert "the embedded default" in text


def test_a_missing_plugin_is_reported_with_the_place_that_names_it(site, tmp_path: Path) -> None:
    site.add_toys()
    path = tmp_path / "gw.toml"
    path.write_text(TOYS_EVERYWHERE.replace('"toy"', '"tod"', 1) + LISTENER)
    with pytest.raises(PluginLoadError) as caught:
        resolve(load_config(path), site.host())
    assert "did you mean 'toy'" in str(caught.value)
    assert f"named by {path}: store.plugin" in str(caught.value)


def test_the_embedded_default_names_its_plugins_without_loading_any() -> None:
    assert {(kind, name) for kind, name, _ in named_plugins(Config())} == {
        (PluginKind.PROTOCOL, "stomp"),
        (PluginKind.PROTOCOL, "mqtt"),
        (PluginKind.PROTOCOL, "admin"),
        (PluginKind.STORE, "journal"),
        (PluginKind.CURSOR, "store"),
        (PluginKind.CURSOR, "file"),
    }


BROKEN_OPTIONS = """
from dataclasses import dataclass
from tidegate.spi import PluginInfo, hookimpl, option
tidegate_plugin = PluginInfo("broken", (1, 0))
@dataclass(frozen=True, slots=True)
class Options:
    {field}
class Factory:
    options_type = Options
    def create(self, context, options):
        raise NotImplementedError
@hookimpl
def register_message_store():
    return Factory()
"""


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("plugin: str = option('', help='x')", "'plugin' has the name of one of the host's keys"),
        ("url: 'Missing' = option(None, help='x')", "NameError"),
    ],
)
def test_options_that_break_the_contract_are_blamed_on_their_distribution(
    site, field: str, said: str
) -> None:
    site.add_toys()
    site.add("bad-options", {"store-bad": "bad_options"}, BROKEN_OPTIONS.format(field=field))
    with pytest.raises(PluginContractError) as caught:
        resolved(site, TOYS_EVERYWHERE.replace('"toy"', '"bad"', 1) + LISTENER)
    assert caught.value.plugin == "store-bad"
    assert "bad-options 1.2.3 (entry point bad_options)" in caught.value.problem
    assert said in caught.value.problem
