"""Options that every listener has for its transport, whatever the protocol.

A protocol's options inherit these, so that one table of the configuration holds both. What does
not apply to the chosen transport is refused: a certificate on a listener that is plain TCP would
make an operator believe that passwords are encrypted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from tidegate.spi import ConfigError, Kind, option
from tidegate_protocols.transport._tls import TlsOptions, server_context
from tidegate_protocols.transport._upgrade import check_origins

#: What a listener's ``transport`` may say; the first is the default.
TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")
_WITH_TLS: Final = ("tls", "wss")
_WITH_WEBSOCKET: Final = ("ws", "wss")


@dataclasses.dataclass(frozen=True, slots=True)
class TransportOptions(TlsOptions):
    """See docs/transports.md. Sizes are bytes, times are seconds.

    Building one reads the certificates that it names, so that checking a configuration finds
    what is wrong with them. Raises: ConfigError.
    """

    handshake_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=600.0,
        help="Transports `tls`, `ws` and `wss`: time for the TLS handshake, and again for the "
        "WebSocket handshake; guards against connections that never say anything.",
    )
    websocket_origins: tuple[str, ...] = option(
        (),
        help="Transports `ws` and `wss`: origins such as `https://app.example` whose web pages may "
        "connect, beside pages from this very host and port where that is an IP address or "
        '`localhost`; `["*"]` lets every page in. Guards against a foreign page that uses its '
        "visitor's browser to reach this gateway, also by a name that is made to mean its address.",
    )
    websocket_message_max: int = option(
        256 * 1024 * 1024,
        kind=Kind.SIZE,
        minimum=1024,
        help="Transports `ws` and `wss`: largest WebSocket message accepted, all its fragments "
        "together; a larger one closes the connection with 1009. Messages are not collected in "
        "memory; what is, the protocol's own limits bound.",
    )
    websocket_handshake_max: int = option(
        16 * 1024,
        kind=Kind.SIZE,
        minimum=512,
        maximum=1024 * 1024,
        help="Transports `ws` and `wss`: largest HTTP request that may open a WebSocket; a larger "
        "one is answered with 431.",
    )

    def __post_init__(self) -> None:
        check_origins(self.websocket_origins)
        for field in dataclasses.fields(TransportOptions):
            if field.name.startswith("tls_") and getattr(self, field.name) != field.default:
                server_context(self)
                return


def check_transport(transport: str, options: TransportOptions) -> None:
    """Refuse a transport that does not exist and options that it would ignore.

    Raises: ConfigError naming the key.
    """
    if transport not in TRANSPORTS:
        raise ConfigError(
            f"{transport!r} is not one of {', '.join(map(repr, TRANSPORTS))}", key="transport"
        )
    for field in dataclasses.fields(TransportOptions):
        wanted = _transports_of(field.name)
        if transport not in wanted and getattr(options, field.name) != field.default:
            raise ConfigError(
                f"has no effect with transport = {transport!r}; "
                f"remove it, or use {' or '.join(map(repr, wanted))}",
                key=field.name,
            )


def is_tls(transport: str) -> bool:
    """Whether *transport* is encrypted."""
    return transport in _WITH_TLS


def is_websocket(transport: str) -> bool:
    """Whether *transport* is WebSocket."""
    return transport in _WITH_WEBSOCKET


def _transports_of(option_name: str) -> Sequence[str]:
    if option_name.startswith("tls_"):
        return _WITH_TLS
    if option_name.startswith("websocket_"):
        return _WITH_WEBSOCKET
    return ("tls", "ws", "wss")
