"""What each broker with STOMP wants, and can do: told apart by what its CONNECTED says that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate_bridge import _protocol as protocol

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Broker:
    """One kind of broker.

    Attributes:
        name: for operators.
        id_headers: which together are the same each time that it gives a message; none: it has no such thing.
        prefetch: the header that bounds what it gives unacknowledged, and whether it counts bytes.
        durable: headers for a durable subscription of a name.
        has_selectors: it knows ``selector``.
        says_persistent: messages without ``persistent`` are not.
        has_types: a body without ``content-length`` is a JMS TextMessage.
        ttl_header: expiry is a time to live in milliseconds, under this name; "": it is ``expires``, a time.
    """

    name: str
    id_headers: tuple[str, ...] = ()
    prefetch: tuple[str, bool] = ("prefetch-count", False)
    durable: Callable[[str], Headers] = field(
        default=lambda name: {"durable-subscription-name": name}
    )
    has_selectors: bool = True
    says_persistent: bool = True
    has_types: bool = False
    ttl_header: str = ""


def _rabbit_durable(name: str) -> Headers:
    return {"id": name, "durable": "true", "auto-delete": "false"}


TIDEGATE: Final = Broker("tidegate", ("message-id",), says_persistent=False)
CLASSIC: Final = Broker(
    "activemq-classic",
    # Ids of messages are the producer's connection and a number: the same after a restart.
    ("message-id", "timestamp"),
    ("activemq.prefetchSize", False),
    lambda name: {"activemq.subscriptionName": name},
    has_types=True,
)
ARTEMIS: Final = Broker(
    "artemis",
    # Ids are the journal's, and begin again in another journal: with the time they do not come twice.
    ("message-id", "timestamp"),
    ("consumer-window-size", True),
)
RABBITMQ: Final = Broker(
    "rabbitmq",
    # Its message-id is the delivery's; this one is the producer's, where there is one.
    ("amqp-message-id",),
    durable=_rabbit_durable,
    has_selectors=False,
    ttl_header="expiration",
)
#: An id that comes again for another message would lose that one, so nothing is taken for one.
UNKNOWN: Final = Broker("unknown")

_BY_SERVER: Final[Mapping[str, Broker]] = {
    "activemq-artemis": ARTEMIS,
    "activemq": CLASSIC,
    "rabbitmq": RABBITMQ,
    "tidegate": TIDEGATE,
}


def broker_of(server: str) -> Broker:
    """Args: server: header of CONNECTED, e.g. ``RabbitMQ/3.10.8``."""
    return _BY_SERVER.get(server.partition("/")[0].strip().lower(), UNKNOWN)


def lasting_id(broker: Broker, headers: Mapping[str, str]) -> str:
    """What *broker* calls a message each time that it gives it; "": it calls it nothing that lasts."""
    found = [headers.get(name, "") for name in broker.id_headers]
    if not all(found):
        return ""
    if broker is ARTEMIS:
        found[0] = found[0].rpartition(",")[
            2
        ]  # before the comma: the consumer, another one each time
    return ":".join(found)


def destination(broker: Broker, rule: protocol.Rule, name: str) -> tuple[str, Headers]:
    """Where to subscribe or send, and the headers that say what kind it is.

    Artemis takes ``/queue/`` for a part of the name, unless its acceptor has prefixes: it is told the routing type.
    """
    if broker is not ARTEMIS or {"destination-type", "subscription-type"} & rule.headers.keys():
        return name, {}
    for prefix, kind in (("/queue/", "ANYCAST"), ("/topic/", "MULTICAST")):
        if name.startswith(prefix):
            return name[len(prefix) :], {
                "subscription-type": kind,
                "destination-type": kind,
            }
    return name, {}


def subscribing(broker: Broker, start: protocol.Start, rule: protocol.Rule) -> tuple[str, Headers]:
    """Destination and headers of the SUBSCRIBE of *rule*."""
    name, headers = destination(broker, rule, rule.remote)
    headers.pop("destination-type", None)
    header, in_bytes = broker.prefetch
    headers[header] = str(start.window_bytes if in_bytes else start.window)
    if rule.selector:
        headers["selector"] = rule.selector
    if rule.durable:
        headers |= broker.durable(rule.durable)
    return name, headers | rule.headers
