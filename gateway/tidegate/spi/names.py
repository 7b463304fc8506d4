"""Destination names: one canonical form, and its reversible map to STOMP and MQTT names.

A canonical destination is ``queue://NAME`` or ``topic://NAME``. NAME is a list of levels joined
by ``.``; in a filter a whole level may be ``*`` (any one level) and the last may be ``>`` (any
number of levels, including none). This is the STOMP spelling of the seeds.

MQTT writes ``/``, ``+`` and ``#`` for the same three things. The map between the two *swaps* the
characters of each pair (``.``↔``/``, ``*``↔``+``, ``>``↔``#``), so it is its own inverse and
loses nothing: the MQTT topic ``a/b.c`` is the STOMP topic ``a.b/c`` and comes back as ``a/b.c``.
"""

from __future__ import annotations

import functools
from typing import Final

QUEUE_PREFIX: Final = "queue://"
TOPIC_PREFIX: Final = "topic://"

#: First level of the names of temporary destinations, which the gateway makes (see
#: ``BrokerConnection.make_temporary``). Like every first level with a ``$``, no wildcard covers it.
TEMPORARY_LEVEL: Final = "$temporary"
_TEMPORARY: Final = (
    f"{QUEUE_PREFIX}{TEMPORARY_LEVEL}.",
    f"{TOPIC_PREFIX}{TEMPORARY_LEVEL}.",
)

#: UTF-8 bytes of a name. MQTT 5.0 section 1.5.4 cannot carry more, so a longer name could not be
#: reached from both protocols.
NAME_BYTES_MAX: Final = 65_535

#: Longest filter, in characters, whose levels are cached.
_REMEMBERED_LENGTH_MAX: Final = 256

#: Default limit on the levels of a name or filter: matching and the trees of names cost time and memory
#: for each level.
LEVELS_MAX: Final = 128

_SWAP: Final = str.maketrans("./*+>#", "/.+*#>")


def swap_separators(name: str) -> str:
    """Turn an MQTT topic name or filter into a canonical NAME, or the other way round."""
    return name.translate(_SWAP)


def queue(name: str) -> str:
    """The canonical destination of queue *name*."""
    return QUEUE_PREFIX + name


def topic(name: str) -> str:
    """The canonical destination of topic *name*."""
    return TOPIC_PREFIX + name


def is_queue(destination: str) -> bool:
    """Tell whether the canonical *destination* is a queue."""
    return destination.startswith(QUEUE_PREFIX)


def is_topic(destination: str) -> bool:
    """Tell whether the canonical *destination* is a topic."""
    return destination.startswith(TOPIC_PREFIX)


def is_temporary(destination: str) -> bool:
    """Tell whether the canonical *destination* (or filter) is a temporary one."""
    return destination.startswith(_TEMPORARY)


def name_of(destination: str) -> str:
    """The NAME part of a canonical destination (both prefixes have the same length)."""
    return destination[8:]


def is_filter(name: str) -> bool:
    """Tell whether *name* (or a canonical destination) contains a wildcard level."""
    return "*" in name or ">" in name


def check_name(name: str) -> None:
    """Check that NAME can name a destination (no wildcards).

    Raises: ValueError with the reason.
    """
    if is_filter(name):
        raise ValueError(
            f"{name!r} contains a wildcard ('*' or '>'), which is only allowed in a filter"
        )
    _check_text(name)


def check_filter(name: str) -> None:
    """Check that NAME is a legal filter: wildcards are whole levels and ``>`` is the last one.

    Raises: ValueError with the reason. Source: MQTT 3.1.1 section 4.7.1.
    """
    _check_text(name)
    if not is_filter(name):
        return
    levels = name.split(".")
    for position, level in enumerate(levels):
        if ("*" in level or ">" in level) and len(level) != 1:
            raise ValueError(f"{name!r}: a wildcard must be a whole level, not part of {level!r}")
        if level == ">" and position != len(levels) - 1:
            raise ValueError(f"{name!r}: '>' must be the last level")


def _check_text(name: str) -> None:
    if not name:
        raise ValueError("a destination name must not be empty")
    if "\0" in name:
        raise ValueError("a destination name must not contain U+0000")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("a destination name must not contain lone surrogates") from None
    if size_bytes > NAME_BYTES_MAX:
        raise ValueError(
            f"a destination name must not be longer than {NAME_BYTES_MAX} bytes of UTF-8"
        )


def matches(filter_name: str, name: str) -> bool:
    """Tell whether *filter_name* (a NAME, perhaps with wildcards) covers *name*.

    A wildcard in the first level does not match a name that starts with ``$``
    (MQTT 3.1.1 [MQTT-4.7.2-1]); ``a.>`` covers ``a`` itself (MQTT 3.1.1 section 4.7.1.2).
    """
    if not is_filter(filter_name):
        return filter_name == name
    # A long one is split each time: caching 4096 that clients made up would take 270 MB.
    short = len(filter_name) <= _REMEMBERED_LENGTH_MAX
    wanted = _levels(filter_name) if short else filter_name.split(".")
    if name.startswith("$") and wanted[0] in ("*", ">"):
        return False
    got = name.split(".")
    for position, level in enumerate(wanted):
        if level == ">":
            return len(got) >= position
        if position >= len(got) or (level != "*" and level != got[position]):
            return False
    return len(got) == len(wanted)


@functools.lru_cache(maxsize=4096)
def _levels(filter_name: str) -> tuple[str, ...]:
    return tuple(filter_name.split("."))
