"""Destination names as STOMP clients write them, and the canonical form.

======================================  ================
a client writes                         canonical
======================================  ================
``/queue/NAME`` or ``queue://NAME``     ``queue://NAME``
``/topic/NAME`` or ``topic://NAME``     ``topic://NAME``
======================================  ================

NAME is the same in both: levels joined by ``.``, and in a filter ``*`` and ``>``. What the gateway
writes is the first spelling.
"""

from __future__ import annotations

from tidegate.spi import PeerProtocolError, names


def canonical(name: str) -> str | None:
    """The canonical form of a destination; None when it is neither queue nor topic."""
    if name.startswith("/queue/"):
        return names.QUEUE_PREFIX + name[7:]
    if name.startswith("/topic/"):
        return names.TOPIC_PREFIX + name[7:]
    if name.startswith((names.QUEUE_PREFIX, names.TOPIC_PREFIX)):
        return name
    return None


def to_publish(name: str) -> str:
    """The canonical destination for a SEND to *name*. Raises: PeerProtocolError."""
    destination = _required(name)
    try:
        names.check_name(names.name_of(destination))
    except ValueError as error:
        raise PeerProtocolError(f"destination {name!r}: {error}") from None
    return destination


def to_subscribe(name: str) -> str:
    """The canonical destination or filter for a SUBSCRIBE to *name*. Raises: PeerProtocolError."""
    destination = _required(name)
    try:
        names.check_filter(names.name_of(destination))
    except ValueError as error:
        raise PeerProtocolError(f"destination {name!r}: {error}") from None
    return destination


def to_stomp(destination: str) -> str:
    """A canonical destination as it is written in a frame."""
    kind = "/topic/" if names.is_topic(destination) else "/queue/"
    return kind + names.name_of(destination)


def _required(name: str) -> str:
    destination = canonical(name)
    if destination is None:
        raise PeerProtocolError(
            f"destination {name!r} names neither a queue nor a topic; "
            "write /queue/NAME or /topic/NAME"
        )
    return destination
