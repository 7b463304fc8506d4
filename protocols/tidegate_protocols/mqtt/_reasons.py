"""Errors of the gateway as reason codes of MQTT 5.0 (section 2.4).

What MQTT 3.1.1 can express is decided where it is sent: its CONNACK has five codes, its SUBACK
one, and everything else is a closed connection.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tidegate.spi import (
    AccessError,
    ConnectionEndedError,
    GatewayError,
    PeerProtocolError,
    QuotaError,
    RequestError,
    StoreError,
)
from tidegate_protocols.mqtt.codec.codes import ReasonCode

logger = logging.getLogger("tidegate.mqtt")

#: Why the broker ends connections: `ConnectionEndedError.reason`. Any other is an operator's act.
_ENDINGS: Final[Mapping[str, ReasonCode]] = {
    "taken-over": ReasonCode.SESSION_TAKEN_OVER,
    "shutdown": ReasonCode.SERVER_SHUTTING_DOWN,
    "internal-error": ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    "use-another-server": ReasonCode.USE_ANOTHER_SERVER,
    "server-moved": ReasonCode.SERVER_MOVED,
}
#: Those that are also sent to a client that is not admitted.
_REDIRECTS: Final = frozenset({ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED})


class RefusedError(GatewayError):
    """A request that is refused with its own reason.

    Attributes: reason, problem; server_reference: where to go instead, "" when unknown.
    """

    def __init__(self, reason: ReasonCode, problem: str, server_reference: str = "") -> None:
        super().__init__(problem)
        self.server_reference = server_reference
        self.reason = reason
        self.problem = problem


def told(error: GatewayError, client_id: str) -> str:
    """The text for the client; details of a store's error go only into the log."""
    if isinstance(error, StoreError):
        logger.info("store error client=%s error=%s", client_id, error)
    return error.for_client


def connect_reason(error: GatewayError, *, has_username: bool) -> ReasonCode:
    """Why the broker did not accept a CONNECT."""
    if isinstance(error, RefusedError):
        return error.reason
    if isinstance(error, AccessError):
        return ReasonCode.BAD_USER_NAME_OR_PASSWORD if has_username else ReasonCode.NOT_AUTHORIZED
    if isinstance(error, RequestError):
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    if isinstance(error, QuotaError):
        return ReasonCode.QUOTA_EXCEEDED
    if isinstance(error, ConnectionEndedError) and end_reason(error) in _REDIRECTS:
        return end_reason(error)
    return ReasonCode.SERVER_UNAVAILABLE


def reference_of(error: GatewayError) -> str:
    """The Server Reference sent to a client with *error* (MQTT 5.0 section 4.11); "" for none."""
    return error.server_reference if isinstance(error, ConnectionEndedError) else ""


def publish_reason(error: GatewayError) -> ReasonCode:
    """Why a PUBLISH was not accepted (PUBACK, PUBREC)."""
    return _reason(error, bad_request=ReasonCode.TOPIC_NAME_INVALID)


def subscribe_reason(error: GatewayError) -> ReasonCode:
    """Why a subscription was not made (SUBACK)."""
    return _reason(error, bad_request=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


def end_reason(error: GatewayError) -> ReasonCode:
    """Why the gateway ends a connection (DISCONNECT)."""
    if isinstance(error, ConnectionEndedError):
        return _ENDINGS.get(error.reason, ReasonCode.ADMINISTRATIVE_ACTION)
    if isinstance(error, PeerProtocolError):
        return ReasonCode(error.wire_code or ReasonCode.PROTOCOL_ERROR)
    return _reason(error, bad_request=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


def _reason(error: GatewayError, *, bad_request: ReasonCode) -> ReasonCode:
    if isinstance(error, RefusedError):
        return error.reason
    if isinstance(error, AccessError):
        return ReasonCode.NOT_AUTHORIZED
    if error.retryable:
        return ReasonCode.QUOTA_EXCEEDED
    if isinstance(error, RequestError):
        return bad_request
    return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
