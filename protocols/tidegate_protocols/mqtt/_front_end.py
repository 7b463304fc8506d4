"""The MQTT listener: sockets in, sessions behind them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, final

from tidegate.spi import Broker, ConfigError, ListenerConfig
from tidegate_protocols.mqtt._options import MqttOptions
from tidegate_protocols.mqtt._session import Session, SessionContext
from tidegate_protocols.transport import Link, TcpListener

logger = logging.getLogger("tidegate.mqtt")

#: MQTT's registered TCP port (IANA service name mqtt).
DEFAULT_PORT: Final = 1883


def address_of(host: str, port: int) -> str:
    """The listener as a URL; an IPv6 address stands in brackets (RFC 3986 section 3.2.2)."""
    return f"mqtt://[{host}]:{port}" if ":" in host else f"mqtt://{host}:{port}"


@final
class LoopRuntime:
    """The event loop as :class:`tidegate_protocols.mqtt._session.Runtime`; owns its tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.time = loop.time

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel_tasks(self) -> None:
        """Cancel what is still running and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@final
class SessionHandler:
    """A :class:`tidegate_protocols.transport.Handler` that makes a session when its link opens."""

    __slots__ = ("_context", "_session")

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._session: Session | None = None

    def opened(self, link: Link) -> None:
        self._session = Session(self._context, link)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.data_received(data)

    def closed(self, error: Exception | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.link_closed(error)

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()


@final
class MqttFrontEnd:
    """A running MQTT listener: see :class:`tidegate.spi.FrontEnd`."""

    def __init__(self, config: ListenerConfig, broker: Broker, options: MqttOptions) -> None:
        self._config = config
        self._broker = broker
        self._options = options
        self._runtime: LoopRuntime | None = None
        self._listener: TcpListener | None = None

    async def start(self) -> str:
        """Bind and accept. Returns: ``mqtt://host:port``. Raises: OSError."""
        runtime = LoopRuntime(asyncio.get_running_loop())
        context = SessionContext(
            self._broker, self._options, runtime, allow_anonymous=self._config.allow_anonymous
        )
        listener = TcpListener(
            self._config.host,
            self._config.port,
            lambda: SessionHandler(context),
            connections_max=self._options.connections_max,
        )
        host, port = await listener.start()
        self._runtime = runtime
        self._listener = listener
        context.listener = address_of(host, port)
        logger.info("listening address=%s", context.listener)
        return context.listener

    async def stop_accepting(self) -> None:
        """No new connections. Idempotent."""
        if self._listener is not None:
            await self._listener.stop_accepting()

    async def stop(self) -> None:
        """Write out, close what is left, end every task; takes ``stop_timeout`` at most."""
        listener, runtime = self._listener, self._runtime
        self._listener = self._runtime = None
        if listener is not None and runtime is not None:
            await runtime.cancel_tasks()
            await listener.stop(self._options.stop_timeout)
            await runtime.cancel_tasks()


@final
class MqttFrontEndFactory:
    """Makes MQTT listeners: see :class:`tidegate.spi.FrontEndFactory`."""

    @property
    def options_type(self) -> type:
        return MqttOptions

    @property
    def transports(self) -> Sequence[str]:
        return ("tcp",)

    @property
    def default_port(self) -> int:
        return DEFAULT_PORT

    def create(self, config: ListenerConfig, broker: Broker) -> MqttFrontEnd:
        """Build a listener without binding. Raises: ConfigError."""
        options = config.options
        if not isinstance(options, MqttOptions):
            raise ConfigError(f"options of type {type(options).__name__}, not MqttOptions")
        if config.transport not in self.transports:
            raise ConfigError(
                f"{config.transport!r} is not one of {', '.join(self.transports)}", key="transport"
            )
        return MqttFrontEnd(config, broker, options)
