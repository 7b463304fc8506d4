"""Errors of the gateway as reason codes."""

import pytest

from tidegate.spi import (
    AccessError,
    ConnectionEndedError,
    FlowControlError,
    QuotaError,
    RequestError,
    StoreFullError,
    StoreIOError,
)
from tidegate_protocols.mqtt import MalformedPacketError, PacketViolationError
from tidegate_protocols.mqtt._reasons import (
    RefusedError,
    connect_reason,
    end_reason,
    publish_reason,
    subscribe_reason,
)
from tidegate_protocols.mqtt.codec.codes import PACKET_REASONS, PacketType
from tidegate_protocols.mqtt.codec.codes import ReasonCode as Code

ERRORS = [
    AccessError("no"),
    FlowControlError("too much"),
    RequestError("bad name"),
    StoreFullError("no room"),
    StoreIOError("read-only"),
    QuotaError("your share"),
]


@pytest.mark.parametrize(
    ("reason_of", "reasons"),
    [
        (publish_reason, [0x87, 0x97, 0x90, 0x97, 0x83, 0x97]),
        (subscribe_reason, [0x87, 0x97, 0x83, 0x97, 0x83, 0x97]),
        (end_reason, [0x87, 0x97, 0x83, 0x97, 0x83, 0x97]),
    ],
)
def test_an_error_has_a_reason(reason_of, reasons):
    assert [reason_of(error) for error in ERRORS] == reasons
    assert reason_of(RefusedError(Code.PAYLOAD_FORMAT_INVALID, "x")) == 0x99


@pytest.mark.parametrize(("has_username", "access"), [(True, 0x86), (False, 0x87)])
def test_a_refused_connect_has_a_reason(has_username, access):
    found = [connect_reason(error, has_username=has_username) for error in ERRORS]
    assert found == [access, 0x88, 0x85, 0x88, 0x88, 0x97]
    refused = RefusedError(Code.SERVER_MOVED, "x")
    assert connect_reason(refused, has_username=has_username) == 0x9D


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionEndedError("taken-over", "x"), 0x8E),
        (ConnectionEndedError("shutdown", "x"), 0x8B),
        (ConnectionEndedError("internal-error", "x"), 0x83),
        (ConnectionEndedError("closed by an operator", "x"), 0x98),
        (MalformedPacketError("x", "y"), 0x81),
        (PacketViolationError("x", "y"), 0x82),
        (PacketViolationError("x", "y", Code.TOPIC_ALIAS_INVALID), 0x94),
    ],
)
def test_the_end_of_a_connection_has_a_reason(error, reason):
    assert end_reason(error) == reason


def test_every_reason_may_stand_in_its_packet():
    for error in ERRORS:
        assert publish_reason(error) in PACKET_REASONS[PacketType.PUBACK]
        assert publish_reason(error) in PACKET_REASONS[PacketType.PUBREC]
        assert subscribe_reason(error) in PACKET_REASONS[PacketType.SUBACK]
        assert end_reason(error) in PACKET_REASONS[PacketType.DISCONNECT]
        assert connect_reason(error, has_username=True) in PACKET_REASONS[PacketType.CONNACK]
