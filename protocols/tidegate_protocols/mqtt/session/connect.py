"""Reading a CONNECT and answering it: what client and gateway agree on.

Pure functions: the broker is asked elsewhere, with the request built here.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from tidegate.spi import (
    SESSION_NEVER_EXPIRES,
    AccessError,
    ClientRules,
    ConnectRequest,
    Message,
    Principal,
    RequestError,
    names,
)
from tidegate_protocols.mqtt._answers import PACKET_BYTES_MAX, Answers
from tidegate_protocols.mqtt._options import RECEIVE_MAXIMUM_DEFAULT, MqttOptions
from tidegate_protocols.mqtt._reasons import RefusedError
from tidegate_protocols.mqtt.codec.codes import LEVEL_5_0, VERSION_NAMES, ReasonCode
from tidegate_protocols.mqtt.codec.packets import Connect, Will
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from tidegate_protocols.mqtt.codec.validate_v5 import payload_matches_format
from tidegate_protocols.mqtt.messages.bridge import message_of
from tidegate_protocols.mqtt.messages.names import DESTINATIONS

#: What the broker must know of MQTT: a SUBSCRIBE replaces an earlier one (section 3.8.4), QoS 0 is
#: not acknowledged, and overlapping subscriptions deliver once [MQTT-3.3.4-2].
RULES: Final = ClientRules(replaces=True, acknowledges_unstored=False, delivers_once=True)

_REDIRECTS: Final = {
    "use_another": ReasonCode.USE_ANOTHER_SERVER,
    "moved": ReasonCode.SERVER_MOVED,
}


#: Characters that would make a principal a filter, or more than one level of a topic, are percent-encoded.
_IN_A_TOPIC_NAME: Final = str.maketrans({"%": "%25", "+": "%2B", "#": "%23"})
_IN_ONE_LEVEL: Final = {**_IN_A_TOPIC_NAME, ord("/"): "%2F"}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a CONNECT came from: see the fields of the same names of ConnectRequest."""

    peer: str
    listener: str
    tls_subject: str
    anonymous_allowed: bool
    tls_principal: Principal | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What applies to one connection, from its CONNECT and the listener's options.

    Attributes:
        level: protocol level; client_id: may be assigned by us.
        is_clean: the client starts over (Clean Session, Clean Start).
        session_expiry: seconds the session outlives the connection; 0: it does not.
        keep_alive: seconds, 0: none.
        window: QoS 1 and 2 messages that may be in flight to the client, 1 to 65535.
        topic_alias_max: aliases that we may use towards it.
        authentication_method: None when it uses none.
        changes: the properties of the CONNACK: where we deviate from what it asked for or from the
            specification's defaults.
        response_prefix: of the Response Information that it asked for; "" when it gets none
            [MQTT-3.1.2-28].
    """

    level: int
    client_id: str
    is_clean: bool
    session_expiry: int
    keep_alive: int
    window: int
    topic_alias_max: int
    authentication_method: str | None
    changes: Properties
    response_prefix: str = ""

    @property
    def is_v5(self) -> bool:
        return self.level == LEVEL_5_0


def answers_to(packet: Connect) -> Answers:
    """The encoder of answers to the client of a CONNECT, including a refusal."""
    properties = packet.properties
    return Answers(
        packet.level,
        properties.maximum_packet_size or PACKET_BYTES_MAX,
        with_problems=properties.request_problem_information != 0,
    )


def read_connect(
    packet: Connect, options: MqttOptions, origin: Origin, now_us: int, *, streams: bool = False
) -> tuple[Terms, ConnectRequest]:
    """Settle the terms.

    Args: now_us: microseconds since the epoch; streams: large messages need not fit into memory.
    Raises: RefusedError.
    """
    redirect = _REDIRECTS.get(options.server_redirect)
    if redirect is not None:
        raise RefusedError(redirect, f"use {options.server_reference}")
    packet_bytes_max = options.large_packet_bytes_max if streams else options.packet_bytes_max
    terms = _terms(packet, options, origin, packet_bytes_max)
    will, properties = packet.will, packet.properties
    request = ConnectRequest(
        rules=RULES,
        protocol="mqtt",
        version=VERSION_NAMES[packet.level],
        client_id=terms.client_id,
        peer=origin.peer,
        listener=origin.listener,
        username=packet.username or "",
        password=packet.password,
        clean_start=packet.clean_session,
        session_expiry=terms.session_expiry,
        will=will_message(will, terms.client_id, options, now_us) if will is not None else None,
        will_delay=(will.properties.will_delay_interval or 0) if will is not None else 0,
        anonymous_allowed=origin.anonymous_allowed,
        prefetch_count=terms.window,
        tls_subject=origin.tls_subject,
        tls_principal=origin.tls_principal,
    )
    assert properties.authentication_method is None or terms.is_v5
    return terms, request


def _terms(packet: Connect, options: MqttOptions, origin: Origin, packet_bytes_max: int) -> Terms:
    client_id, is_assigned = _client_id(packet, options, origin.tls_subject)
    properties = packet.properties
    is_v5 = packet.level == LEVEL_5_0
    keep_alive = _keep_alive(packet, options)
    session_expiry = _session_expiry(packet, options)
    changes = NO_PROPERTIES
    if is_v5:
        asked = properties.session_expiry_interval or 0
        changes = Properties(
            session_expiry_interval=session_expiry if session_expiry != asked else None,
            receive_maximum=(
                options.receive_maximum
                if options.receive_maximum < RECEIVE_MAXIMUM_DEFAULT
                else None
            ),
            maximum_packet_size=packet_bytes_max,
            assigned_client_identifier=client_id if is_assigned else None,  # [MQTT-3.2.2-16]
            topic_alias_maximum=options.topic_alias_max or None,
            server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,
        )
    return Terms(
        level=packet.level,
        client_id=client_id,
        is_clean=packet.clean_session,
        session_expiry=session_expiry,
        keep_alive=keep_alive,
        window=min(options.inflight_max, properties.receive_maximum or RECEIVE_MAXIMUM_DEFAULT),
        topic_alias_max=min(options.topic_alias_max_out, properties.topic_alias_maximum or 0),
        authentication_method=properties.authentication_method,
        changes=changes,
        response_prefix=(
            options.response_topic_prefix
            if is_v5 and properties.request_response_information == 1
            else ""
        ),
    )


def response_information(terms: Terms, principal: str) -> str:
    """A topic for replies that no client of another principal is told: client ids are per principal.

    Nobody could publish to a topic with a wildcard in it [MQTT-3.3.2-14].
    """
    owner = principal.translate(_IN_ONE_LEVEL)
    return f"{terms.response_prefix}/{owner}/{terms.client_id.translate(_IN_A_TOPIC_NAME)}"


def _client_id(packet: Connect, options: MqttOptions, tls_subject: str) -> tuple[str, bool]:
    """The client id, and whether it must be told to a client that gave none."""
    client_id = packet.client_id
    if options.client_id_from_certificate:
        client_id = common_name(tls_subject)
        if not client_id:
            raise RefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "no client certificate, or it has no common name",
            )
    elif not client_id:
        if not packet.clean_session and packet.level != LEVEL_5_0:  # [MQTT-3.1.3-8]
            raise RefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "a session without a client id cannot be kept; send a client id, or clean session",
            )
        client_id = f"auto-{uuid.uuid4().hex}"  # [MQTT-3.1.3-6]
    if len(client_id.encode()) > options.client_id_bytes_max:  # [MQTT-3.1.3-9]
        raise RefusedError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            f"the client id is longer than {options.client_id_bytes_max} bytes "
            "(client_id_bytes_max)",
        )
    return client_id, not packet.client_id


def _keep_alive(packet: Connect, options: MqttOptions) -> int:
    """Seconds. A client of MQTT 5.0 is told when it differs from what it asked for [MQTT-3.1.2-21]."""
    asked = packet.keep_alive
    longest = int(options.keep_alive_max)
    if longest and not 0 < asked <= longest:
        if packet.level != LEVEL_5_0:
            raise RefusedError(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                f"keep-alive of {asked}s; this listener allows at most {longest}s",
            )
        return longest
    return asked or int(options.keep_alive_default)


def _session_expiry(packet: Connect, options: MqttOptions) -> int:
    if packet.level == LEVEL_5_0:
        return bounded_expiry(packet.properties.session_expiry_interval or 0, options)
    if packet.clean_session:
        return 0  # the session ends with its connection [MQTT-3.1.2-6]
    return int(options.session_expiry) or SESSION_NEVER_EXPIRES


def bounded_expiry(seconds: int, options: MqttOptions) -> int:
    """What a client of MQTT 5.0 gets when it asks for *seconds*."""
    longest = int(options.session_expiry) or SESSION_NEVER_EXPIRES
    return min(seconds, longest)


def will_message(will: Will, client_id: str, options: MqttOptions, now_us: int) -> Message:
    """The message of a will. Its life begins when it is published: until then ``expires_at`` minus
    ``received_at`` is its duration (MQTT 5.0 section 3.1.3.2.4).

    Raises: RefusedError.
    """
    try:
        destination = DESTINATIONS[will.topic]
    except AccessError as error:
        raise RefusedError(ReasonCode.NOT_AUTHORIZED, f"will: {error.for_client}") from error
    except RequestError as error:
        raise RefusedError(ReasonCode.TOPIC_NAME_INVALID, f"will: {error.for_client}") from error
    if options.payload_format_check and not payload_matches_format(will.properties, will.body):
        raise RefusedError(ReasonCode.PAYLOAD_FORMAT_INVALID, "the will's payload is not UTF-8")
    retain = will.retain and names.is_topic(destination)  # a queue keeps its messages anyway
    return message_of(will.properties, destination, will.body, now_us, will.qos, retain, client_id)


def common_name(subject: str) -> str:
    """The most specific common name (CN) of a subject as RFC 4514 writes it; "" for none."""
    for attribute in _split(subject, ",+"):
        kind, _, value = attribute.partition("=")
        if kind.strip().upper() == "CN":
            return _unescaped(value)
    return ""


def _split(text: str, separators: str) -> list[str]:
    """Split at separators that are not escaped by a backslash."""
    parts = [""]
    is_escaped = False
    for character in text:
        if not is_escaped and character in separators:
            parts.append("")
            continue
        parts[-1] += character
        is_escaped = character == "\\" and not is_escaped
    return parts


def _unescaped(value: str) -> str:
    """Undo RFC 4514 section 2.4: a backslash before a character, or before two hex digits."""
    found = bytearray()
    position = 0
    while position < len(value):
        character = value[position]
        position += 1
        if character == "\\" and position < len(value):
            pair = value[position : position + 2]
            if len(pair) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in pair):
                found.append(int(pair, 16))
                position += 2
                continue
            character = value[position]
            position += 1
        found += character.encode()
    return found.decode("utf-8", "replace")
