"""Options that say how much clients may make the gateway hold; part of ``[broker]``.

Each has an ``act`` and a ``metric``: docs/limits.md is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.spi import Kind, names, option


@dataclass(frozen=True, slots=True)
class HeldLimits:
    """What is held in memory for somebody: see :mod:`tidegate.broker.limits.accounts`."""

    held_limit: int = option(
        1 << 30,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="Memory that all clients together may have held for them: open transactions, frames and "
        "packets that are not complete, output that is not read, and whatever else "
        "docs/limits.md names. Guards the process.",
        act="what would need more is refused",
        metric="held.bytes",
    )
    principal_held_limit: int = option(
        512 << 20,
        kind=Kind.SIZE,
        minimum=1 << 20,
        zero="unlimited",
        help="The same for all connections of one principal together, and what outlives them. "
        "Guards the other principals' share of `held_limit`.",
        act="what would need more is refused",
        metric="held.refused",
    )
    levels_max: int = option(
        names.LEVELS_MAX,
        minimum=2,
        maximum=names.NAME_BYTES_MAX,
        help="Levels of a destination name, or of a filter; one with more is refused. Guards memory "
        "and time: each level of a filter takes 300 bytes and a step of each search.",
        act="the publish or subscription is refused",
    )
    connection_held_limit: int = option(
        128 << 20,
        kind=Kind.SIZE,
        minimum=1 << 16,
        zero="unlimited",
        help="The same for one connection. A message that is not streamed is held while it comes in, "
        "so that none is larger than this. Guards the others of the same principal.",
        act="what would need more is refused",
        metric="held.refused",
    )
