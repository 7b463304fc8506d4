"""From names to working parts: the configuration resolved against the installed plugins.

Every error that can be found before a socket or a file is touched is found here, so
``tidegate check-config`` and ``tidegate run`` refuse the same things with the same words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, cast

from tidegate.config._limits import Quota
from tidegate.config._load import base_of, host_keys
from tidegate.config._model import (
    BrokerConfig,
    Config,
    ExtensionTable,
    ListenerTable,
    SinkTable,
    StoreTable,
)
from tidegate.config._policies import (
    CURSOR_DEFAULT,
    CURSOR_UNSTORED_DEFAULT,
    DEFAULT_POLICY,
    PolicyTable,
)
from tidegate.config._policy_effect import check_effect, refuse_written
from tidegate.config._policy_map import is_reached
from tidegate.plugin_exit import exit_is_error
from tidegate.plugins import PROVIDERS, PluginHost, PluginKind
from tidegate.spi import (
    AuthenticatingOptions,
    Authenticator,
    ConfigError,
    EnhancedAuthenticator,
    Exchangeable,
    Extension,
    ListenerConfig,
    PluginContractError,
    PluginError,
    PluginLoadError,
    parse_options,
    unknown_key,
)
from tidegate.spi.clients.bind import Bind, parse_bind

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.spi import (
        CursorFactory,
        ExtensionFactory,
        FrontEndFactory,
        MessageStoreFactory,
        SinkFactory,
    )


@dataclass(frozen=True, slots=True)
class ResolvedListener:
    """A listener. Attributes: key (``listeners[0]``, for messages), factory, config."""

    key: str
    factory: FrontEndFactory
    config: ListenerConfig


@dataclass(frozen=True, slots=True)
class ResolvedStore:
    """The store. Attributes: name (of the plugin), factory, options (its ``options_type``)."""

    name: str
    factory: MessageStoreFactory
    options: object


@dataclass(frozen=True, slots=True)
class ResolvedSink:
    """A sink. Attributes: name (unique here), plugin, factory, options (its ``options_type``)."""

    name: str
    plugin: str
    factory: SinkFactory
    options: object


@dataclass(frozen=True, slots=True)
class ResolvedExtension:
    """An extension. Attributes: name (of the plugin), factory, options, instance (created from them).

    It is created here and not at start, because only the object itself tells whether it
    authenticates, and so whether a listener may face the world.
    """

    name: str
    factory: ExtensionFactory
    options: object
    instance: Extension


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """What would run.

    Attributes:
        path: the configuration file, "" for none.
        cursors: by name, every cursor named by ``policies``.
        policies: in file order, with each cursor filled in. A last one covers whatever they leave, so
            that each destination has one.
    """

    path: str
    broker: BrokerConfig
    store: ResolvedStore
    listeners: tuple[ResolvedListener, ...]
    cursors: Mapping[str, CursorFactory]
    policies: tuple[PolicyTable, ...]
    sinks: tuple[ResolvedSink, ...]
    extensions: tuple[ResolvedExtension, ...]
    quotas: tuple[Quota, ...] = ()

    @property
    def authenticates(self) -> bool:
        """An extension can authenticate clients."""
        return is_authenticated(self.extensions)


def is_authenticated(extensions: Iterable[ResolvedExtension]) -> bool:
    """Whether one of *extensions* can authenticate clients."""
    return any(
        isinstance(item.instance, Authenticator | EnhancedAuthenticator) for item in extensions
    )


def named_plugins(config: Config) -> list[tuple[PluginKind, str, str]]:
    """Kind, name and dotted key of every plugin that *config* makes active; imports nothing."""
    named = [
        (PluginKind.PROTOCOL, listener.protocol, f"listeners[{index}].protocol")
        for index, listener in enumerate(config.listeners)
    ]
    named.append((PluginKind.STORE, config.store.plugin, "store.plugin"))
    for table in config.destinations:
        policy = table.policy
        for key in ("cursor", "durable_cursor", "subscriber_cursor"):
            cursor: str = getattr(policy, key)
            if cursor:
                where = f"{table.key}.{table.written.get(key, key)}"
                named.append((PluginKind.CURSOR, cursor, where))
        if not policy.subscriber_cursor and policy.cursor == CURSOR_DEFAULT:
            where = f"{table.key}.subscriber_cursor"
            named.append((PluginKind.CURSOR, CURSOR_UNSTORED_DEFAULT, where))
    if _is_default_needed(config.destinations):
        named.append((PluginKind.CURSOR, CURSOR_DEFAULT, ""))
        named.append((PluginKind.CURSOR, CURSOR_UNSTORED_DEFAULT, ""))
    for index, sink in enumerate(config.sinks):
        named.append((PluginKind.SINK, sink.plugin, f"sinks[{index}].plugin"))
    for index, extension in enumerate(config.extensions):
        named.append((PluginKind.EXTENSION, extension.plugin, f"extensions[{index}].plugin"))
    return named


def resolve(config: Config, plugins: PluginHost) -> ResolvedConfig:
    """Look up every named plugin and parse its options. Opens no file and no socket.

    Raises: ConfigError with file and dotted key; PluginLoadError, PluginContractError.
    """
    base = base_of(config.path)
    try:
        _require(config, plugins)
        extensions = tuple(
            _extension(table, f"extensions[{index}]", plugins, base)
            for index, table in enumerate(config.extensions)
        )
        _check_identities(extensions)
        cursors: dict[str, CursorFactory] = {}
        policies = _policies(config.destinations, plugins, cursors)
        if not config.broker.unstored_memory_limit:
            refuse_written(
                policies,
                "cursor_memory_high_water_mark",
                "broker.unstored_memory_limit, of which it is a percentage, is unlimited",
            )
        return ResolvedConfig(
            path=config.path,
            # Plugins may run elsewhere: the sink's job has its own working directory.
            broker=replace(config.broker, data_directory=config.broker.data_directory.absolute()),
            store=_store(config.store, plugins, base),
            listeners=_listeners(config.listeners, extensions, plugins, base),
            cursors=cursors,
            policies=policies,
            sinks=tuple(
                _sink(table, f"sinks[{index}]", plugins, base)
                for index, table in enumerate(config.sinks)
            ),
            extensions=extensions,
            quotas=config.quotas,
        )
    except ConfigError as error:
        raise error.at(path=config.path) from error.__cause__


def resolve_listeners(
    config: Config, plugins: PluginHost, extensions: Sequence[ResolvedExtension]
) -> tuple[ResolvedListener, ...]:
    """Those of *config*, with other *extensions* than its own. Raises: as :func:`resolve`."""
    try:
        return _listeners(config.listeners, extensions, plugins, base_of(config.path))
    except ConfigError as error:
        raise error.at(path=config.path) from error.__cause__


def _require(config: Config, plugins: PluginHost) -> None:
    """Report all plugins that are not installed together, so that one `pip install` fixes it."""
    named = named_plugins(config)
    keys = {f"{kind.value}-{name}": key for kind, name, key in reversed(named)}
    missing = plugins.missing((kind, name) for kind, name, _ in named)
    if not missing:
        return
    first, *others = missing
    key = keys[first.plugin]
    where = ": ".join(part for part in (config.path, key) if part and config.path)
    problem = f"{first.problem} (named by {where or 'the embedded default'})"
    if others:
        problem += f"; also missing: {', '.join(error.plugin for error in others)}"
        packages = dict.fromkeys(PROVIDERS.get(error.plugin, "") for error in missing)
        problem += f"; to install all of them: pip install {' '.join(filter(None, packages))}"
    raise PluginLoadError(first.plugin, problem)


def _store(table: StoreTable, plugins: PluginHost, base: Path | None) -> ResolvedStore:
    factory = plugins.message_store(table.plugin)
    options = _options(
        factory.options_type,
        StoreTable,
        table.options,
        "store",
        _Blame(plugins, PluginKind.STORE, table.plugin),
        base,
    )
    return ResolvedStore(table.plugin, factory, options)


def _sink(table: SinkTable, where: str, plugins: PluginHost, base: Path | None) -> ResolvedSink:
    factory = plugins.sink(table.plugin)
    options = _options(
        factory.options_type,
        SinkTable,
        table.options,
        where,
        _Blame(plugins, PluginKind.SINK, table.plugin),
        base,
    )
    return ResolvedSink(table.name, table.plugin, factory, options)


def _extension(
    table: ExtensionTable, where: str, plugins: PluginHost, base: Path | None
) -> ResolvedExtension:
    factory = plugins.extension(table.plugin)
    plugin = _Blame(plugins, PluginKind.EXTENSION, table.plugin)
    options = _options(factory.options_type, ExtensionTable, table.options, where, plugin, base)
    with _blamed(plugin, "create()", where):
        instance = factory.create(options)
    return ResolvedExtension(table.plugin, factory, options, instance)


def _check_identities(extensions: Sequence[ResolvedExtension]) -> None:
    """Raises: ConfigError: two extensions have the same identity for operators, and for a reload."""
    there: set[str] = set()
    for number, item in enumerate(extensions):
        if isinstance(item.instance, Exchangeable):
            if item.instance.identity in there:
                raise ConfigError(
                    f"{item.instance} already exists; give one of them a different name",
                    key=f"extensions[{number}].name",
                )
            there.add(item.instance.identity)


def _options(
    options_type: type,
    table_type: type,
    options: Mapping[str, object],
    where: str,
    plugin: _Blame,
    base: Path | None,
) -> object:
    """Parse a plugin's own keys; a misspelt key of the host's gets a suggestion, too."""
    reserved = host_keys(table_type)
    known = [field.name for field in fields(options_type)]
    taken = set(known) & set(reserved)
    if taken:
        raise plugin.error(
            f"its option {min(taken)!r} has the name of one of the host's keys; rename it"
        )
    for key in options:
        if key not in known:
            raise unknown_key(key, [*reserved, *known]).at(prefix=where)
    with _blamed(plugin, f"reading its options ({options_type.__name__})", where):
        return parse_options(cast("type[object]", options_type), options, base=base)


@dataclass(frozen=True, slots=True)
class _Blame:
    """The plugin to name when its own code breaks the contract."""

    plugins: PluginHost
    kind: PluginKind
    name: str

    def error(self, problem: str) -> PluginContractError:
        origin = self.plugins.origin(self.kind, self.name)
        return PluginContractError(f"{self.kind.value}-{self.name}", f"{origin}: {problem}")


@contextlib.contextmanager
def _blamed(plugin: _Blame, what: str, where: str) -> Generator[None]:
    """Add the place to a ConfigError, and name the plugin in any other exception."""
    try:
        with exit_is_error(f"{plugin.kind.value}-{plugin.name}"):
            yield
    except ConfigError as error:
        raise error.at(prefix=where) from error.__cause__
    except ValueError as error:  # an options_type that checks itself in __post_init__
        raise ConfigError(str(error), key=where) from error
    except PluginError:
        raise
    except Exception as error:
        raise plugin.error(f"{what} failed: {type(error).__name__}: {error}") from error


# -------------------------------------------------------------------------------- listeners


def _listeners(
    tables: Sequence[ListenerTable],
    extensions: Sequence[ResolvedExtension],
    plugins: PluginHost,
    base: Path | None,
) -> tuple[ResolvedListener, ...]:
    authenticated = is_authenticated(extensions)
    bound: list[Bind] = []
    listeners: list[ResolvedListener] = []
    for index, table in enumerate(tables):
        where = f"listeners[{index}]"
        factory = plugins.front_end(table.protocol)
        bind = parse_bind(table.bind, factory.default_port)
        _check_overlap(bind, bound, where)
        bound.append(bind)
        options = _options(
            factory.options_type,
            ListenerTable,
            table.options,
            where,
            _Blame(plugins, PluginKind.PROTOCOL, table.protocol),
            base,
        )
        knows = isinstance(options, AuthenticatingOptions) and options.authenticates
        config = ListenerConfig(
            protocol=table.protocol,
            transport=_transport(table, factory.transports, where),
            host=bind.host,
            port=bind.port,
            allow_anonymous=_allow_anonymous(table, bind, knows or authenticated, where),
            options=options,
            authenticated=authenticated,
        )
        listeners.append(ResolvedListener(where, factory, config))
    return tuple(listeners)


def _check_overlap(bind: Bind, earlier: Iterable[Bind], where: str) -> None:
    for index, other in enumerate(earlier):
        if bind.overlaps(other):
            raise ConfigError(
                f"{bind} collides with {other} of listeners[{index}]; give one of them "
                "a different port",
                key=f"{where}.bind",
            )


def _transport(table: ListenerTable, transports: Sequence[str], where: str) -> str:
    if not table.transport:
        return transports[0]
    if table.transport not in transports:
        raise ConfigError(
            f"{table.protocol} has no transport {table.transport!r}; it has: "
            + ", ".join(map(repr, transports)),
            key=f"{where}.transport",
        )
    return table.transport


_NEEDS_AUTHENTICATION: Final = (
    "{bind} can be reached from other machines and nothing authenticates clients; write "
    "allow_anonymous = true in this [[listeners]] table to let everybody in, add [[extensions]] "
    'with an authenticator, or bind to "127.0.0.1:{port}"'
)


def _allow_anonymous(table: ListenerTable, bind: Bind, authenticated: bool, where: str) -> bool:
    """Whether this listener takes clients without credentials: only if explicitly decided."""
    if table.allow_anonymous:
        return True
    if authenticated:
        return False
    if table.allow_anonymous is False:
        raise ConfigError(
            "is false, but nothing authenticates clients, so none could ever connect; "
            "add [[extensions]] with an authenticator or remove the key",
            key=f"{where}.allow_anonymous",
        )
    if not bind.is_loopback:
        problem = _NEEDS_AUTHENTICATION.format(bind=bind, port=bind.port)
        raise ConfigError(problem, key=f"{where}.bind")
    return True


# --------------------------------------------------------------------------------- policies


def _policies(
    written: Sequence[PolicyTable], plugins: PluginHost, cursors: dict[str, CursorFactory]
) -> tuple[PolicyTable, ...]:
    """The tables with each cursor decided, the default last; fills *cursors*."""

    def cursor(name: str) -> CursorFactory:
        if name not in cursors:
            cursors[name] = plugins.cursor(name)
        return cursors[name]

    tables: list[PolicyTable] = []
    for table in written:
        policy = table.policy
        stored_only = cursor(policy.cursor).needs_store
        subscriber = policy.subscriber_cursor
        if subscriber and cursor(subscriber).needs_store:
            raise ConfigError(
                f"{subscriber!r} reads from the store, which does not hold messages of "
                f"subscriptions that are not stored; use {CURSOR_UNSTORED_DEFAULT!r} or "
                "'vm'",
                key=f"{table.key}.{table.written['subscriber_cursor']}",
            )
        subscriber = subscriber or (CURSOR_UNSTORED_DEFAULT if stored_only else policy.cursor)
        cursor(subscriber)
        durable = policy.durable_cursor or policy.cursor
        cursor(durable)
        decided = replace(policy, durable_cursor=durable, subscriber_cursor=subscriber)
        tables.append(replace(table, policy=decided))
        check_effect(tables[-1], cursors)
    if _is_default_needed(written):
        tables.extend(_policies([PolicyTable(DEFAULT_POLICY, "", {})], plugins, cursors))
    return tuple(tables)


def _is_default_needed(tables: Iterable[PolicyTable]) -> bool:
    return is_reached(DEFAULT_POLICY, [table.policy for table in tables])
