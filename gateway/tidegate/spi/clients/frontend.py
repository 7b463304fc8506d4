"""What a protocol plugin gives the host: listeners that can be started and stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidegate.spi.clients.connection import Broker


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One ``[[listeners]]`` table, as far as the host understands it.

    Attributes:
        protocol, transport: e.g. ``stomp``, ``tcp``.
        host, port: parsed from ``bind``; port 0 takes a free one.
        allow_anonymous: clients without credentials are accepted.
        options: an instance of the factory's ``options_type``: the table's other keys.
        authenticated: an extension can authenticate clients.
    """

    protocol: str
    transport: str
    host: str
    port: int
    allow_anonymous: bool
    options: object
    authenticated: bool = False


@runtime_checkable
class AuthenticatingOptions(Protocol):
    """Optional for ``ListenerConfig.options``: the listener can authenticate its clients itself
    (``ConnectRequest.tls_principal``), so that no extension is needed to let them in."""

    @property
    def authenticates(self) -> bool:
        """True when it does so with these options."""
        ...


class FrontEnd(Protocol):
    """A running listener."""

    async def start(self) -> str:
        """Bind and accept. Returns the address, e.g. ``stomp://127.0.0.1:61613``.

        Raises: OSError (port in use …).
        """
        ...

    async def stop_accepting(self) -> None:
        """Accept no new connections; existing ones continue. Idempotent."""
        ...

    async def stop(self) -> None:
        """Flush and close the remaining connections. Idempotent; bounded in time."""
        ...


@runtime_checkable
class Reloadable(Protocol):
    """Optional for a listener or extension whose files are changed by others while it runs:
    certificates, rules, a log that is rotated."""

    async def reload(self) -> bool:
        """Reread or reopen the files, whether they have changed or not; certificates apply to new
        connections. Called on SIGHUP and by `tidegate reload`, never concurrently.

        Returns: False when there are no such files. The log says whether it reloaded; do not log that here.
        Raises: ConfigError naming the fault, file and line; everything then stays as it was.
        """
        ...


class FrontEndFactory(Protocol):
    """What a plugin registers for a protocol (hook ``register_front_end``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass for the listener's other keys (limits, heart-beats …)."""
        ...

    @property
    def transports(self) -> Sequence[str]:
        """Transports it supports, e.g. ``("tcp",)``; the first is the default."""
        ...

    @property
    def default_port(self) -> int:
        """The port of a ``bind`` that names none."""
        ...

    def create(self, config: ListenerConfig, broker: Broker) -> FrontEnd:
        """Build a listener; must not bind yet. Raises: ConfigError."""
        ...


class EarlyFrontEndFactory(FrontEndFactory, Protocol):
    """Optional for a factory whose listeners need something that takes long to start, such as a child process,
    and that needs nothing of the gateway."""

    async def begin(self) -> None:
        """A listener of this protocol is configured, and ``create`` for it follows soon unless the configuration is
        faulty. Called by ``tidegate run`` once for each listener, before the configuration is checked in detail
        and the broker is imported; not called by an embedded gateway or on reload.

        Whatever is started must end with the gateway's process in any case. Raises nothing: what cannot start
        now is started by the listener itself.
        """
        ...
