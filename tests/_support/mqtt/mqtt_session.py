"""Words that tests of MQTT's sessions share."""

from tidegate.spi import (
    InflightDirection,
    InflightState,
)
from tidegate_protocols.mqtt import (
    Subscribe,
    TopicRequest,
)

IN, OUT = InflightDirection.IN, InflightDirection.OUT
PUBLISHED, RECEIVED, RELEASED = (
    InflightState.PUBLISHED,
    InflightState.RECEIVED,
    InflightState.RELEASED,
)


# How a connection ends: (graceful, publish_will, session_expiry).
LEFT, LOST = (True, False, None), (False, False, None)


def subscribe(*wanted: tuple[str, int], packet_id: int = 1) -> Subscribe:
    return Subscribe(packet_id, tuple(TopicRequest(name, qos) for name, qos in wanted))
