"""Options of a ``[[destinations]]`` table that would have no effect: errors, because an effect was intended.

What an option does depends on which lists the table can have (:class:`Lists`) and on their cursors.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.config._list_limits import LIMIT_OPTIONS, SUBSCRIPTION_PREFIX, limit_reason
from tidegate.config._policies import SPOOLED, PolicyTable, split_match
from tidegate.spi import ConfigError, names

if TYPE_CHECKING:
    from tidegate.spi import CursorFactory


class Lists(enum.Enum):
    """What a table's destinations can have. Value: in words."""

    QUEUE = "queues"
    DURABLE = "topic subscriptions that are stored"
    UNSTORED = "topic subscriptions that are not stored"
    TEMPORARY = "temporary queues"


#: What an option is for; those missing here are for all.
_FOR: Final[Mapping[str, frozenset[Lists]]] = {
    "durable_cursor": frozenset({Lists.DURABLE}),
    "subscriber_cursor": frozenset({Lists.UNSTORED, Lists.TEMPORARY}),
    **dict.fromkeys(LIMIT_OPTIONS, frozenset({Lists.QUEUE})),
    **{SUBSCRIPTION_PREFIX + name: frozenset({Lists.DURABLE}) for name in LIMIT_OPTIONS},
    "subscription_expiry": frozenset({Lists.DURABLE}),
    "max_deliveries": frozenset({Lists.QUEUE, Lists.DURABLE}),
    "dead_letter": frozenset({Lists.QUEUE, Lists.DURABLE}),
    "auto_create": frozenset({Lists.QUEUE}),
    "idle_delete": frozenset({Lists.QUEUE}),
    "non_persistent": frozenset({Lists.QUEUE}),
}


def lists_of(match: str) -> frozenset[Lists]:
    """The lists that destinations of *match* can have."""
    prefix, pattern = split_match(match)
    first = pattern.split(".")[0]
    found: set[Lists] = set()
    if prefix != names.TOPIC_PREFIX:
        if first in ("*", ">", names.TEMPORARY_LEVEL):
            found.add(Lists.TEMPORARY)
        if first != names.TEMPORARY_LEVEL:
            found.add(Lists.QUEUE)
    if prefix != names.QUEUE_PREFIX:
        found.add(Lists.UNSTORED)
        if first != names.TEMPORARY_LEVEL:
            found.add(Lists.DURABLE)
    return frozenset(found)


def applies(option: str, destination: str) -> bool:
    """Whether *option* is for anything that *destination*, or a topic filter, can have."""
    wanted = _FOR.get(option)
    return wanted is None or bool(wanted & lists_of(destination))


def check_effect(table: PolicyTable, cursors: Mapping[str, CursorFactory]) -> None:
    """Refuse options without effect. Args: table: with its cursors decided; cursors: by name.

    Raises: ConfigError that names the key.
    """
    has = lists_of(table.policy.match)
    if table.paging_key:
        _check_pages(table, has, cursors)
    for option, key in table.written.items():
        wanted = _FOR.get(option)
        if wanted is not None and not wanted & has:
            meant = " and ".join(item.value for item in Lists if item in wanted)
            raise _no_effect(
                table, key, f"it applies to {meant}, and {table.policy.match!r} matches none"
            )
        reason = _REASONS.get(option, _none)(table, has, cursors)
        if reason:
            raise _no_effect(table, key, reason)


def _check_pages(
    table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]
) -> None:
    for name in _chosen(table, has):
        if not (cursors[name].needs_store or cursors[name].spools):
            raise ConfigError(
                f"the cursor {name!r} cannot page: it keeps all messages in memory and "
                "makes producers wait; use another cursor",
                key=f"{table.key}.{table.paging_key}",
            )


def refuse_written(tables: Iterable[PolicyTable], option: str, reason: str) -> None:
    """Refuse *option* wherever it is written. Raises: ConfigError that names the key."""
    for table in tables:
        if option in table.written:
            raise _no_effect(table, table.written[option], reason)


def _chosen(table: PolicyTable, has: frozenset[Lists]) -> list[str]:
    """The cursors of the table's lists."""
    policy = table.policy
    used = {
        Lists.QUEUE: policy.cursor,
        Lists.DURABLE: policy.durable_cursor,
        Lists.UNSTORED: policy.subscriber_cursor,
        Lists.TEMPORARY: policy.subscriber_cursor,
    }
    return sorted({used[lists] for lists in has})


def _no_effect(table: PolicyTable, key: str, reason: str) -> ConfigError:
    return ConfigError(f"has no effect: {reason}; remove it", key=f"{table.key}.{key}")


_Reason = Callable[[PolicyTable, frozenset[Lists], Mapping[str, "CursorFactory"]], str]


def _none(table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]) -> str:
    return ""


def _cursor(table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]) -> str:
    others = [name for name in ("durable_cursor", "subscriber_cursor") if name in table.written]
    if has.difference(*(_FOR[name] for name in others)):
        return ""
    keys = " and ".join(table.written[name] for name in others)
    return f"{keys} already cover everything that {table.policy.match!r} matches"


def _is_spooled(table: PolicyTable) -> bool:
    return table.policy.non_persistent == SPOOLED


def _temporary_limit(
    table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]
) -> str:
    chosen = _chosen(table, has)
    if _is_spooled(table) or any(cursors[name].spools for name in chosen):
        return ""
    return f"no cursor of this table uses temporary files ({', '.join(map(repr, chosen))})"


def _high_water_mark(
    table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]
) -> str:
    chosen = _chosen(table, has)
    if _is_spooled(table) or not all(cursors[name].needs_store for name in chosen):
        return ""
    return f"all cursors of this table read from the store ({', '.join(map(repr, chosen))})"


def _dead_letter(
    table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]
) -> str:
    policy = table.policy
    if policy.overflow_dead_letter or policy.subscription_overflow_dead_letter:
        return ""
    return "" if policy.max_deliveries else "nothing is moved there because max_deliveries is 0"


def _idle_delete(
    table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]
) -> str:
    made = table.policy.declared_queue
    return (
        f"with auto_create = false this table creates {made}, which is never deleted"
        if made
        else ""
    )


def _slow_consumer_act(
    table: PolicyTable, has: frozenset[Lists], cursors: Mapping[str, CursorFactory]
) -> str:
    policy = table.policy
    is_on = policy.slow_consumer_age or policy.slow_consumer_rate
    return "" if is_on else "slow_consumer_age and slow_consumer_rate are off"


def _of_limit(prefix: str, option: str) -> _Reason:
    return lambda table, has, cursors: limit_reason(table.policy, prefix, option)


#: By option, why it has no effect in this table; "" when it has one.
_REASONS: Final[Mapping[str, _Reason]] = {
    "slow_consumer_act": _slow_consumer_act,
    "cursor": _cursor,
    "cursor_memory_high_water_mark": _high_water_mark,
    "temporary_limit": _temporary_limit,
    "dead_letter": _dead_letter,
    "idle_delete": _idle_delete,
    **{name: _of_limit("", name) for name in LIMIT_OPTIONS},
    **{SUBSCRIPTION_PREFIX + name: _of_limit(SUBSCRIPTION_PREFIX, name) for name in LIMIT_OPTIONS},
}
