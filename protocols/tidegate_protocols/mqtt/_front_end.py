"""The MQTT listener: accepts sockets and gives each a session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final, final

from tidegate.spi import Broker, ConfigError, ListenerConfig
from tidegate_protocols.mqtt._options import MqttOptions
from tidegate_protocols.mqtt.session.context import SessionContext
from tidegate_protocols.mqtt.session.session import Session
from tidegate_protocols.transport import (
    TRANSPORTS,
    Listener,
    SessionHandler,
    WebSocketProfile,
    make_listener,
)

logger = logging.getLogger("tidegate.mqtt")

#: MQTT's registered TCP port (IANA service name mqtt).
DEFAULT_PORT: Final = 1883


#: MQTT 3.1.1 section 6: subprotocol "mqtt", binary messages only [MQTT-6.0.0-1], packets split and
#: joined arbitrarily [MQTT-6.0.0-2]. Clients of 3.1 offer "mqttv3.1".
WEB_SOCKET: Final = WebSocketProfile(subprotocols=("mqtt", "mqttv3.1"), text_allowed=False)


def address_of(host: str, port: int, transport: str = "tcp") -> str:
    """The listener as a URL; an IPv6 address is in brackets (RFC 3986 section 3.2.2)."""
    scheme = "mqtt" if transport == "tcp" else f"mqtt+{transport}"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@final
class LoopRuntime:
    """The event loop as :class:`tidegate_protocols.mqtt.session.context.Runtime`; owns its tasks."""

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
class MqttFrontEnd:
    """A running MQTT listener: see :class:`tidegate.spi.FrontEnd`."""

    def __init__(self, config: ListenerConfig, broker: Broker, options: MqttOptions) -> None:
        if options.client_id_from_certificate and options.tls_client_certificate == "none":
            raise ConfigError(
                "clients show no certificate to take it from; set tls_client_certificate",
                key="client_id_from_certificate",
            )
        self._config = config
        self._broker = broker
        self._options = options
        self._runtime: LoopRuntime | None = None
        self._context: SessionContext | None = None
        # Built here, to report an unusable certificate before anything starts.
        self._listener: Listener = make_listener(
            config,
            options,
            self._make_handler,
            profile=WEB_SOCKET,
            connections_max=options.connections_max,
            refusal_text=f"this listener has reached its limit of {options.connections_max} "
            "connections (connections_max)",
            sockets=broker,
        )

    async def start(self) -> str:
        """Bind and accept. Returns: e.g. ``mqtt+tls://host:port`` (TCP: ``mqtt``). Raises: OSError."""
        runtime = LoopRuntime(asyncio.get_running_loop())
        context = SessionContext(
            self._broker, self._options, runtime, allow_anonymous=self._config.allow_anonymous
        )
        self._context = context
        host, port = await self._listener.start()
        self._runtime = runtime
        context.listener = address_of(host, port, self._config.transport)
        logger.info("listening address=%s", context.listener)
        return context.listener

    @property
    def address(self) -> str:
        """Where it listens; "" before its start."""
        return "" if self._context is None else self._context.listener

    async def reload(self) -> bool:
        """Reread the certificates, see :class:`tidegate.spi.Reloadable`. Raises: ConfigError."""
        return await self._listener.reload()

    async def stop_accepting(self) -> None:
        """No new connections. Idempotent."""
        await self._listener.stop_accepting()

    async def stop(self) -> None:
        """Write out, close what is left, end every task; takes ``stop_timeout`` at most."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.cancel_tasks()
            await self._listener.stop(self._options.stop_timeout)
            await runtime.cancel_tasks()

    def _make_handler(self) -> SessionHandler:
        assert self._context is not None, "a connection needs a started listener"
        return SessionHandler(partial(Session, self._context))


@final
class MqttFrontEndFactory:
    """Makes MQTT listeners: see :class:`tidegate.spi.FrontEndFactory`."""

    @property
    def options_type(self) -> type:
        return MqttOptions

    @property
    def transports(self) -> Sequence[str]:
        return TRANSPORTS

    @property
    def default_port(self) -> int:
        return DEFAULT_PORT

    def create(self, config: ListenerConfig, broker: Broker) -> MqttFrontEnd:
        """Build a listener without binding. Raises: ConfigError."""
        options = config.options
        if not isinstance(options, MqttOptions):
            raise ConfigError(f"options of type {type(options).__name__}, not MqttOptions")
        return MqttFrontEnd(config, broker, options)
