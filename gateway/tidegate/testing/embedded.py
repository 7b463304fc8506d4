"""A whole gateway inside a test: real plugins, real sockets, free ports, its own directory."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: Protocols of the embedded default that clients speak. The operators' listener is a separate process; a
#: test that wants it names it.
_CLIENTS = ("stomp", "mqtt")


class EmbeddedGateway:
    """The gateway that *config* describes, running on this event loop while the context is open.

    ::

        async with EmbeddedGateway() as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.stomp_port)

    Args:
        config: text of a configuration file. When it has no ``[[listeners]]``, STOMP and MQTT
            listen on free loopback ports. Its ``data_directory`` is not used.
        data_directory: where the gateway keeps its data, permanently. None: a temporary directory
            that is removed at the end.

    Attributes:
        gateway: the running :class:`tidegate.gateway.Gateway`; a new one after :meth:`restart`.
        data_directory: where its data is.
    """

    gateway: Any  # not its type: at module level this package imports nothing of the host
    data_directory: Path

    def __init__(self, config: str = "", *, data_directory: Path | None = None) -> None:
        self._text = config
        self._given_directory = data_directory
        self._protocols: list[str] = []

    async def __aenter__(self) -> Self:
        """Start. Raises: ConfigError, PluginError, StoreError, OSError."""
        if self._given_directory is not None:
            self.data_directory = self._given_directory
        else:
            self.data_directory = Path(await asyncio.to_thread(tempfile.mkdtemp, "", "tidegate-"))
        try:
            await self._start()
        except BaseException:
            await self._clean_up()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop cleanly."""
        try:
            await self.gateway.stop()
        finally:
            await self._clean_up()

    async def restart(self) -> None:
        """Stop cleanly and start again on the same data; free ports change."""
        await self.gateway.stop()
        await self._start()

    @property
    def addresses(self) -> Sequence[str]:
        """What each listener listens on, e.g. ``stomp://127.0.0.1:40123``."""
        return self.gateway.addresses

    @property
    def stomp_port(self) -> int:
        """Port of the first STOMP listener. Raises: LookupError when there is none."""
        return self.port("stomp")

    @property
    def mqtt_port(self) -> int:
        """Port of the first MQTT listener. Raises: LookupError when there is none."""
        return self.port("mqtt")

    def port(self, protocol: str) -> int:
        """Port of the first listener that speaks *protocol*. Raises: LookupError."""
        for spoken, address in zip(self._protocols, self.addresses, strict=True):
            if spoken == protocol:
                return int(address.rpartition(":")[2])
        raise LookupError(f"no listener speaks {protocol!r}; there are {list(self.addresses)}")

    async def _start(self) -> None:
        # Here and not above: the kits, which share this package, need nothing of the host.
        from tidegate.config import DEFAULT_LISTENERS, parse_config, resolve
        from tidegate.gateway import Gateway
        from tidegate.plugins import PluginHost

        config = parse_config(self._text)
        broker = dataclasses.replace(config.broker, data_directory=self.data_directory)
        listeners = config.listeners
        if listeners == DEFAULT_LISTENERS:
            listeners = tuple(
                dataclasses.replace(listener, bind="127.0.0.1:0")
                for listener in listeners
                if listener.protocol in _CLIENTS
            )
        config = dataclasses.replace(config, broker=broker, listeners=listeners)
        plugins = PluginHost()
        gateway = Gateway(resolve(config, plugins), plugins)
        await gateway.start()
        self._protocols = [listener.protocol for listener in listeners]
        self.gateway = gateway

    async def _clean_up(self) -> None:
        if self._given_directory is None:
            await asyncio.to_thread(shutil.rmtree, self.data_directory, ignore_errors=True)
