"""MQTT: an incremental codec, a session machine on the broker's contract, a listener."""

from __future__ import annotations

from tidegate_protocols.mqtt._front_end import MqttFrontEnd, MqttFrontEndFactory
from tidegate_protocols.mqtt._options import MqttOptions
from tidegate_protocols.mqtt.codec.codec import NEED_DATA, Codec, NeedData
from tidegate_protocols.mqtt.codec.codes import (
    MalformedPacketError,
    PacketType,
    PacketViolationError,
    ReasonCode,
    UnsupportedVersionError,
)
from tidegate_protocols.mqtt.codec.encode import encode
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    TopicRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.validate import validate
from tidegate_protocols.mqtt.session.session import Session
from tidegate_protocols.mqtt.session.states import SessionState

__all__ = [
    "NEED_DATA",
    "NO_PROPERTIES",
    "Auth",
    "Codec",
    "Connack",
    "Connect",
    "Disconnect",
    "MalformedPacketError",
    "MqttFrontEnd",
    "MqttFrontEndFactory",
    "MqttOptions",
    "NeedData",
    "Packet",
    "PacketType",
    "PacketViolationError",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "Session",
    "SessionState",
    "Suback",
    "Subscribe",
    "TopicRequest",
    "Unsuback",
    "Unsubscribe",
    "UnsupportedVersionError",
    "Will",
    "encode",
    "validate",
]
