"""Transport options that every listener has, whatever its protocol.

A protocol's options inherit these, so one table of the configuration holds both. An option that
does not apply to the chosen transport is refused: a certificate on a plain TCP listener would
make an operator believe that passwords are encrypted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from tidegate.spi import ConfigError, Kind, option
from tidegate_protocols.transport._principal import PrincipalRule
from tidegate_protocols.transport._proxy import Proxies, parse_networks
from tidegate_protocols.transport._tls import TlsOptions, server_context
from tidegate_protocols.transport._upgrade import check_origins

#: What a listener's ``transport`` may say; the first is the default.
TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")
_WITH_TLS: Final = ("tls", "wss")
_WITH_WEBSOCKET: Final = ("ws", "wss")


@dataclasses.dataclass(frozen=True, slots=True)
class TransportOptions(TlsOptions):
    """See docs/transports.md. Sizes are bytes, times are seconds.

    Creating one reads the certificates that it names, so checking a configuration finds what is
    wrong with them. Raises: ConfigError.
    """

    unread_output_max: int = option(
        1024 * 1024,
        kind=Kind.SIZE,
        minimum=64 * 1024,
        help="Output that may wait for one client that does not read. Above it the gateway "
        "does not read from that client either, until it has caught up. Deliveries stop "
        "before that. Guards against clients that ask without ever reading the answers.",
        act="the connection is not read until its client has caught up",
        metric="held.output.bytes",
    )
    unread_output_timeout: float = option(
        60.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="never",
        help="A connection that is not read because of `unread_output_max` is closed when "
        "its client takes no byte for this long.",
        act="the connection is closed",
        metric="held.output.bytes",
    )
    frame_timeout: float = option(
        60.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="never",
        help="A frame or packet that is kept in memory must end within this time, or 1 KiB "
        "more of it must arrive; from 64 KiB on, 1 MiB more. Otherwise it is refused and "
        "the connection closed. Guards against clients that send half a message and then "
        "nothing, even if they asked for no heart-beats or keep-alive.",
        act="ERROR or DISCONNECT, the connection is closed",
        metric="held.input.bytes",
    )
    body_timeout: float = option(
        60.0,
        kind=Kind.DURATION,
        minimum=0.01,
        zero="never",
        help="A connection is closed when nothing arrives for this long of a message that "
        "goes to the store as it arrives. The whole message may take as long as it likes. "
        "Guards against clients that send half a large message and then nothing.",
        act="the connection is closed",
    )
    handshake_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=600.0,
        help="Transports `tls`, `ws` and `wss`: time for the TLS handshake, and again for "
        "the WebSocket handshake; with `proxy_protocol` also for the proxy's header. Guards "
        "against connections that never say anything.",
        act="the connection is closed",
    )
    proxy_protocol: bool = option(
        False,
        help="Connections come through proxies and begin with a header of the PROXY "
        "protocol, version 2, with the client's address for limits, rules and logs. "
        "Requires `proxy_addresses`; otherwise every client could choose its address.",
    )
    proxy_addresses: tuple[str, ...] = option(
        (),
        help="Addresses of the proxies, such as `192.0.2.7` or `10.0.0.0/8`; connections "
        "from others are closed. Guards against clients that bypass the proxy.",
    )
    websocket_origins: tuple[str, ...] = option(
        (),
        help="Transports `ws` and `wss`: origins such as `https://app.example` whose web "
        "pages may connect. Pages from this very host and port may always connect if the "
        'host is an IP address or `localhost`. `["*"]` lets every page in. Guards against '
        "a foreign page that uses its visitor's browser to reach this gateway, also by a "
        "name that it points at the gateway's address.",
    )
    websocket_message_max: int = option(
        256 * 1024 * 1024,
        kind=Kind.SIZE,
        minimum=1024,
        help="Transports `ws` and `wss`: largest WebSocket message accepted, all its "
        "fragments together; a larger one closes the connection with 1009. Messages are not "
        "collected in memory; the protocol's own limits bound what is.",
        act="the connection is closed with 1009",
    )
    websocket_handshake_max: int = option(
        16 * 1024,
        kind=Kind.SIZE,
        minimum=512,
        maximum=1024 * 1024,
        help="Transports `ws` and `wss`: largest HTTP request that may open a WebSocket; a larger "
        "one is answered with 431.",
        act="the request is answered with 431",
    )

    def __post_init__(self) -> None:
        check_origins(self.websocket_origins)
        if self.proxy_protocol != bool(self.proxy_addresses):
            missing = "proxy_addresses" if self.proxy_protocol else "proxy_protocol"
            raise ConfigError(
                "proxy_protocol and proxy_addresses go together; set both or none", key=missing
            )
        parse_networks(self.proxy_addresses)
        for field in dataclasses.fields(TransportOptions):
            if field.name.startswith("tls_") and getattr(self, field.name) != field.default:
                PrincipalRule(self)
                server_context(self)
                return

    @property
    def authenticates(self) -> bool:
        """See :class:`tidegate.spi.AuthenticatingOptions`."""
        return self.tls_principal != "none"


def check_transport(transport: str, options: TransportOptions) -> None:
    """Refuse an unknown transport, and options that it would ignore.

    Raises: ConfigError naming the key.
    """
    if transport not in TRANSPORTS:
        raise ConfigError(
            f"{transport!r} is not one of {', '.join(map(repr, TRANSPORTS))}", key="transport"
        )
    for field in dataclasses.fields(TransportOptions):
        wanted = _transports_of(field.name, options)
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


def proxies_of(options: TransportOptions) -> Proxies | None:
    """The proxies of a listener; None: clients connect directly."""
    if not options.proxy_protocol:
        return None
    return Proxies(parse_networks(options.proxy_addresses), options.handshake_timeout)


def _transports_of(option_name: str, options: TransportOptions) -> Sequence[str]:
    if option_name.startswith("tls_"):
        return _WITH_TLS
    if option_name.startswith("websocket_"):
        return _WITH_WEBSOCKET
    if (
        option_name.startswith(("proxy_", "unread_output_", "frame_", "body_"))
        or options.proxy_protocol
    ):
        return TRANSPORTS
    return ("tls", "ws", "wss")
