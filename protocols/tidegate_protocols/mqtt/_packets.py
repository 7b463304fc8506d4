"""MQTT packets as values (MQTT 3.1.1 section 3).

:class:`msgspec.Struct` types, because a PUBLISH and its PUBACK are built for every message. The
fields that MQTT 5.0 adds (properties, reason codes, subscription options) go behind these, with
defaults.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from tidegate_protocols.mqtt._codes import LEVEL_3_1_1


class Will(msgspec.Struct, frozen=True, gc=False):
    """The will in a CONNECT. qos: 0 to 2."""

    topic: str
    body: bytes
    qos: int = 0
    retain: bool = False


@final
class Connect(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Section 3.1. keep_alive: seconds, 0 to 65535; username, password, will: None when absent."""

    client_id: str
    clean_session: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    level: int = LEVEL_3_1_1

    def __repr__(self) -> str:  # the password must never reach a log
        return f"Connect({self.client_id!r}, clean={self.clean_session}, level={self.level})"


@final
class Connack(msgspec.Struct, frozen=True, gc=False):
    """Section 3.2. return_code: 0 accepted, 1 to 5 refused."""

    session_present: bool
    return_code: int


@final
class Publish(msgspec.Struct, frozen=True, gc=False):
    """Section 3.3. qos: 0 to 2; packet_id: 1 to 65535, 0 when qos is 0."""

    topic: str
    body: bytes
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False


@final
class Puback(msgspec.Struct, frozen=True, gc=False):
    """Section 3.4: the answer to a QoS 1 PUBLISH."""

    packet_id: int


@final
class Pubrec(msgspec.Struct, frozen=True, gc=False):
    """Section 3.5: the first answer to a QoS 2 PUBLISH."""

    packet_id: int


@final
class Pubrel(msgspec.Struct, frozen=True, gc=False):
    """Section 3.6: the answer to a PUBREC."""

    packet_id: int


@final
class Pubcomp(msgspec.Struct, frozen=True, gc=False):
    """Section 3.7: the answer to a PUBREL."""

    packet_id: int


class TopicRequest(msgspec.Struct, frozen=True, gc=False):
    """One line of a SUBSCRIBE: a topic filter and the highest QoS wanted (0 to 2)."""

    topic_filter: str
    qos: int


@final
class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Section 3.8. requests: one or more."""

    packet_id: int
    requests: tuple[TopicRequest, ...]


@final
class Suback(msgspec.Struct, frozen=True, gc=False):
    """Section 3.9. return_codes: one for each request: the granted QoS, or 0x80."""

    packet_id: int
    return_codes: tuple[int, ...]


@final
class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """Section 3.10. topic_filters: one or more."""

    packet_id: int
    topic_filters: tuple[str, ...]


@final
class Unsuback(msgspec.Struct, frozen=True, gc=False):
    """Section 3.11."""

    packet_id: int


@final
class Pingreq(msgspec.Struct, frozen=True, gc=False):
    """Section 3.12."""


@final
class Pingresp(msgspec.Struct, frozen=True, gc=False):
    """Section 3.13."""


@final
class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Section 3.14."""


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
)
