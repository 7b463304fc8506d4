"""Change without a restart: the configuration file is read again, and what can change changes, or nothing does.

In this order: read and check everything as ``tidegate check-config`` would, in a thread; bind what is new; then, in
one step of the loop that cannot fail, everything takes effect. What follows only carries it out: limits of existing
lists, residents, files of listeners and extensions, clients of listeners that are gone. None of it is recorded, so a
gateway that is killed meanwhile starts with the whole file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate import exchanging
from tidegate.broker.operate import changing
from tidegate.config import (
    BrokerConfig,
    DestinationPolicy,
    PolicyTable,
    ResolvedConfig,
    certificate_ends,
    certificate_problem,
    check_parts,
    load_config,
    resolve,
    resolve_listeners,
)
from tidegate.plugin_exit import FAILURES, failure_of
from tidegate.spi import GatewayError, Reloadable, RequestError, Resident
from tidegate.spi.operate import Change, Reloaded

if TYPE_CHECKING:
    from tidegate.broker import BrokerCore
    from tidegate.listening import Exchange, Listeners
    from tidegate.plugins import PluginHost

_log = logging.getLogger("tidegate.gateway")

_NEXT_START: Final = "takes effect at the next start"


@dataclass(slots=True)
class Running:
    """What runs, and with which configuration. Attributes: changed: told of the broker's table when it takes effect."""

    config: ResolvedConfig
    plugins: PluginHost
    broker: BrokerCore
    listeners: Listeners
    residents: list[Resident]
    changed: Callable[[BrokerConfig], None]


async def reload(running: Running, *, check_only: bool) -> Reloaded:
    """Carry out :class:`tidegate.spi.operate.ReloadConfiguration`; never twice at once.

    Raises: RequestError: the file is wrong, or something cannot be bound; nothing has changed.
    """
    old = running.config
    if not old.path:
        files = [] if check_only else await reload_files(running)
        return _told(
            "", files, warnings=await _certificates(running, old, files, is_applied=not check_only)
        )
    new = await asyncio.to_thread(_read, old, running.plugins)
    try:
        exchange = running.listeners.plan(new.listeners)
    except GatewayError as error:
        raise _unchanged(old.path, error) from error
    residents = exchanging.plan(old.extensions, new.extensions)
    wanted = replace(_wanted(old, new), extensions=residents.extensions)
    changed = [*_broker_changes(old.broker, wanted.broker), *_table_changes(old, new)]
    changed += [*_listener_changes(exchange), *residents.changes]
    left = [*_left(old, new), *residents.left, *(Change(key, what) for key, what in exchange.left)]
    policies = [table.policy for table in new.policies]
    counts = await changing.made_otherwise(
        running.broker, changing.Before.of(running.broker), policies
    )
    if not check_only:
        before = await _apply(running, wanted, exchange, policies)
        left += await exchanging.carry_out(residents, running.residents, running.broker)
        counts.update(await changing.limit_lists(running.broker, before))
    left += _left_of_lists(new.policies, counts)
    files = [] if check_only else await reload_files(running)
    return _told(
        old.path,
        files,
        changed,
        left,
        await _certificates(running, new, files, is_applied=not check_only),
    )


def _read(old: ResolvedConfig, plugins: PluginHost) -> ResolvedConfig:
    """The file as it is now, with the running extensions where those are the same. Raises: RequestError."""
    path = old.path
    try:
        if not Path(path).is_file():
            raise RequestError(
                f"{path} is not a file, so the configuration cannot be read again; nothing "
                "was changed"
            )
        loaded = load_config(path)
        new = resolve(loaded, plugins)
        check_parts(new)
        # The running extensions decide who may come in.
        return replace(new, listeners=resolve_listeners(loaded, plugins, old.extensions))
    except FAILURES as raised:
        raise _unchanged(path, failure_of(raised)) from raised


def _unchanged(path: str, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, GatewayError):
        return RequestError(f"{error}; nothing was changed")
    return RequestError(f"{path}: {type(error).__name__}: {error}; nothing was changed")


def _wanted(old: ResolvedConfig, new: ResolvedConfig) -> ResolvedConfig:
    """What should run: *new*, where possible."""
    live = {name: getattr(new.broker, name) for name in changing.LIVE}
    return replace(
        old,
        listeners=new.listeners,
        broker=replace(old.broker, **live),
        cursors=new.cursors,
        policies=new.policies,
        quotas=new.quotas,
    )


async def _apply(
    running: Running,
    wanted: ResolvedConfig,
    exchange: Exchange,
    policies: Sequence[DestinationPolicy],
) -> changing.Before:
    """Returns: the state before. Raises: RequestError; then nothing has changed."""
    try:
        await running.listeners.begin(exchange)
    except FAILURES as raised:
        error = failure_of(raised)
        where = ", ".join(str(new.bind) for new in exchange.added)
        raise RequestError(
            f"cannot listen on {where}: {error}; free the address or use another one; "
            "nothing was changed"
        ) from raised
    running.listeners.finish(exchange, wanted.listeners)
    running.config = replace(wanted, listeners=tuple(one.item for one in running.listeners))
    before = changing.Before.of(running.broker)
    changing.change(running.broker, wanted.broker, wanted.quotas, policies, wanted.cursors)
    running.changed(wanted.broker)
    return before


# ---------------------------------------------------------------------------- what is other


def _broker_changes(old: BrokerConfig, wanted: BrokerConfig) -> list[Change]:
    return [Change(f"broker.{name}", "changed") for name in differing(old, wanted)]


def _listener_changes(exchange: Exchange) -> list[Change]:
    found = [
        Change(new.item.key, f"{'changed' if exchange.is_changed(new) else 'added'}: {new.bind}")
        for new in exchange.added
    ]
    replaced = {new.bind for new in exchange.added}
    found += [
        Change("listeners", f"removed: {old.address}")
        for old in exchange.removed
        if old.bind not in replaced
    ]
    return found


def _table_changes(old: ResolvedConfig, new: ResolvedConfig) -> list[Change]:
    found: list[Change] = []
    before = {table.policy.match: table for table in old.policies if table.key}
    after = {table.policy.match: table for table in new.policies if table.key}
    for match, table in after.items():
        there = before.get(match)
        if there is None:
            found.append(Change(table.key, f"added: {match!r}"))
        elif there.policy != table.policy:
            names = ", ".join(differing(there.policy, table.policy))
            found.append(Change(table.key, f"changed: {match!r}: {names}"))
    found += [
        Change("destinations", f"removed: {match!r}") for match in before if match not in after
    ]
    if old.quotas != new.quotas:
        found.append(Change("quotas", "changed"))
    return found


def _left(old: ResolvedConfig, new: ResolvedConfig) -> list[Change]:
    """What only a restart changes."""
    found = [
        Change(f"broker.{name}", _NEXT_START)
        for name in differing(old.broker, new.broker)
        if name not in changing.LIVE
    ]
    if old.store.name != new.store.name:
        found.append(Change("store.plugin", _NEXT_START))
    else:
        names = differing(old.store.options, new.store.options)
        found += [Change(f"store.{name}", _NEXT_START) for name in names]
    there = [(s.name, s.plugin, s.options) for s in old.sinks]
    wanted = [(s.name, s.plugin, s.options) for s in new.sinks]
    return found + [
        Change(f"sinks[{index}]", _NEXT_START)
        for index in range(max(len(there), len(wanted)))
        if there[index : index + 1] != wanted[index : index + 1]
    ]


def _left_of_lists(
    tables: Sequence[PolicyTable], counts: Mapping[tuple[str, str], int]
) -> list[Change]:
    keys = {table.policy.match: table.key or "destinations" for table in tables}
    return [
        Change(
            f"{keys.get(match, 'destinations')}.{option}",
            f"takes effect for new queues and subscriptions now, and for {count} "
            "existing ones at the next start"
            if count
            else _NEXT_START,
        )
        for (match, option), count in sorted(counts.items())
    ]


def differing(old: object, new: object) -> list[str]:
    """Names of the fields that differ."""
    if type(old) is not type(new) or not is_dataclass(old):
        return [] if old == new else ["options"]
    names = [field.name for field in fields(old)]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


# ----------------------------------------------------------------------------------- files


async def reload_files(running: Running) -> list[tuple[Change, bool]]:
    """Let every listener and extension reread its files; one that cannot keeps what it has.

    Concurrently: none waits for another. The log says for each whether it did, and so does the result.
    """
    parts: list[tuple[str, object]] = [
        (listening.item.key, listening.front_end) for listening in running.listeners
    ]
    for number, item in enumerate(running.config.extensions):
        parts.append((f"extensions[{number}] plugin={item.name}", item.instance))
    told = await asyncio.gather(*[_reload(key, part) for key, part in parts])
    return [one for one in told if one is not None]


async def _reload(key: str, part: object) -> tuple[Change, bool] | None:
    """Let *part* reread its files, if it has any, and record whether it did."""
    if not isinstance(part, Reloadable):
        return None
    try:
        has_files = await part.reload()
    except FAILURES as raised:
        error = failure_of(raised)
        _log.error("%s could not be reloaded and keeps what it read before: %s", key, error)
        text = f"its files could not be read; it keeps what it read before: {error}"
        return Change(key.partition(" ")[0], text), False
    if not has_files:
        return None
    _log.info("%s was reloaded", key)
    return Change(key.partition(" ")[0], "its files were read"), True


async def _certificates(
    running: Running,
    config: ResolvedConfig,
    files: Iterable[tuple[Change, bool]],
    *,
    is_applied: bool,
) -> list[Change]:
    """Watch those just read. Returns: what is wrong with the dates of those that *config* names."""
    watch, now = running.broker.certificates, running.broker.now()
    read = [change.key for change, is_read in files if is_read]
    had = watch.known if is_applied else ()
    found = await asyncio.to_thread(certificate_ends, config, had, read)
    if is_applied:
        watch.known = found
        watch.look(now)
    told = [Change(one.key, certificate_problem(one, now)) for one in found]
    return [change for change in told if change.what]


def _told(
    path: str,
    files: Iterable[tuple[Change, bool]],
    changed: Sequence[Change] = (),
    left: Sequence[Change] = (),
    warnings: Sequence[Change] = (),
) -> Reloaded:
    was, was_not = [*changed], [*left]
    for change, is_read in files:
        (was if is_read else was_not).append(change)
    return Reloaded(path, tuple(was), tuple(was_not), tuple(warnings))
