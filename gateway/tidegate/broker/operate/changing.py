"""What parts of a broker's configuration can change while it runs, and how.

:func:`change` takes effect within one step of the loop. The limits of existing lists follow in steps
(:func:`limit_lists`): there may be a hundred thousand of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tidegate.broker.core import BrokerCore
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.walks import STEP_LISTS
from tidegate.config import (
    SPOOLED,
    BrokerConfig,
    DestinationPolicy,
    PolicyMap,
    Quota,
    applies,
)
from tidegate.spi import CursorFactory

#: Options of ``[broker]`` that count at once; all others count from the next start.
LIVE: Final = frozenset(
    {
        "acknowledged_age",
        "acknowledged_body_max",
        "acknowledged_limit",
        "acknowledged_overflow",
        "connection_held_limit",
        "connections_max",
        "cursor_memory_limit",
        "held_limit",
        "in_flight_limit",
        "levels_max",
        "log_format",
        "log_level",
        "overload_lag",
        "pending_write_limit",
        "queues_max",
        "retained_limit",
        "temporary_free_limit",
        "temporary_space",
        "transaction_operations_max",
        "transactions_open_max",
        "unstored_memory_limit",
    }
)

#: Options of destinations that a list is made with: existing lists keep what they have.
MADE_WITH: Final = (
    "cursor",
    "durable_cursor",
    "subscriber_cursor",
    "memory_limit",
    "memory_messages",
    "cursor_memory_high_water_mark",
    "page_count",
    "page_bytes",
    "temporary_limit",
    "non_persistent",
)


def change(
    core: BrokerCore,
    config: BrokerConfig,
    quotas: Sequence[Quota],
    policies: Sequence[DestinationPolicy],
    cursors: Mapping[str, CursorFactory],
) -> None:
    """Use these from now on. Cannot fail.

    Args: config: differs only in :data:`LIVE` options; cursors: those that *policies* name.
    """
    core.config, core.quotas, core.policies = config, quotas, policies
    core.accounts.change(config, quotas)
    core.acknowledged_log.change(config)
    core.destinations.change(config, policies, cursors)
    core.sockets.connections_max = config.connections_max
    core.overload.lag_max = config.overload_lag
    core.retained.limit_bytes = config.retained_limit
    core.flow.turn_bytes_max = config.pending_write_limit
    # What was once watched stays watched: what had begun must end.
    idle, slow, abandoned = core.idle_queues, core.slow_consumers, core.abandoned
    for policy in policies:
        idle.is_on = idle.is_on or policy.idle_delete > 0
        slow.is_on = slow.is_on or policy.slow_consumer_age + policy.slow_consumer_rate > 0
        abandoned.is_on = abandoned.is_on or policy.subscription_expiry > 0
        if policy.declared_queue:
            core.destinations.declare_queue(policy.declared_queue)
    core.destinations.marks_use = idle.is_on


#: By ``match`` of a table and option, how many lists lack its value until the next start.
Left: TypeAlias = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Before:
    """The state before a change. Attributes: lists; policy: of a destination."""

    lists: Sequence[PendingList]
    policy: Callable[[str], DestinationPolicy]

    @classmethod
    def of(cls, core: BrokerCore) -> Before:
        return cls(list(core.destinations.charged), PolicyMap(core.policies).of)


async def made_otherwise(
    core: BrokerCore, before: Before, policies: Sequence[DestinationPolicy]
) -> Left:
    """What existing lists would be made with differently, by *policies*."""
    left: Left = Counter()
    of = PolicyMap(policies).of
    for count, pending_list in enumerate(before.lists, 1):
        old, new = before.policy(pending_list.destination), of(pending_list.destination)
        if new != old and not pending_list.is_removed:
            for option in MADE_WITH:
                is_other = getattr(new, option) != getattr(old, option)
                if is_other and applies(option, pending_list.destination):
                    left[new.match, option] += 1
        if not count % STEP_LISTS:
            await asyncio.sleep(0)
    if core.destinations.spooling is None:
        for policy in policies:
            if policy.non_persistent == SPOOLED:
                left[policy.match, "non_persistent"] += 0
    return left


async def limit_lists(core: BrokerCore, before: Before) -> Left:
    """Give lists from before the change the limits of their new policies."""
    left: Left = Counter()
    destinations = core.destinations
    for count, pending_list in enumerate(before.lists, 1):
        destination = pending_list.destination
        old, new = before.policy(destination), destinations.policy(destination)
        is_there = not pending_list.is_removed and destinations.has_limit(pending_list)
        is_other = new != old and is_there
        if is_other:
            option = core.limits.change(pending_list, new, partial(content, core))
            if option:
                left[new.match, option] += 1
        if (
            is_other or not count % STEP_LISTS
        ):  # counting what is in a list takes a look at all clients
            await asyncio.sleep(0)
    return left


def content(core: BrokerCore, pending_list: PendingList) -> int:
    """How many messages the store has for the list: those that wait, are in flight or on their way back, are held
    by a transaction or a branch, or leave with a batch that is not durable yet."""
    count = pending_list.cursor.size + core.flow.coming_back.of(pending_list)
    for consumer in pending_list.all_consumers():
        count += sum(entry[1] is pending_list for entry in consumer.in_flight.values())
    for connection in core.connections:
        count += connection.held_of(pending_list)
    count += core.branches.locked_of(pending_list)
    return count + sum(turn.leaving(pending_list) for turn in core.writer.turns_under_way())
