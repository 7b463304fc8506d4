"""MQTT names to canonical destinations and back; the map is described in docs/mqtt.md.

``a/b`` is the topic ``topic://a.b`` and ``$queue/a/b`` the queue ``queue://a.b``: the separators
and wildcards are swapped (:func:`tidegate.spi.names.swap_separators`), which loses nothing.
``$share/GROUP/FILTER`` is a subscription to FILTER that the members of GROUP share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, final

import msgspec

from tidegate.spi import AccessError, LocalProtocolError, RequestError, names
from tidegate_protocols.mqtt.codec.encode import field

T = TypeVar("T")

QUEUE_PREFIX: Final = "$queue/"
SHARE_PREFIX: Final = "$share/"
SYSTEM_PREFIX: Final = "$SYS/"

_QUEUE_PREFIX_BYTES: Final = QUEUE_PREFIX.encode()
#: Separators and wildcards swapped, byte by byte of UTF-8, where no other character has these bytes.
_SWAPPED: Final = names.swap_separators(bytes(range(128)).decode()).encode() + bytes(
    range(128, 256)
)

#: Names kept by each cache: enough for the working set of a busy gateway. Together with
#: CACHED_NAME_LENGTH_MAX it bounds the memory that clients inventing topics can take (about 3 MB).
CACHE_COUNT_MAX: Final = 4096
CACHED_NAME_LENGTH_MAX: Final = 256


@final
class NameCache(dict[str, T]):
    """``cache[name]`` computes and caches; a hit costs one dictionary lookup."""

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> T:
        value = self._make(name)
        if len(name) <= CACHED_NAME_LENGTH_MAX:
            if len(self) >= CACHE_COUNT_MAX:
                self.clear()
            self[name] = value
        return value


class FilterTarget(msgspec.Struct, frozen=True, gc=False):
    """What a topic filter asks for. share_group: "" when the subscription is not shared."""

    destination: str
    share_group: str = ""

    @property
    def is_queue(self) -> bool:
        return names.is_queue(self.destination)

    @property
    def is_own(self) -> bool:
        """Its messages belong to this client alone: neither to a queue nor to a group."""
        return not self.share_group and not self.is_queue


def destination_of(topic: str) -> str:
    """The canonical destination of a topic name that a client publishes to.

    Args: topic: not empty, no wildcards (the codec has checked that).
    Raises: AccessError for names that the gateway reserves (MQTT 3.1.1 section 4.7.2:
        a server prevents clients from using ``$`` topics to talk to each other); RequestError
        for ``$queue/`` without a name.
    """
    if not topic.startswith("$"):
        return names.topic(names.swap_separators(topic))
    if topic.startswith(QUEUE_PREFIX):
        try:
            return names.queue(_queue_name(topic))
        except ValueError as error:
            raise RequestError(str(error)) from error
    if topic.startswith((SHARE_PREFIX, SYSTEM_PREFIX)):
        raise AccessError("clients must not publish to the gateway's own topics", destination=topic)
    return names.topic(names.swap_separators(topic))


def target_of(topic_filter: str) -> FilterTarget:
    """What a topic filter subscribes to.

    Args: topic_filter: well-formed (the codec has checked that).
    Raises: ValueError when the gateway does not accept it.
    """
    share_group = ""
    rest = topic_filter
    if rest.startswith(SHARE_PREFIX):
        share_group, _, rest = rest[len(SHARE_PREFIX) :].partition("/")
        if not share_group or not rest or "+" in share_group or "#" in share_group:
            raise ValueError(
                f"{topic_filter!r}: write $share/GROUP/FILTER, with a GROUP without wildcards"
            )
    if rest.startswith(QUEUE_PREFIX):
        # The consumers of a queue share it in any case: the group adds nothing.
        name = _queue_name(rest)
        names.check_filter(name)
        return FilterTarget(names.queue(name))
    name = names.swap_separators(rest)
    names.check_filter(name)
    return FilterTarget(names.topic(name), share_group)


def _queue_name(topic: str) -> str:
    name = names.swap_separators(topic[len(QUEUE_PREFIX) :])
    if not name:
        raise ValueError(f"{topic!r} does not name a queue; write $queue/NAME")
    return name


def topic_of(destination: str) -> str:
    """The MQTT topic name of a canonical destination."""
    topic = names.swap_separators(names.name_of(destination))
    return QUEUE_PREFIX + topic if names.is_queue(destination) else topic


def topic_field(destination: str) -> bytes:
    """The topic name as encoded in a PUBLISH, with its length.

    Raises: LocalProtocolError when it is too long for MQTT (a queue's can be, with its prefix).
    """
    try:
        # As topic_of, but bytes are faster, which counts for a subscriber to 100,000 topics.
        name = names.name_of(destination).encode().translate(_SWAPPED)
        return field(_QUEUE_PREFIX_BYTES + name if names.is_queue(destination) else name)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{destination!r} cannot be written as UTF-8") from error


#: ``DESTINATIONS[topic]``: :func:`destination_of`; ``TOPIC_FIELDS[destination]``: `topic_field`.
DESTINATIONS: Final = NameCache(destination_of)
TOPIC_FIELDS: Final = NameCache(topic_field)
