"""Checks that the configured parts can be built: some contradictions only a plugin itself can see.

``resolve`` parses options one by one. That ``transport = "tls"`` lacks a certificate, or that two
options exclude each other, is reported by a factory in ``create()``; so each part is created once,
without a broker, and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from tidegate.config._model import BrokerConfig
from tidegate.config._resolve import ResolvedConfig
from tidegate.spi import (
    AcknowledgedLog,
    AuthenticationExchange,
    ClientPeer,
    ConfigError,
    ConnectRequest,
    GatewayError,
    MessageStore,
    PluginContractError,
    SinkContext,
    StoreContext,
    Stranger,
)
from tidegate.spi.events import log_only

_DEFAULTS: Final = BrokerConfig()
#: Options of ``[broker]``, when they have no effect, and why.
_IDLE: Final[Sequence[tuple[Sequence[str], Callable[[ResolvedConfig], bool], str]]] = (
    (
        (
            "acknowledged_limit",
            "acknowledged_body_max",
            "acknowledged_overflow",
            "acknowledged_outcomes",
            "acknowledged_age",
        ),
        lambda config: not config.sinks,
        "acknowledged messages are kept for sinks only, and there are none",
    ),
    (
        ("id_cache_limit", "persist_id_cache"),
        lambda config: not config.broker.id_cache_size,
        "id_cache_size is 0, so no duplicate ids are remembered",
    ),
    (
        (
            "login_delay_max",
            "login_failures_free",
            "login_failures_age",
            "login_failures_limit",
        ),
        lambda config: not config.broker.login_delay,
        "login_delay is 0, so nobody has to wait",
    ),
    (
        ("login_delay_max",),
        lambda config: config.broker.login_delay_max < config.broker.login_delay,
        "login_delay is longer",
    ),
)


class _NoBroker:
    """Stands in for the broker; a factory that already uses it breaks the contract."""

    name = "check"
    store_id = ""
    version = ""
    large_bodies = None
    tell = staticmethod(log_only)

    def socket_opened(self, size: int) -> bool:
        _refuse()

    def socket_closed(self, size: int) -> None:
        _refuse()

    def unauthenticated_holds(self, peer: Stranger, size: int) -> None:
        _refuse()

    def begin_authentication(
        self, method: str, request: ConnectRequest
    ) -> AuthenticationExchange | None:
        _refuse()

    async def connect(self, request: ConnectRequest, peer: ClientPeer) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError("create() must not use the broker")


def require_acknowledged_log(store: MessageStore, name: str) -> AcknowledgedLog:
    """The log that sinks read. Raises: ConfigError when the store *name* has none."""
    log = store.capabilities.acknowledged_log
    if log is None:
        raise ConfigError(
            f"store {name!r} does not keep acknowledged messages, so it cannot feed a "
            "sink; use another store or remove the sinks",
            key="sinks",
        )
    return log


def require_measured_store(store: MessageStore, name: str, broker: BrokerConfig) -> None:
    """Make sure ``broker.store_limit`` has an effect. Raises: ConfigError when the store *name* cannot obey it."""
    if not broker.store_limit:
        return
    key = "broker.store_limit"
    if not broker.persistent:
        raise ConfigError(
            "has no effect because broker.persistent is false: nothing is stored", key=key
        )
    if not store.capabilities.measures_room:
        raise ConfigError(
            f"store {name!r} cannot measure how much space it takes; remove the limit "
            "or use another store (broker.disk_free_limit works for every store that "
            "writes on this machine)",
            key=key,
        )


def _require_effect(config: ResolvedConfig) -> None:
    """Make sure each option of ``[broker]`` has an effect. Raises: ConfigError for one that has none."""
    for names, is_idle, why in _IDLE:
        if is_idle(config):
            for name in names:
                if getattr(config.broker, name) != getattr(_DEFAULTS, name):
                    raise ConfigError(f"has no effect: {why}; remove it", key=f"broker.{name}")


def check_parts(config: ResolvedConfig) -> None:
    """Create store, sinks and listeners once; nothing is opened but the files that options name.

    Raises: ConfigError with file and key; PluginContractError for any other failure.
    """
    directory = Path(config.broker.data_directory)
    where, plugin = "store", f"store-{config.store.name}"
    try:
        store = config.store.factory.create(
            StoreContext(
                data_directory=directory,
                gateway_name=config.broker.name,
                persistent=config.broker.persistent,
                keep_acknowledged=bool(config.sinks),
                store_limit=config.broker.store_limit,
            ),
            config.store.options,
        )
        where = ""
        _require_effect(config)
        require_measured_store(store, config.store.name, config.broker)
        if config.sinks:
            require_acknowledged_log(store, config.store.name)
        for index, sink in enumerate(config.sinks):
            where, plugin = f"sinks[{index}]", f"sink-{sink.plugin}"
            context = SinkContext(sink.name, config.broker.name, directory, config.authenticates)
            sink.factory.create(context, sink.options)
        for listener in config.listeners:
            where, plugin = listener.key, f"protocol-{listener.config.protocol}"
            listener.factory.create(listener.config, _NoBroker())
    except ConfigError as error:
        raise error.at(path=config.path, prefix=where) from error.__cause__
    except GatewayError:
        raise
    except Exception as error:
        named = error.filename if isinstance(error, PermissionError) else None
        if named and Path(named).is_relative_to(directory):
            raise  # another user's data: not the plugin's fault
        raise PluginContractError(
            plugin, f"create() failed: {type(error).__name__}: {error}"
        ) from error
