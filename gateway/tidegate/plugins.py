"""The plugin host: finds what is installed, loads only what is named, and blames by name.

Finding reads the metadata of installed distributions and imports nothing. A plugin's module is
imported when the configuration names it (or, for one row of ``tidegate plugins``, to read what it
says about itself). Each problem is reported with the distribution, its version, the entry point and
the cause, because the reader did not write the plugin.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib.metadata
import inspect
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pluggy

from tidegate.members import CheckedFactory
from tidegate.plugin_exit import FAILURES, exit_is_error
from tidegate.spi import (
    ENTRY_POINT_GROUP,
    SPI_VERSION,
    GatewayInfo,
    ListOverflow,
    LogFilling,
    PluginContractError,
    PluginError,
    PluginInfo,
    PluginLoadError,
    SinkLag,
    SlowConsumer,
    StoreShortage,
    hookspecs,
    version,
)

if TYPE_CHECKING:
    from tidegate.spi import (
        CursorFactory,
        ExtensionFactory,
        FrontEndFactory,
        MessageStoreFactory,
        SinkFactory,
    )

_log = logging.getLogger("tidegate.plugins")


class PluginKind(enum.Enum):
    """What a plugin can be; the value begins its entry point's name."""

    STORE = "store"
    CURSOR = "cursor"
    PROTOCOL = "protocol"
    SINK = "sink"
    EXTENSION = "extension"


#: The hook through which a plugin of a kind hands over its factory.
FACTORY_HOOKS: Final[Mapping[PluginKind, str]] = {
    PluginKind.STORE: "register_message_store",
    PluginKind.CURSOR: "register_cursor",
    PluginKind.PROTOCOL: "register_front_end",
    PluginKind.SINK: "register_sink",
    PluginKind.EXTENSION: "register_extension",
}

#: Which of our own packages provides a plugin, for error texts on a machine that lacks it.
PROVIDERS: Final[Mapping[str, str]] = {
    "store-journal": "tidegate-store-journal",
    "store-jdbc": "tidegate-store-jdbc",
    "store-journaled": "tidegate-store-journaled",
    "protocol-stomp": "tidegate-protocols",
    "protocol-mqtt": "tidegate-protocols",
    "protocol-admin": "tidegate-admin",
    "cursor-store": "tidegate-cursors",
    "cursor-vm": "tidegate-cursors",
    "cursor-file": "tidegate-cursors",
    "sink-flight": "tidegate-sink-flight",
    "sink-spark": "tidegate-sink-spark",
    "extension-auth-file": "tidegate-auth-file",
    "extension-auth-jwt": "tidegate-auth-jwt",
    "extension-acl": "tidegate-acl",
    "extension-bridge": "tidegate-bridge",
    "extension-traces": "tidegate-traces",
}


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One installed plugin, for ``tidegate plugins``.

    Attributes:
        kind, name: of the entry point ``KIND-NAME``; kind is "" when we do not know it.
        version: of the distribution; spi_version: ``"1.0"``, "" when it could not be read.
        distribution: the package it came with.
        active: the configuration names it.
        summary: what it says about itself; problem: why it cannot be used, "" when it can.
    """

    kind: str
    name: str
    version: str
    spi_version: str
    distribution: str
    active: bool
    summary: str
    problem: str


@dataclass(frozen=True, slots=True)
class _Installed:
    """An entry point and its origin, which is read from its package when needed."""

    entry_point: importlib.metadata.EntryPoint

    @property
    def distribution(self) -> str:
        found = self.entry_point.dist
        return found.name if found else "an unknown distribution"

    @property
    def version(self) -> str:
        found = self.entry_point.dist
        return found.version if found else ""

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version} (entry point {self.entry_point.value})"


class PluginHost:
    """The plugins of one gateway; make a fresh one for each: there is no shared state.

    Args: entry_points: what is installed; default: the metadata on this interpreter's path.
    """

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        if entry_points is None:
            entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        self._installed: dict[str, list[_Installed]] = {}
        for entry_point in entry_points:
            self._installed.setdefault(entry_point.name, []).append(_Installed(entry_point))
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._modules: dict[str, object] = {}
        self._factories: dict[str, object] = {}

    def message_store(self, name: str) -> MessageStoreFactory:
        """The store *name*. Raises: PluginLoadError, PluginContractError (all of these do)."""
        return cast("MessageStoreFactory", self._factory(PluginKind.STORE, name))

    def cursor(self, name: str) -> CursorFactory:
        """The cursor type *name*."""
        return cast("CursorFactory", self._factory(PluginKind.CURSOR, name))

    def front_end(self, name: str) -> FrontEndFactory:
        """The protocol *name*."""
        return cast("FrontEndFactory", self._factory(PluginKind.PROTOCOL, name))

    def sink(self, name: str) -> SinkFactory:
        """The sink type *name*."""
        return cast("SinkFactory", self._factory(PluginKind.SINK, name))

    def extension(self, name: str) -> ExtensionFactory:
        """The extension *name*."""
        return cast("ExtensionFactory", self._factory(PluginKind.EXTENSION, name))

    def installed_names(self, kind: PluginKind) -> list[str]:
        """Names of the installed plugins of *kind*, sorted; imports nothing."""
        prefix = f"{kind.value}-"
        found = (name.removeprefix(prefix) for name in self._installed if name.startswith(prefix))
        return sorted(found)

    def missing(self, wanted: Iterable[tuple[PluginKind, str]]) -> list[PluginLoadError]:
        """An error for each of *wanted* that is not installed; imports nothing."""
        return [
            self._unknown(kind, name)
            for kind, name in dict.fromkeys(wanted)
            if f"{kind.value}-{name}" not in self._installed
        ]

    def origin(self, kind: PluginKind, name: str) -> str:
        """Distribution, version and entry point of an installed plugin, for messages."""
        return self._installed[f"{kind.value}-{name}"][0].origin

    def loaded(self) -> list[str]:
        """``"store-journal 0.1.0"`` for each loaded plugin, sorted."""
        return sorted(f"{name} {self._installed[name][0].version}" for name in self._modules)

    def announce_started(self, info: GatewayInfo) -> None:
        """Call every loaded plugin's ``gateway_started``; an exception is logged with its name."""
        self._announce("gateway_started", gateway=info)

    def announce_stopping(self, info: GatewayInfo) -> None:
        """Call every loaded plugin's ``gateway_stopping``; same rules."""
        self._announce("gateway_stopping", gateway=info)

    def announce_slow(self, consumer: SlowConsumer) -> None:
        """Call every loaded plugin's ``consumer_slowed``; same rules."""
        self._announce("consumer_slowed", consumer=consumer)

    def announce_shortage(self, shortage: StoreShortage) -> None:
        """Call every loaded plugin's ``store_short``; same rules."""
        self._announce("store_short", shortage=shortage)

    def announce_lag(self, lag: SinkLag) -> None:
        """Call every loaded plugin's ``sink_late``; same rules."""
        self._announce("sink_late", lag=lag)

    def announce_filling(self, filling: LogFilling) -> None:
        """Call every loaded plugin's ``log_filling``; same rules."""
        self._announce("log_filling", filling=filling)

    def announce_overflow(self, overflow: ListOverflow) -> None:
        """Call every loaded plugin's ``list_overflowed``; same rules."""
        self._announce("list_overflowed", overflow=overflow)

    def list_plugins(
        self, active: Collection[tuple[PluginKind, str]], *, imports: bool = True
    ) -> list[PluginRow]:
        """One row for each installed plugin, by kind and name; imports each to read its version.

        A plugin that cannot be loaded has its problem in its row and does not affect the others.

        Args: imports: False: import none, so that only name and package of an unloaded plugin are known.
        """
        names = {f"{kind.value}-{name}" for kind, name in active}
        order = [kind.value for kind in PluginKind]
        rows = [
            self._row(entry_name, installed, entry_name in names)
            if imports or entry_name in self._modules
            else _unread(entry_name, installed, entry_name in names)
            for entry_name, several in self._installed.items()
            for installed in several
        ]
        return sorted(
            rows,
            key=lambda row: (
                order.index(row.kind) if row.kind else len(order),
                row.name,
                row.distribution,
            ),
        )

    # ------------------------------------------------------------------------------- loading

    def _factory(self, kind: PluginKind, name: str) -> object:
        entry_name = f"{kind.value}-{name}"
        if entry_name not in self._factories:
            if entry_name not in self._installed:
                raise self._unknown(kind, name)
            module = self._load(entry_name)
            self._factories[entry_name] = self._fetch(entry_name, kind, module)
        return self._factories[entry_name]

    def _load(self, entry_name: str) -> object:
        """Import, check and register the plugin *entry_name*; a second call returns the first result."""
        if entry_name in self._modules:
            return self._modules[entry_name]
        installed = self._only(entry_name)
        module = _import(entry_name, installed)
        _check_info(entry_name, installed, module)
        _refuse_coroutines(entry_name, installed, module)
        if not self._manager.is_registered(module):  # one module may serve two entry points
            self._register(entry_name, installed, module)
        self._modules[entry_name] = module
        return module

    def _register(self, entry_name: str, installed: _Installed, module: object) -> None:
        try:
            self._manager.register(module, name=entry_name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            raise PluginContractError(
                entry_name, f"{installed.origin}: {_one_line(error)}"
            ) from error

    def _fetch(self, entry_name: str, kind: PluginKind, module: object) -> object:
        """Ask this plugin, and no other, for its factory, and check it."""
        installed = self._only(entry_name)
        hook = FACTORY_HOOKS[kind]
        others = [other for other in self._manager.get_plugins() if other is not module]
        try:
            with exit_is_error(entry_name):
                factory: object = self._manager.subset_hook_caller(hook, others)()
        except Exception as error:
            raise PluginContractError(
                entry_name, f"{installed.origin}: {hook}() failed: {_cause(error)}"
            ) from error
        if factory is None:
            raise PluginContractError(
                entry_name,
                f"{installed.origin}: no @hookimpl of {hook}() returned a factory, "
                f"which a plugin named {kind.value}-… must do",
            )
        problem = _factory_problem(kind, factory)
        if problem:
            raise PluginContractError(
                entry_name, f"{installed.origin}: {hook}() returned {problem}"
            )
        return CheckedFactory(factory, hook, entry_name, lambda: installed.origin)

    def _only(self, entry_name: str) -> _Installed:
        several = self._installed[entry_name]
        if len(several) > 1:
            origins = " and ".join(installed.origin for installed in several)
            raise PluginContractError(
                entry_name, f"provided by both {origins}; uninstall all but one"
            )
        return several[0]

    def _unknown(self, kind: PluginKind, name: str) -> PluginLoadError:
        entry_name = f"{kind.value}-{name}"
        known = self.installed_names(kind)
        ours = [
            key.removeprefix(f"{kind.value}-") for key in PROVIDERS if key.startswith(kind.value)
        ]
        near = difflib.get_close_matches(name, [*known, *ours], n=1, cutoff=0.6)
        if known:
            problem = f"is not installed; installed {kind.value} plugins: {', '.join(known)}"
        else:
            problem = f"is not installed, and neither is any other {kind.value} plugin"
        if entry_name not in PROVIDERS and near:
            problem += f"; did you mean {near[0]!r}?"
            entry_name = f"{kind.value}-{near[0]}"
        if near and near[0] not in known and entry_name in PROVIDERS:
            package = PROVIDERS[entry_name]
            problem += f"; the package {package} provides {near[0]!r}: pip install {package}"
        for misnamed in self._misnamed(f"{kind.value}-{name}", name):
            problem += (
                f"; {self._installed[misnamed][0].origin} has an entry point "
                f"{misnamed!r}, which would have to be called '{kind.value}-{name}'"
            )
        return PluginLoadError(f"{kind.value}-{name}", problem)

    def _misnamed(self, entry_name: str, name: str) -> list[str]:
        """Entry points without a kind that resemble *entry_name* or are called *name*."""
        kinds = tuple(f"{kind.value}-" for kind in PluginKind)
        odd = [key for key in self._installed if not key.startswith(kinds)]
        near = difflib.get_close_matches(entry_name, odd, n=1, cutoff=0.8)
        return near or [key for key in odd if key == name]

    # --------------------------------------------------------------------- announcing, listing

    def _announce(self, hook: str, **told: object) -> None:
        for name, plugin in self._manager.list_name_plugin():
            others = [other for other in self._manager.get_plugins() if other is not plugin]
            try:
                self._manager.subset_hook_caller(hook, others)(**told)
            except FAILURES:
                _log.exception("plugin=%s hook=%s failed", name, hook)

    def _row(self, entry_name: str, installed: _Installed, active: bool) -> PluginRow:
        kind, name = _split(entry_name)
        info, problem = PluginInfo("", (0, 0)), ""
        try:
            if not kind:
                raise PluginContractError(
                    entry_name, f"{installed.origin}: unknown kind; {_KINDS_KNOWN}"
                )
            self._only(entry_name)
            module = _import(entry_name, installed)
            found: object = getattr(module, "tidegate_plugin", None)
            info = found if isinstance(found, PluginInfo) else info
            _check_info(entry_name, installed, module)
            _refuse_coroutines(entry_name, installed, module)
        except PluginError as error:
            problem = error.problem
        return PluginRow(
            kind=kind,
            name=name,
            version=installed.version,
            spi_version=_dotted(info.spi_version) if info.summary else "",
            distribution=installed.distribution,
            active=active,
            summary=info.summary,
            problem=problem,
        )


def _unread(entry_name: str, installed: _Installed, active: bool) -> PluginRow:
    """A row of a plugin that is not imported."""
    kind, name = _split(entry_name)
    package = installed.distribution
    return PluginRow(kind, name, installed.version, "", package, active, "", "")


_KINDS_KNOWN: Final = "the name of an entry point begins with " + ", ".join(
    f"{kind.value}-" for kind in PluginKind
)


def _split(entry_name: str) -> tuple[str, str]:
    kind, dash, name = entry_name.partition("-")
    if dash and name and kind in {known.value for known in PluginKind}:
        return kind, name
    return "", entry_name


def _import(entry_name: str, installed: _Installed) -> object:
    try:
        with exit_is_error(entry_name):
            return installed.entry_point.load()
    except PluginError as error:
        raise PluginLoadError(entry_name, f"{installed.origin}: {error.problem}") from error
    except Exception as error:
        raise PluginLoadError(
            entry_name, f"{installed.origin}: cannot be imported: {_cause(error)}"
        ) from error


def _check_info(entry_name: str, installed: _Installed, module: object) -> None:
    info: object = getattr(module, "tidegate_plugin", None)
    if not isinstance(info, PluginInfo):
        raise PluginContractError(
            entry_name,
            f"{installed.origin}: it must define tidegate_plugin = PluginInfo(summary=…, "
            "spi_version=…)",
        )
    wanted: Any = info.spi_version
    if not _is_version(wanted):
        raise PluginContractError(
            entry_name, f"{installed.origin}: spi_version {wanted!r} is not (major, minor)"
        )
    if not version.is_supported(wanted):
        newer = wanted > SPI_VERSION
        raise PluginContractError(
            entry_name,
            f"{installed.origin}: written for SPI {_dotted(wanted)}, this gateway has "
            f"{_dotted(SPI_VERSION)}; upgrade {'tidegate' if newer else installed.distribution}",
        )


def _is_version(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(cast("tuple[object, ...]", value)) == 2
        and all(type(part) is int for part in cast("tuple[object, ...]", value))
    )


def _refuse_coroutines(entry_name: str, installed: _Installed, module: object) -> None:
    """Refuse ``async def`` hook implementations: hooks are synchronous, nobody would await them."""
    for name in dir(module):
        function: object = getattr(module, name, None)
        if getattr(function, f"{hookspecs.PROJECT}_impl", None) is None:
            continue
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise PluginContractError(
                entry_name,
                f"{installed.origin}: hook {name}() is a coroutine function; hooks are "
                "synchronous, write `def` instead of `async def`",
            )


#: What each kind's factory must have besides ``create``: the attribute and its type.
_FACTORY_ATTRIBUTES: Final[Mapping[PluginKind, Sequence[tuple[str, type]]]] = {
    PluginKind.STORE: (("options_type", type),),
    PluginKind.CURSOR: (("needs_store", bool), ("spools", bool)),
    PluginKind.PROTOCOL: (("options_type", type), ("transports", Sequence), ("default_port", int)),
    PluginKind.SINK: (("options_type", type),),
    PluginKind.EXTENSION: (("options_type", type),),
}


def _factory_problem(kind: PluginKind, factory: object) -> str:
    """What is wrong with *factory*, "" when nothing is."""
    if not callable(getattr(factory, "create", None)):
        return f"{type(factory).__name__}, which has no method create()"
    for name, wanted in _FACTORY_ATTRIBUTES[kind]:
        value: object = getattr(factory, name, None)
        if not isinstance(value, wanted):
            return f"{type(factory).__name__}, whose {name} is {value!r}, not a {wanted.__name__}"
        if name == "options_type" and not dataclasses.is_dataclass(cast("type", value)):
            return f"{type(factory).__name__}, whose options_type {value!r} is not a dataclass"
    if kind is PluginKind.PROTOCOL and not cast("FrontEndFactory", factory).transports:
        return f"{type(factory).__name__}, which has no transports"
    return ""


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _cause(error: BaseException) -> str:
    text = _one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
