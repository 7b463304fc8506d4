"""The properties of MQTT 5.0 packets (section 2.2.2): their value type and the table of all of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, final

import msgspec

from tidegate_protocols.mqtt.codec.codes import PacketType


@final
class Properties(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The properties of one packet or will; the names are those of section 2.2.2.2.

    None: the property is absent. Intervals and the keep-alive are seconds. What the specification
    calls a byte that is 0 or 1 is an int here, so that a wrong value can be reported.
    :data:`PROPERTIES` says which packet may have which. ``subscription_identifiers``: one in
    SUBSCRIBE, any number in PUBLISH. ``user_properties``: (name, value) in order; names may repeat.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    def __repr__(self) -> str:  # authentication data must never reach a log
        shown = (
            f"{name}={'...' if name == 'authentication_data' else repr(value)}"
            for name in self.__struct_fields__
            if (value := getattr(self, name)) not in (None, ())
        )
        return f"Properties({', '.join(shown)})"


#: No properties: the one value of every packet that has none, compared with ``is``.
NO_PROPERTIES: Final = Properties()


class PropertyType(enum.Enum):
    """How a property's value is written (sections 1.5 and 2.2.2.2)."""

    BYTE = "byte"
    TWO_BYTES = "two-byte integer"
    FOUR_BYTES = "four-byte integer"
    VARIABLE = "variable byte integer"
    STRING = "UTF-8 string"
    BINARY = "binary data"
    STRING_PAIR = "UTF-8 string pair"


#: Where properties can occur: in a packet of a PacketType, or in the will of a CONNECT.
WILL: Final = 0


@final
class PropertyRule(msgspec.Struct, frozen=True, gc=False):
    """One line of table 2-4.

    Attributes: identifier; name: the field of :class:`Properties`; kind; places: the packet types
        (and :data:`WILL`) that may have it; repeats: the places where it may come more than once.
    """

    identifier: int
    name: str
    kind: PropertyType
    places: frozenset[int]
    repeats: frozenset[int] = frozenset()


_T = PropertyType
_P = PacketType
_MESSAGE: Final = frozenset({_P.PUBLISH, WILL})
_CONNECTING: Final = frozenset({_P.CONNECT, _P.CONNACK})
_CONNECT: Final = frozenset({_P.CONNECT})
_CONNACK: Final = frozenset({_P.CONNACK})
_PUBLISH: Final = frozenset({_P.PUBLISH})
_AUTHENTICATING: Final = frozenset({_P.CONNECT, _P.CONNACK, _P.AUTH})
_WITH_REASON: Final = frozenset(
    {
        _P.CONNACK,
        _P.PUBACK,
        _P.PUBREC,
        _P.PUBREL,
        _P.PUBCOMP,
        _P.SUBACK,
        _P.UNSUBACK,
        _P.DISCONNECT,
        _P.AUTH,
    }
)
_ALL: Final = _WITH_REASON | {_P.CONNECT, _P.PUBLISH, WILL, _P.SUBSCRIBE, _P.UNSUBSCRIBE}

#: All properties by their identifier (table 2-4).
PROPERTIES: Final[Mapping[int, PropertyRule]] = {
    rule.identifier: rule
    for rule in (
        PropertyRule(1, "payload_format_indicator", _T.BYTE, _MESSAGE),
        PropertyRule(2, "message_expiry_interval", _T.FOUR_BYTES, _MESSAGE),
        PropertyRule(3, "content_type", _T.STRING, _MESSAGE),
        PropertyRule(8, "response_topic", _T.STRING, _MESSAGE),
        PropertyRule(9, "correlation_data", _T.BINARY, _MESSAGE),
        PropertyRule(
            11,
            "subscription_identifiers",
            _T.VARIABLE,
            frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
            _PUBLISH,
        ),
        PropertyRule(
            17,
            "session_expiry_interval",
            _T.FOUR_BYTES,
            frozenset({_P.CONNECT, _P.CONNACK, _P.DISCONNECT}),
        ),
        PropertyRule(18, "assigned_client_identifier", _T.STRING, _CONNACK),
        PropertyRule(19, "server_keep_alive", _T.TWO_BYTES, _CONNACK),
        PropertyRule(21, "authentication_method", _T.STRING, _AUTHENTICATING),
        PropertyRule(22, "authentication_data", _T.BINARY, _AUTHENTICATING),
        PropertyRule(23, "request_problem_information", _T.BYTE, _CONNECT),
        PropertyRule(24, "will_delay_interval", _T.FOUR_BYTES, frozenset({WILL})),
        PropertyRule(25, "request_response_information", _T.BYTE, _CONNECT),
        PropertyRule(26, "response_information", _T.STRING, _CONNACK),
        PropertyRule(28, "server_reference", _T.STRING, frozenset({_P.CONNACK, _P.DISCONNECT})),
        PropertyRule(31, "reason_string", _T.STRING, _WITH_REASON),
        PropertyRule(33, "receive_maximum", _T.TWO_BYTES, _CONNECTING),
        PropertyRule(34, "topic_alias_maximum", _T.TWO_BYTES, _CONNECTING),
        PropertyRule(35, "topic_alias", _T.TWO_BYTES, _PUBLISH),
        PropertyRule(36, "maximum_qos", _T.BYTE, _CONNACK),
        PropertyRule(37, "retain_available", _T.BYTE, _CONNACK),
        PropertyRule(38, "user_properties", _T.STRING_PAIR, _ALL, _ALL),
        PropertyRule(39, "maximum_packet_size", _T.FOUR_BYTES, _CONNECTING),
        PropertyRule(40, "wildcard_subscription_available", _T.BYTE, _CONNACK),
        PropertyRule(41, "subscription_identifier_available", _T.BYTE, _CONNACK),
        PropertyRule(42, "shared_subscription_available", _T.BYTE, _CONNACK),
    )
}
