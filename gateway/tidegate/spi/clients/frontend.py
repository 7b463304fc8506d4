"""What a protocol plugin gives the host: listeners that can be started and stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidegate.spi.clients.connection import Broker


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One ``[[listeners]]`` table, the part the host understands.

    Attributes:
        protocol, transport: e.g. ``stomp``, ``tcp``.
        host, port: parsed from ``bind``; port 0 takes a free one.
        allow_anonymous: clients without credentials are accepted.
        options: an instance of the factory's ``options_type``: the table's other keys.
        authenticated: an extension can say who clients are.
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
    """What ``ListenerConfig.options`` may be besides: those of a listener that can know its clients
    itself (``ConnectRequest.tls_principal``), so that no extension is needed to let them in."""

    @property
    def authenticates(self) -> bool:
        """It does, as these options are."""
        ...


class FrontEnd(Protocol):
    """A running listener."""

    async def start(self) -> str:
        """Bind and accept. Returns the address, e.g. ``stomp://127.0.0.1:61613``.

        Raises: OSError (port in use …).
        """
        ...

    async def stop_accepting(self) -> None:
        """No new connections; the existing ones go on. Idempotent."""
        ...

    async def stop(self) -> None:
        """Flush and close what is left. Idempotent; bounded in time."""
        ...


@runtime_checkable
class Reloadable(Protocol):
    """What a listener or an extension has besides when it has files that others change while it runs:
    certificates, rules, a log that is rotated."""

    async def reload(self) -> bool:
        """Read them anew, or begin them anew, whether they have changed or not; certificates count
        for connections that come from now on. Called on SIGHUP and by `tidegate reload`, never twice at once.

        Returns: False when there are none. The log says whether it did, so nothing else has to.
        Raises: ConfigError that says where something is wrong, file and line; then everything stays
            as it was before.
        """
        ...


class FrontEndFactory(Protocol):
    """What a plugin registers for a protocol (hook ``register_front_end``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass for the listener's further keys (limits, heart-beats …)."""
        ...

    @property
    def transports(self) -> Sequence[str]:
        """Transports it supports, e.g. ``("tcp",)``; the first is the default."""
        ...

    @property
    def default_port(self) -> int: ...

    def create(self, config: ListenerConfig, broker: Broker) -> FrontEnd:
        """Build a listener; must not bind yet. Raises: ConfigError."""
        ...


class EarlyFrontEndFactory(FrontEndFactory, Protocol):
    """What a factory is besides when its listeners have something that takes long to begin, a process of their own
    say, and that needs nothing of the gateway."""

    async def begin(self) -> None:
        """A listener of this protocol is configured, and ``create`` for it comes soon, unless something is wrong
        with the configuration. Called by ``tidegate run`` once for each, before the configuration is looked at
        closely and the broker is imported; a gateway inside another program and a reload do without.

        What is begun must end with the gateway's process, whatever comes of it. It raises nothing: what cannot
        begin now, the listener begins itself.
        """
        ...
