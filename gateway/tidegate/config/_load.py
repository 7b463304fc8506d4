"""Reading the TOML file into :class:`Config`: the host's own tables, without any plugin."""

from __future__ import annotations

import codecs
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from tidegate.config._limits import Quota
from tidegate.config._model import (
    BrokerConfig,
    Config,
    ExtensionTable,
    ListenerTable,
    SinkTable,
    StoreTable,
)
from tidegate.config._policies import DestinationPolicy, PolicyTable, split_match
from tidegate.config._policy_map import check_reachable
from tidegate.config._policy_names import paging_key, translated
from tidegate.spi import ConfigError, names, parse_options, unknown_key
from tidegate.spi.clients.bind import parse_bind

T = TypeVar("T")
PluginTable = TypeVar("PluginTable", ListenerTable, StoreTable, SinkTable, ExtensionTable)

#: A name that is also safe as a directory, a log field and a part of a message id or entry point.
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONFIG_BYTES_MAX: Final = 4 << 20
_TABLES: Final = (
    "broker",
    "listeners",
    "store",
    "destinations",
    "sinks",
    "extensions",
    "quotas",
)
#: The field of a table type that holds the keys unknown to the host.
PLUGIN_OPTIONS: Final = "options"


def load_config(path: Path | str | None) -> Config:
    """Read and check *path*; None gives the embedded default. Involves no plugin.

    Raises: ConfigError with the file and the dotted key.
    """
    if path is None:
        return Config()
    try:
        return parse_config(_read_text(Path(path)), path=str(path))
    except ConfigError as error:
        raise error.at(path=str(path)) from error.__cause__


def parse_config(text: str, *, path: str = "") -> Config:
    """Parse the text of a configuration file. *path* is for messages, and for relative paths in the text.

    Raises: ConfigError with the dotted key.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = "; this key appears twice" if "Cannot overwrite a value" in str(error) else ""
        raise ConfigError(f"not valid TOML: {error}{twice}") from None
    for key in document:
        if key not in _TABLES:
            raise unknown_key(key, _TABLES)
    config = Config(
        path=path,
        broker=_broker(_table(document, "broker"), base_of(path)),
        store=_plugin_table(StoreTable, _table(document, "store"), "store"),
        destinations=tuple(
            _policy(table, f"destinations[{index}]")
            for index, table in enumerate(_tables(document, "destinations"))
        ),
        sinks=tuple(
            _sink(table, f"sinks[{index}]")
            for index, table in enumerate(_tables(document, "sinks"))
        ),
        extensions=tuple(
            _plugin_table(ExtensionTable, table, f"extensions[{index}]")
            for index, table in enumerate(_tables(document, "extensions"))
        ),
        quotas=tuple(
            _at(f"quotas[{index}]", _quota, table)
            for index, table in enumerate(_tables(document, "quotas"))
        ),
        **_listeners(document),
    )
    check_reachable([table.policy for table in config.destinations], config.broker.levels_max)
    _check_sink_names(config.sinks)
    return config


def base_of(path: str) -> Path | None:
    """The directory that paths in the configuration file *path* are relative to.

    None stands for the working directory: there is no file, or it is a pipe, which has no directory.
    """
    return Path(path).parent if path and Path(path).is_file() else None


def host_keys(table_type: type) -> tuple[str, ...]:
    """The keys of *table_type* that belong to the host; all others are the plugin's."""
    return tuple(field.name for field in fields(table_type) if field.name != PLUGIN_OPTIONS)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > _CONFIG_BYTES_MAX:
        raise ConfigError(f"larger than {_CONFIG_BYTES_MAX} bytes: not a configuration file")
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()  # editors of Windows write one
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})") from None


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, object]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"must be a table: write [{name}]", key=name)
    return cast("dict[str, object]", value)


def _tables(document: Mapping[str, Any], name: str) -> list[Mapping[str, object]]:
    value = document.get(name, [])
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, dict) for item in items):
        raise ConfigError(f"must be a list of tables: write [[{name}]]", key=name)
    return cast("list[Mapping[str, object]]", items)


def _at(prefix: str, read: Callable[[Mapping[str, object]], T], table: Mapping[str, object]) -> T:
    try:
        return read(table)
    except ConfigError as error:
        raise error.at(prefix=prefix) from None


#: Options of ``[broker]`` by their names in ActiveMQ's documents.
_BROKER_NAMES: Final[Mapping[str, str]] = {
    "temp_limit": "temporary_space",
    "tempLimit": "temporary_space",
    "storeLimit": "store_limit",
    "storeUsage": "store_limit",
    "store_usage": "store_limit",
}


def _broker(table: Mapping[str, object], base: Path | None) -> BrokerConfig:
    written: dict[str, str] = {}
    for key in table:
        other = written.setdefault(_BROKER_NAMES.get(key, key), key)
        if other != key:
            raise ConfigError(
                f"is another name for {other!r}; keep only one of them", key=f"broker.{key}"
            )
    ours = {name: table[key] for name, key in written.items()}
    try:
        broker = parse_options(BrokerConfig, ours, base=base)
    except ConfigError as error:
        key = written.get(error.key, error.key)
        raise ConfigError(error.problem, key=key).at(prefix="broker") from None
    if _IDENTIFIER.fullmatch(broker.name) is None:
        raise _not_an_identifier(broker.name, "broker.name")
    return broker


def _listeners(document: Mapping[str, Any]) -> dict[str, tuple[ListenerTable, ...]]:
    if "listeners" not in document:
        return {}  # the default of Config
    listeners = tuple(
        _listener(table, f"listeners[{index}]")
        for index, table in enumerate(_tables(document, "listeners"))
    )
    if not listeners:
        raise ConfigError(
            "must not be empty: without a listener no client could connect", key="listeners"
        )
    return {"listeners": listeners}


def _listener(table: Mapping[str, object], where: str) -> ListenerTable:
    listener = _plugin_table(ListenerTable, table, where, named_by="protocol")
    try:
        parse_bind(listener.bind, 0)
    except ValueError as error:
        raise ConfigError(str(error), key=f"{where}.bind") from None
    return listener


def _sink(table: Mapping[str, object], where: str) -> SinkTable:
    sink = _plugin_table(SinkTable, table, where)
    name = sink.name or sink.plugin
    if _IDENTIFIER.fullmatch(name) is None:
        raise _not_an_identifier(name, f"{where}.name")
    return replace(sink, name=name)


def _plugin_table(
    table_type: type[PluginTable],
    table: Mapping[str, object],
    where: str,
    named_by: str = "plugin",
) -> PluginTable:
    """Parse the host's keys of *table* and keep all others for the plugin it names."""
    known = host_keys(table_type)
    head = {key: value for key, value in table.items() if key in known}
    rest = {key: value for key, value in table.items() if key not in known}
    try:
        parsed = parse_options(table_type, head)
    except ConfigError as error:
        near = difflib.get_close_matches(error.key, rest, n=1, cutoff=0.5)
        if near and error.key not in head:  # a required key is missing, perhaps misspelt
            error = ConfigError(f"unknown key; did you mean {error.key!r}?", key=near[0])
        raise error.at(prefix=where) from None
    plugin: str = getattr(parsed, named_by)
    if _IDENTIFIER.fullmatch(plugin) is None:
        raise ConfigError(f"{plugin!r} is not a valid plugin name", key=f"{where}.{named_by}")
    return replace(parsed, options=MappingProxyType(rest))


def _quota(table: Mapping[str, object]) -> Quota:
    return parse_options(Quota, table)


def _policy(table: Mapping[str, object], where: str) -> PolicyTable:
    try:
        given, written = translated(table)
    except ConfigError as error:
        raise error.at(prefix=where) from None
    try:
        policy = _checked_policy(given)
    except ConfigError as error:
        key = written.get(error.key, error.key)
        raise ConfigError(error.problem, key=key).at(prefix=where) from None
    return PolicyTable(policy, where, MappingProxyType(written), paging_key(table))


def _checked_policy(table: Mapping[str, object]) -> DestinationPolicy:
    policy = parse_options(DestinationPolicy, table)
    try:
        names.check_filter(split_match(policy.match)[1])
    except ValueError as error:
        raise ConfigError(str(error), key="match") from None
    for key in ("cursor", "durable_cursor", "subscriber_cursor"):
        plugin: str = getattr(policy, key)
        if (plugin or key == "cursor") and _IDENTIFIER.fullmatch(plugin) is None:
            raise ConfigError(f"{plugin!r} is not a valid cursor name", key=key)
    literal = policy.dead_letter.replace("{name}", "name")
    if "{" in literal or "}" in literal:
        raise ConfigError(
            f"{policy.dead_letter!r}: {{name}} is the only placeholder allowed", key="dead_letter"
        )
    try:
        names.check_name(literal)
    except ValueError as error:
        raise ConfigError(str(error), key="dead_letter") from None
    return policy


def _check_sink_names(sinks: Iterable[SinkTable]) -> None:
    seen: dict[str, int] = {}
    for index, sink in enumerate(sinks):
        if sink.name in seen:
            raise ConfigError(
                f"the name {sink.name!r} is already used by sinks[{seen[sink.name]}]; "
                "give this sink a different name",
                key=f"sinks[{index}].name",
            )
        seen[sink.name] = index


def _not_an_identifier(name: str, key: str) -> ConfigError:
    return ConfigError(
        f"{name!r} must be 1 to 64 letters, digits, '.', '_' or '-', starting with a "
        "letter or digit",
        key=key,
    )
