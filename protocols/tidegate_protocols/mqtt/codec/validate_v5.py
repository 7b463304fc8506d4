"""Checks that the content of a readable MQTT 5.0 packet is allowed.

Clause ids in errors are written ``5.0:MQTT-…``; in comments here they are all of MQTT 5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tidegate_protocols.mqtt.codec.codes import (
    CLIENT_DISCONNECT_REASONS,
    PacketViolationError,
    ReasonCode,
)
from tidegate_protocols.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties

SHARE_PREFIX: Final = "$share/"


def validate_publish_v5(packet: Publish) -> None:
    """Check a PUBLISH. Separate from :func:`validate_v5` because it is called for every message."""
    topic = packet.topic
    if "+" in topic or "#" in topic:
        raise PacketViolationError("the topic name contains a wildcard", "5.0:MQTT-3.3.2-2")
    if packet.qos:
        if not packet.packet_id:
            raise PacketViolationError("packet identifier 0", "5.0:MQTT-2.2.1-3")
    elif packet.dup:
        raise PacketViolationError("DUP in a PUBLISH of QoS 0", "5.0:MQTT-3.3.1-2")
    properties = packet.properties
    if properties is not NO_PROPERTIES:
        alias = properties.topic_alias
        if alias is None:
            if not topic:
                raise PacketViolationError("no topic name and no topic alias", "MQTT 5.0 3.3.2.1")
        elif not alias:
            raise PacketViolationError(
                "topic alias 0", "5.0:MQTT-3.3.2-8", ReasonCode.TOPIC_ALIAS_INVALID
            )
        _check_message(properties)
        if 0 in properties.subscription_identifiers:
            raise PacketViolationError("subscription identifier 0", "MQTT 5.0 3.3.2.3.8")
    elif not topic:
        raise PacketViolationError("no topic name and no topic alias", "MQTT 5.0 3.3.2.1")


def validate_publish_from_client(packet: Publish) -> None:
    """As :func:`validate_publish_v5`, and refuse what only a server may send."""
    validate_publish_v5(packet)
    properties = packet.properties
    if properties is not NO_PROPERTIES and properties.subscription_identifiers:
        raise PacketViolationError("a subscription identifier of a client", "5.0:MQTT-3.3.4-6")


class FilterClauses(NamedTuple):
    """The ids of the rules for topic filters in one version: a character; `#`; `+`."""

    empty: str
    hash: str
    plus: str


_FILTERS_5_0: Final = FilterClauses("5.0:MQTT-4.7.3-1", "5.0:MQTT-4.7.1-1", "5.0:MQTT-4.7.1-2")


def check_filter(topic_filter: str, clauses: FilterClauses) -> None:
    """Raise PacketViolationError unless the wildcards of a topic filter are whole levels.

    Whether a well-formed filter is refused anyway (0x8F in SUBACK) is decided by the session.
    """
    if not topic_filter:
        raise PacketViolationError("the topic filter is empty", clauses.empty)
    if "#" in topic_filter:
        before, _, after = topic_filter.partition("#")
        if after or (before and not before.endswith("/")):
            problem = f"'#' must be the whole last level of the topic filter {topic_filter[:80]!r}"
            raise PacketViolationError(problem, clauses.hash)
    if "+" in topic_filter and any(
        "+" in level and level != "+" for level in topic_filter.split("/")
    ):
        problem = f"'+' must be a whole level of the topic filter {topic_filter[:80]!r}"
        raise PacketViolationError(problem, clauses.plus)


def payload_matches_format(properties: Properties, body: bytes) -> bool:
    """Whether a payload declared as UTF-8 is UTF-8 (section 3.3.2.3.2).

    The specification allows a receiver to check it; it costs a pass over the body.
    """
    if properties.payload_format_indicator != 1:
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def validate_v5(packet: Packet) -> None:
    """Check one packet of any type. Raises: PacketViolationError with the clause."""
    check = _CHECKS.get(type(packet))
    if check is not None:
        check(packet)


def validate_sender(packet: Packet, *, from_client: bool) -> None:
    """Check that a DISCONNECT, AUTH or PUBLISH has only content that its sender may send."""
    match packet:
        case Publish() if from_client:
            validate_publish_from_client(packet)
        case Disconnect():
            _check_disconnect_sender(packet, from_client=from_client)
        case Auth():
            wrong = ReasonCode.SUCCESS if from_client else ReasonCode.REAUTHENTICATE
            if packet.reason_code == wrong:
                raise PacketViolationError(
                    f"AUTH with reason {wrong.name} is not allowed in this direction",
                    "5.0:MQTT-3.15.2-1",
                )
        case _:
            pass


def _check_disconnect_sender(packet: Disconnect, *, from_client: bool) -> None:
    reason, properties = packet.reason_code, packet.properties
    if from_client:
        if reason not in CLIENT_DISCONNECT_REASONS:
            raise PacketViolationError(
                f"a client must not send DISCONNECT with reason {reason.name}", "5.0:MQTT-3.14.2-1"
            )
        if properties.server_reference is not None:
            raise PacketViolationError(
                "a client must not send a server reference", "MQTT 5.0 3.14.2.2.5"
            )
    else:
        if reason is ReasonCode.DISCONNECT_WITH_WILL:
            raise PacketViolationError(
                f"a server must not send DISCONNECT with reason {reason.name}", "5.0:MQTT-3.14.2-1"
            )
        if properties.session_expiry_interval is not None:
            raise PacketViolationError(
                "a server must not send a session expiry", "5.0:MQTT-3.14.2-2"
            )


def _check_message(properties: Properties) -> None:
    """The properties that a PUBLISH and a will have in common."""
    _check_flag(properties, "payload_format_indicator", "MQTT 5.0 3.3.2.3.2")
    response_topic = properties.response_topic
    if response_topic is not None:
        if not response_topic:
            raise PacketViolationError("an empty response topic", "5.0:MQTT-4.7.3-1")
        if "+" in response_topic or "#" in response_topic:
            raise PacketViolationError("a wildcard in the response topic", "5.0:MQTT-3.3.2-14")


def _check_flag(properties: Properties, name: str, clause: str) -> None:
    if getattr(properties, name) not in (None, 0, 1):
        raise PacketViolationError(f"{name} is neither 0 nor 1", clause)


def _check_limits(properties: Properties, receive_maximum: str, packet_size: str) -> None:
    if properties.receive_maximum == 0:
        raise PacketViolationError("the receive maximum must not be 0", receive_maximum)
    if properties.maximum_packet_size == 0:
        raise PacketViolationError("the maximum packet size must not be 0", packet_size)


def _validate_connect(packet: Connect) -> None:
    properties = packet.properties
    if properties is not NO_PROPERTIES:
        _check_limits(properties, "MQTT 5.0 3.1.2.11.3", "MQTT 5.0 3.1.2.11.4")
        _check_flag(properties, "request_response_information", "MQTT 5.0 3.1.2.11.6")
        _check_flag(properties, "request_problem_information", "MQTT 5.0 3.1.2.11.7")
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise PacketViolationError(
                "authentication data without a method", "MQTT 5.0 3.1.2.11.10"
            )
    will = packet.will
    if will is not None:
        if not will.topic:
            raise PacketViolationError("an empty will topic", "5.0:MQTT-4.7.3-1")
        if "+" in will.topic or "#" in will.topic:
            raise PacketViolationError("a wildcard in the will topic", "5.0:MQTT-4.7.0-1")
        _check_message(will.properties)


def _validate_connack(packet: Connack) -> None:
    if packet.reason_code and packet.session_present:
        raise PacketViolationError(
            "a CONNACK that refuses must not say session present", "5.0:MQTT-3.2.2-6"
        )
    properties = packet.properties
    if properties is not NO_PROPERTIES:
        _check_limits(properties, "MQTT 5.0 3.2.2.3.3", "MQTT 5.0 3.2.2.3.6")
        for name, clause in _CONNACK_FLAGS:
            _check_flag(properties, name, clause)


_CONNACK_FLAGS: Final = (
    ("maximum_qos", "MQTT 5.0 3.2.2.3.4"),
    ("retain_available", "MQTT 5.0 3.2.2.3.5"),
    ("wildcard_subscription_available", "MQTT 5.0 3.2.2.3.11"),
    ("subscription_identifier_available", "MQTT 5.0 3.2.2.3.12"),
    ("shared_subscription_available", "MQTT 5.0 3.2.2.3.13"),
)


def _validate_subscribe(packet: Subscribe) -> None:
    _validate_packet_id(packet)
    if 0 in packet.properties.subscription_identifiers:
        raise PacketViolationError("subscription identifier 0", "MQTT 5.0 3.8.2.1.2")
    if not packet.requests:
        raise PacketViolationError("SUBSCRIBE without a topic filter", "5.0:MQTT-3.8.3-2")
    for request in packet.requests:
        check_filter(request.topic_filter, _FILTERS_5_0)
        if request.qos == 3:
            raise PacketViolationError("maximum QoS 3 in a subscription", "MQTT 5.0 3.8.3.1")
        if request.retain_handling == 3:
            raise PacketViolationError("retain handling 3", "MQTT 5.0 3.8.3.1")
        if request.no_local and request.topic_filter.startswith(SHARE_PREFIX):
            raise PacketViolationError("no local in a shared subscription", "5.0:MQTT-3.8.3-4")


def _validate_unsubscribe(packet: Unsubscribe) -> None:
    _validate_packet_id(packet)
    if not packet.topic_filters:
        raise PacketViolationError("UNSUBSCRIBE without a topic filter", "5.0:MQTT-3.10.3-2")
    for topic_filter in packet.topic_filters:
        check_filter(topic_filter, _FILTERS_5_0)


def _validate_suback(packet: Suback | Unsuback) -> None:
    _validate_packet_id(packet)
    if not packet.reason_codes:
        name = type(packet).__name__.upper()
        clause = "MQTT 5.0 3.9.3" if type(packet) is Suback else "MQTT 5.0 3.11.3"
        raise PacketViolationError(f"{name} without a reason", clause)


def _validate_auth(packet: Auth) -> None:
    # Without any property only the short form of success is allowed (section 3.15.2.1).
    is_short = packet.properties is NO_PROPERTIES and packet.reason_code is ReasonCode.SUCCESS
    if packet.properties.authentication_method is None and not is_short:
        raise PacketViolationError("AUTH without a method", "MQTT 5.0 3.15.2.2.2")


def _validate_packet_id(
    packet: Puback | Pubrec | Pubrel | Pubcomp | Subscribe | Suback | Unsubscribe | Unsuback,
) -> None:
    if not packet.packet_id:
        clause = (
            "5.0:MQTT-2.2.1-3" if isinstance(packet, Subscribe | Unsubscribe) else "MQTT 5.0 2.2.1"
        )
        raise PacketViolationError("packet identifier 0", clause)


_CHECKS: Final[Mapping[type, Callable[[Any], None]]] = {
    Connect: _validate_connect,
    Connack: _validate_connack,
    Publish: validate_publish_v5,
    Puback: _validate_packet_id,
    Pubrec: _validate_packet_id,
    Pubrel: _validate_packet_id,
    Pubcomp: _validate_packet_id,
    Subscribe: _validate_subscribe,
    Suback: _validate_suback,
    Unsubscribe: _validate_unsubscribe,
    Unsuback: _validate_suback,
    Auth: _validate_auth,
}
