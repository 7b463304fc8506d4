"""What operators are told about a client: that it came, went, or was not let in."""

from __future__ import annotations

import logging

from tidegate.broker.connection.connection import Connection
from tidegate.spi import ConnectRequest, GatewayError
from tidegate.spi.events import Event, Tell

_log = logging.getLogger("tidegate.broker")


def connected(tell: Tell, connection: Connection) -> None:
    """It was let in."""
    tell(
        Event.CLIENT_CONNECTED,
        _log,
        "connection=%d client=%r principal=%r peer=%s listener=%s protocol=%s connected",
        connection.number,
        connection.client_id,
        connection.principal,
        connection.address,
        connection.listener,
        connection.protocol,
    )


def disconnected(tell: Tell, connection: Connection) -> None:
    """It is gone."""
    tell(
        Event.CLIENT_DISCONNECTED,
        _log,
        "connection=%d client=%r principal=%r peer=%s listener=%s disconnected: %s",
        connection.number,
        connection.client_id,
        connection.principal,
        connection.address,
        connection.listener,
        connection.ended_by,
    )


def refused(tell: Tell, request: ConnectRequest, error: GatewayError) -> None:
    """It was not let in, whoever it is."""
    tell(
        Event.CLIENT_REFUSED,
        _log,
        "client=%r username=%r peer=%s listener=%s refused: %s",
        request.client_id,
        request.username,
        request.peer,
        request.listener,
        error,
    )
