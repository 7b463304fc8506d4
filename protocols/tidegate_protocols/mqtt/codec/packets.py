"""MQTT packets as values (section 3 of MQTT 3.1.1 and of MQTT 5.0).

:class:`msgspec.Struct` types, because a PUBLISH and its PUBACK are built for every message. One
type serves all versions: what MQTT 5.0 adds (properties, reason codes, subscription options) comes
last and defaults to what the older versions mean. ``properties`` *is* :data:`NO_PROPERTIES`, the
same object, in every decoded packet that has none.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from tidegate_protocols.mqtt.codec.codes import LEVEL_3_1_1, ReasonCode
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties


class Will(msgspec.Struct, frozen=True, gc=False):
    """The will in a CONNECT. qos: 0 to 2."""

    topic: str
    body: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@final
class Connect(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Section 3.1.

    keep_alive: seconds, 0 to 65535; username, password, will: None when absent; clean_session:
    "Clean Start" in MQTT 5.0, where it does not say how long the session is kept.
    """

    client_id: str
    clean_session: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    level: int = LEVEL_3_1_1
    properties: Properties = NO_PROPERTIES

    def __repr__(self) -> str:  # the password must never reach a log
        return f"Connect({self.client_id!r}, clean={self.clean_session}, level={self.level})"


@final
class Connack(msgspec.Struct, frozen=True, gc=False):
    """Section 3.2. reason_code: of MQTT 5.0; before it, a return code (1 to 5 refuse)."""

    session_present: bool
    reason_code: int
    properties: Properties = NO_PROPERTIES


@final
class Publish(msgspec.Struct, frozen=True, gc=False):
    """Section 3.3. qos: 0 to 2; packet_id: 1 to 65535, 0 when qos is 0.

    topic: "" when MQTT 5.0 gives it by ``properties.topic_alias`` alone.
    """

    topic: str
    body: bytes
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties = NO_PROPERTIES


@final
class LargePublish(msgspec.Struct, frozen=True, gc=False):
    """A PUBLISH whose body does not come with it, but after it, in pieces.

    head: everything but the body, which is empty there; size: bytes of the body, 1 or more. A codec
    returns it when asked to (``Codec.stream_bodies``); it is never encoded.
    """

    head: Publish
    size: int


@final
class Puback(msgspec.Struct, frozen=True, gc=False):
    """Section 3.4: the answer to a QoS 1 PUBLISH."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@final
class Pubrec(msgspec.Struct, frozen=True, gc=False):
    """Section 3.5: the first answer to a QoS 2 PUBLISH."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@final
class Pubrel(msgspec.Struct, frozen=True, gc=False):
    """Section 3.6: the answer to a PUBREC."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@final
class Pubcomp(msgspec.Struct, frozen=True, gc=False):
    """Section 3.7: the answer to a PUBREL."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class TopicRequest(msgspec.Struct, frozen=True, gc=False):
    """One line of a SUBSCRIBE: a topic filter and its options (MQTT 5.0 section 3.8.3.1).

    qos: highest wanted, 0 to 2; retain_handling: 0 send retained messages, 1 only for a new
    subscription, 2 never.
    """

    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@final
class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Section 3.8. requests: one or more."""

    packet_id: int
    requests: tuple[TopicRequest, ...]
    properties: Properties = NO_PROPERTIES


@final
class Suback(msgspec.Struct, frozen=True, gc=False):
    """Section 3.9. reason_codes: for each request the granted QoS, or 0x80 or more: refused."""

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@final
class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """Section 3.10. topic_filters: one or more."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@final
class Unsuback(msgspec.Struct, frozen=True, gc=False):
    """Section 3.11. reason_codes: one for each filter; none before MQTT 5.0."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


@final
class Pingreq(msgspec.Struct, frozen=True, gc=False):
    """Section 3.12."""


@final
class Pingresp(msgspec.Struct, frozen=True, gc=False):
    """Section 3.13."""


@final
class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Section 3.14."""

    reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


@final
class Auth(msgspec.Struct, frozen=True, gc=False):
    """MQTT 5.0 section 3.15: a step of enhanced authentication."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)

#: What a codec returns: packets, and the heads of those that are not waited for.
Event: TypeAlias = Packet | LargePublish
