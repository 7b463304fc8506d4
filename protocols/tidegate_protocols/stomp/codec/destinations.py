"""Destination names as STOMP clients write them, and the canonical form.

===========================================  =================
a client writes                              canonical
===========================================  =================
``/queue/NAME`` or ``queue://NAME``          ``queue://NAME``
``/topic/NAME`` or ``topic://NAME``          ``topic://NAME``
``NAME`` with ``destination-type:ANYCAST``   ``queue://NAME``
``NAME`` with ``…:MULTICAST``                ``topic://NAME``
``/temp-queue/NAME``, ``/temp-topic/NAME``   the broker's name
===========================================  =================

NAME is the same in both: levels joined by ``.``, and in a filter ``*`` and ``>``. The gateway itself
writes the first spelling.
"""

from __future__ import annotations

from typing import Final

from tidegate.spi import PeerProtocolError, names

#: Topics that MQTT clients could not distinguish from queues and from shared subscriptions.
_NOT_TOPICS: Final = ("topic://$queue.", "topic://$share.")

#: Artemis' routing types, which choose for a name without a prefix.
_ROUTING_TYPES: Final = {"ANYCAST": names.QUEUE_PREFIX, "MULTICAST": names.TOPIC_PREFIX}


def canonical(name: str) -> str | None:
    """The canonical form of a destination; None when it is neither queue nor topic."""
    if name.startswith("/queue/"):
        return names.QUEUE_PREFIX + name[7:]
    if name.startswith("/topic/"):
        return names.TOPIC_PREFIX + name[7:]
    if name.startswith((names.QUEUE_PREFIX, names.TOPIC_PREFIX)):
        return name
    return None


def temporary(name: str) -> str | None:
    """The destination to make a temporary one for; None when *name* is not temporary."""
    if name.startswith("/temp-queue/"):
        return names.QUEUE_PREFIX + name[12:]
    if name.startswith("/temp-topic/"):
        return names.TOPIC_PREFIX + name[12:]
    return None


def to_publish(name: str, routing_type: str = "") -> str:
    """The canonical destination for a SEND to *name*. Raises: PeerProtocolError.

    *routing_type*: the value of ``destination-type``; a prefix of *name* takes precedence.
    """
    destination = _required(name, routing_type)
    try:
        names.check_name(names.name_of(destination))
    except ValueError as error:
        raise PeerProtocolError(f"destination {name!r}: {error}") from None
    return destination


def to_subscribe(name: str, routing_type: str = "") -> str:
    """The canonical destination or filter for a SUBSCRIBE to *name*. Raises: PeerProtocolError.

    *routing_type*: as for :func:`to_publish`, from ``subscription-type``.
    """
    destination = _required(name, routing_type)
    try:
        names.check_filter(names.name_of(destination))
    except ValueError as error:
        raise PeerProtocolError(f"destination {name!r}: {error}") from None
    return destination


def to_stomp(destination: str) -> str:
    """A canonical destination as it is written in a frame."""
    kind = "/topic/" if names.is_topic(destination) else "/queue/"
    return kind + names.name_of(destination)


def _required(name: str, routing_type: str) -> str:
    destination = canonical(name)
    if destination is not None and destination.startswith(_NOT_TOPICS):
        raise PeerProtocolError(
            f"destination {name!r}: a topic must not begin with $queue. or $share., "
            "which have a special meaning in MQTT; write /queue/NAME for a queue"
        )
    if destination is None and routing_type and not name.startswith("/"):
        prefix = _ROUTING_TYPES.get(routing_type)
        if prefix is None:
            raise PeerProtocolError(
                f"unknown destination type {routing_type[:40]!r}; write ANYCAST or MULTICAST"
            )
        return _required(prefix + name, "")
    if destination is None:
        raise PeerProtocolError(
            f"destination {name!r} is neither a queue nor a topic; write /queue/NAME or /topic/NAME"
        )
    return destination
