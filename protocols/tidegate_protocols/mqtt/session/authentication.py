"""Enhanced authentication (MQTT 5.0 section 4.12): one client's method, exchange after exchange.

The first exchange takes place between CONNECT and CONNACK; later ones may follow while connected.
Here it is decided which AUTH may come when; the session acts on the outcome.
"""

from __future__ import annotations

import logging
from typing import final

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    Broker,
    ConnectRequest,
    FlowControlError,
)
from tidegate_protocols.mqtt._reasons import RefusedError
from tidegate_protocols.mqtt.codec.codes import PacketViolationError, ReasonCode
from tidegate_protocols.mqtt.codec.packets import Auth

logger = logging.getLogger("tidegate.mqtt")


@final
class EnhancedAuthentication:
    """Args: method: the name the client gave in its CONNECT; request: its CONNECT."""

    def __init__(self, broker: Broker, method: str, request: ConnectRequest) -> None:
        self._broker = broker
        self._request = request
        self._exchange: AuthenticationExchange | None = None
        self._is_stepping = False
        self.method = method

    @property
    def exchange(self) -> AuthenticationExchange | None:
        """The exchange under way, or the last one that succeeded."""
        return self._exchange

    @property
    def principal(self) -> str:
        """Who the client is, once an exchange has succeeded; "" before and during the next."""
        principal = None if self._exchange is None else self._exchange.principal
        return "" if principal is None else principal.name

    def begin(self) -> None:
        """Begin an exchange. Raises: RefusedError (0x8C, no such method [MQTT-4.12.0-1]; 0x87)."""
        try:
            exchange = self._broker.begin_authentication(self.method, self._request)
        except AccessError as error:
            raise RefusedError(ReasonCode.NOT_AUTHORIZED, str(error)) from error
        if exchange is None:
            raise RefusedError(
                ReasonCode.BAD_AUTHENTICATION_METHOD,
                f"unknown authentication method {self.method!r}",
            )
        self._exchange = exchange

    def check(self, packet: Auth) -> None:
        """Check that the client may send this AUTH now.

        Raises: PacketViolationError for another method [MQTT-4.12.0-5] [MQTT-4.12.1-1], an answer
            to no challenge, or a second AUTH before the first was answered.
        """
        if packet.properties.authentication_method != self.method:
            raise PacketViolationError("AUTH with a different method", "5.0:MQTT-4.12.0-5")
        is_under_way = self._exchange is not None and not self.principal
        if self._is_stepping or is_under_way is not (
            packet.reason_code is ReasonCode.CONTINUE_AUTHENTICATION
        ):
            raise PacketViolationError(
                f"AUTH {packet.reason_code.name} is not expected now", "5.0:MQTT-4.12.0-3"
            )

    async def step(self, data: bytes) -> bytes:
        """Take the client's data and return the reply.

        Raises: RefusedError (0x87). Cancellation: the exchange is abandoned.
        """
        exchange = self._exchange
        assert exchange is not None, "begin comes first"
        self._is_stepping = True
        try:
            return await exchange.step(data)
        except AccessError as error:
            raise RefusedError(ReasonCode.NOT_AUTHORIZED, str(error)) from error
        except FlowControlError as error:
            raise RefusedError(ReasonCode.SERVER_BUSY, str(error)) from error
        except Exception as error:
            logger.exception("authentication failed method=%s", self.method)
            raise RefusedError(ReasonCode.NOT_AUTHORIZED, "authentication failed") from error
        finally:
            self._is_stepping = False
