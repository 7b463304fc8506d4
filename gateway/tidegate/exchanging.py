"""Residents that come, change and go with a reload: planned before it takes effect, carried out afterwards."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tidegate.plugin_exit import FAILURES
from tidegate.spi import DrainStage, Exchangeable, HeedsDrain, Resident
from tidegate.spi.operate import Change

if TYPE_CHECKING:
    from tidegate.broker import BrokerCore
    from tidegate.config import ResolvedExtension

_log = logging.getLogger("tidegate.gateway")

_NEXT_START: Final = "takes effect at the next start"

Named: TypeAlias = "dict[str, ResolvedExtension]"


@dataclass(frozen=True, slots=True)
class ResidentExchange:
    """What will become of extensions.

    Attributes:
        extensions: those that run then, as the new configuration has them.
        added, removed: residents; changed: pairs of old and new.
        changes, left: for the operator: what counts now, and what only from the next start.
    """

    extensions: tuple[ResolvedExtension, ...]
    added: tuple[Resident, ...]
    removed: tuple[Resident, ...]
    changed: tuple[tuple[Exchangeable, Exchangeable], ...]
    changes: tuple[Change, ...]
    left: tuple[Change, ...]


def plan(old: Sequence[ResolvedExtension], new: Sequence[ResolvedExtension]) -> ResidentExchange:
    """Args: old: those that run; new: those of the file, none of which has begun."""
    before, after = _exchangeable(old), _exchangeable(new)
    changed: list[tuple[Exchangeable, Exchangeable]] = []
    changes: list[Change] = []
    extensions: list[ResolvedExtension] = []
    fixed = deque(item for item in old if not _is_exchangeable(item))
    for number, item in enumerate(new):
        instance, key = item.instance, f"extensions[{number}]"
        if not isinstance(instance, Exchangeable):
            if fixed:
                extensions.append(fixed.popleft())
            continue
        there = before.get(instance.identity)
        if there is None:
            changes.append(Change(key, f"added: {instance}"))
            extensions.append(item)
            continue
        was = there.instance
        assert isinstance(was, Exchangeable)
        differences = was.differences(instance)
        if differences:
            changes.append(Change(key, f"changed: {instance}: {', '.join(differences)}"))
            changed.append((was, instance))
        extensions.append(replace(item, instance=was))
    gone = [item.instance for name, item in before.items() if name not in after]
    changes += [Change("extensions", f"removed: {instance}") for instance in gone]
    come = [item.instance for name, item in after.items() if name not in before]
    return ResidentExchange(
        (*extensions, *fixed),
        tuple(item for item in come if isinstance(item, Resident)),
        tuple(item for item in gone if isinstance(item, Resident)),
        tuple(changed),
        tuple(changes),
        tuple(_left(old, new)),
    )


async def carry_out(
    exchange: ResidentExchange, residents: list[Resident], broker: BrokerCore
) -> list[Change]:
    """Args: residents: that run; changed. Returns: what could not begin, and why."""
    failed: list[Change] = []
    for resident in exchange.removed:
        residents.remove(resident)
        try:
            await resident.move_out()
        except FAILURES:
            _log.exception("ending %s", resident)
    for was, other in exchange.changed:
        try:
            await was.become(other)
        except FAILURES as error:
            _log.exception("changing %s", was)
            failed.append(Change("extensions", f"{was} could not be changed: {error}"))
    for resident in exchange.added:
        residents.append(resident)
        try:
            if isinstance(resident, HeedsDrain) and broker.draining.stage is not DrainStage.OPEN:
                await resident.heed_drain(broker.draining.stage)
            await resident.move_in(broker)
        except FAILURES as error:
            _log.exception("beginning %s", resident)
            failed.append(Change("extensions", f"{resident} could not be started: {error}"))
    return failed


def _exchangeable(items: Sequence[ResolvedExtension]) -> Named:
    """By identity."""
    return {
        item.instance.identity: item for item in items if isinstance(item.instance, Exchangeable)
    }


def _left(old: Sequence[ResolvedExtension], new: Sequence[ResolvedExtension]) -> list[Change]:
    """Changes of all others, which need a restart."""
    there = [(item.name, item.options) for item in old if not _is_exchangeable(item)]
    found: list[Change] = []
    wanted = 0
    for number, item in enumerate(new):
        if not _is_exchangeable(item):
            if there[wanted : wanted + 1] != [(item.name, item.options)]:
                found.append(Change(f"extensions[{number}]", _NEXT_START))
            wanted += 1
    if wanted < len(there):
        found.append(Change(f"extensions[{len(new)}]", _NEXT_START))
    return found


def _is_exchangeable(item: ResolvedExtension) -> bool:
    return isinstance(item.instance, Exchangeable)
