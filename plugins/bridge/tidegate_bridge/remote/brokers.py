"""What each STOMP broker needs and can do. The ``server`` header of CONNECTED tells them apart."""

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
        id_headers: together stable over redeliveries of a message; none: it has no such headers.
        prefetch: the header that bounds unacknowledged messages, and whether it counts bytes.
        durable: headers for a named durable subscription.
        has_selectors: it knows ``selector``.
        says_persistent: messages without the header ``persistent`` are not persistent.
        has_types: a body without ``content-length`` is a JMS TextMessage.
        ttl_header: the header with a time to live in milliseconds; "": it uses ``expires``, a time.
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
    # Message ids are the producer's connection and a number: stable over restarts.
    ("message-id", "timestamp"),
    ("activemq.prefetchSize", False),
    lambda name: {"activemq.subscriptionName": name},
    has_types=True,
)
ARTEMIS: Final = Broker(
    "artemis",
    # Ids are the journal's and restart with a new journal: with the time they are unique.
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
#: An id reused for another message would lose that message, so none is assumed.
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
    """The id of a message that is stable over redeliveries by *broker*; "" for none."""
    found = [headers.get(name, "") for name in broker.id_headers]
    if not all(found):
        return ""
    if broker is ARTEMIS:
        found[0] = found[0].rpartition(",")[2]  # before the comma: the consumer, which changes
    return ":".join(found)


def destination(broker: Broker, rule: protocol.Rule, name: str) -> tuple[str, Headers]:
    """Where to subscribe or send, and the headers for its kind.

    Artemis takes ``/queue/`` as part of the name unless its acceptor has prefixes, so this sends it
    the routing type.
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
