"""The STOMP listener: options, sessions, start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import final

from tidegate.spi import (
    Broker,
    ConnectionEndedError,
    FlowControlError,
    FrontEnd,
    ListenerConfig,
)
from tidegate_protocols.stomp._errors import error_frame
from tidegate_protocols.stomp._options import StompOptions
from tidegate_protocols.stomp._session import Session, SessionContext
from tidegate_protocols.stomp._split import PROFILE
from tidegate_protocols.stomp.codec.frames import Version
from tidegate_protocols.transport import TRANSPORTS, Link, SessionHandler, make_listener

logger = logging.getLogger("tidegate.stomp")


@final
class StompFrontEnd:
    """A :class:`~tidegate.spi.FrontEnd` for STOMP 1.0, 1.1 and 1.2 over any transport."""

    def __init__(self, config: ListenerConfig, options: StompOptions, broker: Broker) -> None:
        self._options = options
        self._scheme = "stomp" if config.transport == "tcp" else f"stomp+{config.transport}"
        self._address = f"{self._scheme}://{_host_port(config.host, config.port)}"
        self._sessions: set[Session] = set()
        self._context = SessionContext(
            broker=broker,
            options=options,
            allow_anonymous=config.allow_anonymous,
            address=lambda: self._address,
            ended=self._sessions.discard,
        )
        refusal = FlowControlError(
            f"this listener has reached its limit of {options.connections_max} "
            "connections; try again later"
        )
        self._listener = make_listener(
            config,
            options,
            self._make_handler,
            profile=PROFILE,
            connections_max=options.connections_max,
            refusal=error_frame(refusal, Version.V1_0, frame=None, receipt=None),
            refusal_text=str(refusal),
            sockets=broker,
        )

    async def start(self) -> str:
        """Bind and accept. Returns e.g. ``stomp+tls://host:port`` (TCP: ``stomp``). Raises: OSError."""
        host, port = await self._listener.start()
        self._address = f"{self._scheme}://{_host_port(host, port)}"
        logger.info("listening address=%s", self._address)
        return self._address

    async def reload(self) -> bool:
        """Reread the certificates, see :class:`tidegate.spi.Reloadable`. Raises: ConfigError."""
        return await self._listener.reload()

    async def stop_accepting(self) -> None:
        """No new connections. Idempotent."""
        await self._listener.stop_accepting()

    async def stop(self) -> None:
        """Tell every client, flush, close; at most ``stop_timeout``. Idempotent."""
        await self._listener.stop_accepting()
        for session in list(self._sessions):
            session.end(ConnectionEndedError("shutdown", "the gateway is stopping"))
        await self._listener.stop(self._options.stop_timeout)

    def _make_handler(self) -> SessionHandler:
        return SessionHandler(self._make_session)

    def _make_session(self, link: Link) -> Session:
        session = Session(self._context, asyncio.get_running_loop(), link)
        self._sessions.add(session)
        return session


@final
class StompFrontEndFactory:
    """What the plugin registers (:class:`~tidegate.spi.FrontEndFactory`)."""

    @property
    def options_type(self) -> type:
        return StompOptions

    @property
    def transports(self) -> Sequence[str]:
        return TRANSPORTS

    @property
    def default_port(self) -> int:
        return 61613

    def create(self, config: ListenerConfig, broker: Broker) -> FrontEnd:
        """Build a listener; does not bind. Raises: ConfigError."""
        options = config.options
        if not isinstance(options, StompOptions):
            raise TypeError(f"options of a STOMP listener are StompOptions, not {type(options)}")
        return StompFrontEnd(config, options, broker)


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
