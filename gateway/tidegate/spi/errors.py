"""The exception tree of the gateway; this docstring is its picture.

GatewayError
├── ConfigError(path, key)
├── PluginError(plugin)
│   ├── PluginLoadError
│   └── PluginContractError
├── ProtocolError(wire_code)
│   ├── LocalProtocolError      our own misuse of a codec
│   └── PeerProtocolError       the peer's fault
│       └── FrameTooLargeError
├── StoreError
│   ├── StoreClosedError
│   ├── StoreLockedError
│   ├── StoreFullError          no room; retryable
│   ├── StoreUnavailableError   short of something other than room; retryable
│   ├── CorruptRecordError(location)
│   ├── StoreIOError            the store is read-only from here on
│   │   └── StoreLostError      another gateway has it, or may have; this one ends
│   └── LargeBodyError          one large body; the store goes on
├── FlowControlError            retryable
│   └── QuotaError              a limit of the client's own share
├── RequestError                a request that makes no sense now (unknown subscription, transaction …)
├── AccessError(principal, destination)
└── ConnectionEndedError        why the gateway ends a connection (take-over, shutdown, …)

Data lives in attributes; the text is built in ``__str__``: what happened, where, what to do. That text
is for the log and the operator; a client is told ``for_client``, which names nothing of the server.
To decide whether to try again later, use the attribute ``retryable``, not the type.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from tidegate.spi.storage.log import AcknowledgedMessage

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_SET_UP: Final = "the gateway is not configured for this; see the gateway's log"
_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class GatewayError(Exception):
    """Base of every error that the gateway and its plugins raise on purpose.

    Attributes:
        retryable: nothing that was asked for has happened, and the same request may succeed later.
    """

    retryable: ClassVar[bool] = False

    @property
    def for_client(self) -> str:
        """What a client may be told; what only the log may show (paths, addresses) is left out."""
        return str(self)


class ConfigError(GatewayError):
    """A value in the configuration is wrong.

    Attributes:
        path: the configuration file, or "" for values that did not come from a file.
        key: the dotted key, e.g. ``broker.connections_max``.
        problem: what is wrong and what to do.
    """

    def __init__(self, problem: str, *, key: str = "", path: str = "") -> None:
        super().__init__(problem, key, path)
        self.problem = problem
        self.key = key
        self.path = path

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.path, self.key) if part)
        return f"{where}: {self.problem}" if where else self.problem

    def at(self, *, path: str = "", prefix: str = "") -> ConfigError:
        """The same problem one level further out: *prefix* goes before the key."""
        dot = "" if self.key.startswith("[") else "."
        key = f"{prefix}{dot}{self.key}" if prefix and self.key else (prefix or self.key)
        return ConfigError(self.problem, key=key, path=path or self.path)

    @property
    def for_client(self) -> str:
        return _NOT_SET_UP


class PluginError(GatewayError):
    """A plugin cannot be used. Attributes: plugin (its name), problem."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(plugin, problem)
        self.plugin = plugin
        self.problem = problem

    def __str__(self) -> str:
        return f"plugin {self.plugin}: {self.problem}"

    @property
    def for_client(self) -> str:
        return _NOT_SET_UP


class PluginLoadError(PluginError):
    """The entry point is missing or its module cannot be imported."""


class PluginContractError(PluginError):
    """The plugin was loaded but breaks the contract."""


class ProtocolError(GatewayError):
    """Bytes or frames that a protocol does not allow.

    Attributes:
        problem: what is wrong.
        wire_code: the protocol's own code for it, when it has one (MQTT reason code), else 0.
    """

    def __init__(self, problem: str, *, wire_code: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.wire_code = wire_code

    def __str__(self) -> str:
        return self.problem


class LocalProtocolError(ProtocolError):
    """We tried to send something that the protocol does not allow: a bug of ours."""


class PeerProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""


class FrameTooLargeError(PeerProtocolError):
    """A frame, packet, header or body is larger than its configured limit."""


class StoreError(GatewayError):
    """The message store could not do what was asked.

    Attributes: known: when one row of the acknowledged log was asked for, its undamaged part (its message
        may be empty); None when nothing is undamaged, or more rows were asked for.
    """

    known: AcknowledgedMessage | None = None

    #: What a client is told in place of a text that may name files, hosts and statements.
    client_text: ClassVar[str] = "the message store failed; see the gateway's log"

    @property
    def for_client(self) -> str:
        return self.client_text


class StoreClosedError(StoreError):
    """The store is not open, or no longer open."""

    client_text: ClassVar[str] = "the message store is closed"


class StoreLockedError(StoreError):
    """Another gateway owns the store. Attributes: owner (what is known of it)."""

    def __init__(self, problem: str, *, owner: str = "") -> None:
        super().__init__(problem)
        self.owner = owner


class StoreFullError(StoreError):
    """There is no room. Nothing of the batch was written and the store stays usable."""

    retryable: ClassVar[bool] = True
    client_text: ClassVar[str] = "the message store is full; try again later"


class StoreUnavailableError(StoreError):
    """The store cannot work for now (no file descriptor left, …); otherwise like StoreFullError."""

    retryable: ClassVar[bool] = True
    client_text: ClassVar[str] = "the message store is temporarily unavailable; try again later"


class CorruptRecordError(StoreError):
    """Stored bytes are damaged.

    Attributes:
        location: human-readable place; problem.
        raw: the stored bytes of the record, as far as they can be read.
    """

    def __init__(self, problem: str, *, location: str, raw: bytes = b"") -> None:
        super().__init__(problem, location)
        self.problem = problem
        self.location = location
        self.raw = raw

    def __str__(self) -> str:
        return f"{self.location}: {self.problem}"


class StoreIOError(StoreError):
    """Reading or writing failed in a way that leaves the store read-only."""

    client_text: ClassVar[str] = (
        "the message store is read-only after an error; no messages are accepted"
    )


class StoreLostError(StoreIOError):
    """Another gateway owns the store, or may: ``StoreContext.lost`` was called, and this gateway ends."""

    client_text: ClassVar[str] = (
        "this gateway has lost its message store and is stopping; connect again"
    )


class LargeBodyError(StoreError):
    """One large body could not be written or read. The store and all other messages are unaffected."""

    client_text: ClassVar[str] = (
        "the body of this message could not be stored; see the gateway's log; other "
        "messages are accepted"
    )


def store_error(problem: str, error: OSError, other: type[StoreError] = StoreIOError) -> StoreError:
    """The error a store raises for *error* when nothing of the batch was written.

    StoreFullError or StoreUnavailableError when the operating system suggests that it may succeed
    later, otherwise *other*.
    """
    text = f"{problem}: {error}"
    if error.errno in _NO_ROOM:
        return StoreFullError(text)
    return StoreUnavailableError(text) if error.errno in _TOO_MANY_FILES else other(text)


class FlowControlError(GatewayError):
    """A limit was reached and the policy is to refuse."""

    retryable: ClassVar[bool] = True


class QuotaError(FlowControlError):
    """A limit of the client's own share was reached; others are still served."""


class RequestError(GatewayError):
    """A request that cannot be carried out now: no such subscription, transaction, message …"""


class AccessError(GatewayError):
    """A principal may not do this. Attributes: principal, destination, problem."""

    def __init__(self, problem: str, *, principal: str = "", destination: str = "") -> None:
        super().__init__(problem, principal, destination)
        self.problem = problem
        self.principal = principal
        self.destination = destination

    def __str__(self) -> str:
        who = f"{self.principal}: " if self.principal else ""
        where = f" ({self.destination})" if self.destination else ""
        return f"{who}{self.problem}{where}"


class ConnectionEndedError(GatewayError):
    """Why the gateway ends a connection, or lets nobody in.

    Attributes: reason, a short word such as ``shutdown``; server_reference: where the client should go
        (``use-another-server``, ``server-moved``), "" when that is not given.
    """

    def __init__(self, reason: str, problem: str, server_reference: str = "") -> None:
        super().__init__(problem)
        self.server_reference = server_reference
        self.reason = reason
