"""What operators see of a gateway that its broker does not know: its plugins and bridges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidegate.config import Bind, options_set, toml_text
from tidegate.plugins import PluginHost, PluginKind
from tidegate.spi import Bridging, DrainStage, HeedsDrain, Resident, TakesQueues
from tidegate.spi.operate import BridgeRow, PluginPart, PluginRow

if TYPE_CHECKING:
    from tidegate.config import ResolvedConfig, ResolvedListener

_log = logging.getLogger("tidegate.gateway")


def plugin_rows(config: ResolvedConfig, plugins: PluginHost) -> list[PluginRow]:
    """All installed plugins, with the settings from *config* of those that run. Imports nothing."""
    parts: dict[tuple[PluginKind, str], list[PluginPart]] = {}
    for kind, name, part in _parts(config):
        parts.setdefault((kind, name), []).append(part)
    return [
        PluginRow(
            row.kind,
            row.name,
            row.distribution,
            row.version,
            row.active,
            row.summary,
            tuple(parts.get((PluginKind(row.kind), row.name), ())) if row.kind else (),
        )
        for row in plugins.list_plugins(parts, imports=False)
    ]


def bridge_rows(residents: Iterable[Resident]) -> list[BridgeRow]:
    """The rules of all bridges among *residents*."""
    return [row for item in residents if isinstance(item, Bridging) for row in item.bridge_rows()]


async def heed_drain(residents: Iterable[Resident], stage: DrainStage) -> None:
    """Tell those of *residents* that want to know; concurrently, since each may wait for what it sent."""
    told = [item for item in residents if isinstance(item, HeedsDrain)]
    ends = await asyncio.gather(*[one.heed_drain(stage) for one in told], return_exceptions=True)
    for one, came in zip(told, ends, strict=True):
        if isinstance(came, BaseException):
            _log.error("%s could not react to the drain", one, exc_info=came)


def takers(residents: Iterable[Resident]) -> list[TakesQueues]:
    """Those of *residents* that can hand queues over."""
    return [item for item in residents if isinstance(item, TakesQueues)]


def _parts(config: ResolvedConfig) -> Iterator[tuple[PluginKind, str, PluginPart]]:
    """Each table that names a plugin."""
    store = config.store
    yield PluginKind.STORE, store.name, PluginPart("store", options_set(store.options))
    for listener in config.listeners:
        part = PluginPart(listener.key, _of_listener(listener))
        yield PluginKind.PROTOCOL, listener.config.protocol, part
    for name in config.cursors:
        tables = [
            table.key
            for table in config.policies
            if name
            in (table.policy.cursor, table.policy.durable_cursor, table.policy.subscriber_cursor)
        ]
        for key in tables or [""]:
            yield PluginKind.CURSOR, name, PluginPart(key or "destinations", {})
    for number, sink in enumerate(config.sinks):
        options = {"name": toml_text(sink.name), **options_set(sink.options)}
        yield PluginKind.SINK, sink.plugin, PluginPart(f"sinks[{number}]", options)
    for number, extension in enumerate(config.extensions):
        part = PluginPart(f"extensions[{number}]", options_set(extension.options))
        yield PluginKind.EXTENSION, extension.name, part


def _of_listener(listener: ResolvedListener) -> dict[str, str]:
    config = listener.config
    bind = toml_text(str(Bind(config.host, config.port)))
    return {"bind": bind, "transport": toml_text(config.transport), **options_set(config.options)}
