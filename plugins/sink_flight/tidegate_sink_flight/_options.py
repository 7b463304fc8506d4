"""Options of ``[[sinks]] plugin = "flight"``, and the checks across them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.spi import Bind, ConfigError, Kind, SinkContext, option, parse_bind
from tidegate.spi.clients.tls import read_pair

DEFAULT_PORT: Final = 8815
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class FlightSinkOptions:
    """The keys of a ``[[sinks]]`` table besides ``plugin`` and ``name``."""

    bind: str = option(
        "127.0.0.1:8815",
        help="Where Flight clients connect. Any address but loopback requires TLS and users.",
    )
    readers: dict[str, str] = option(
        {},
        help="Named readers, each with the principal that owns it. Rows are kept until "
        "every reader has committed them.",
    )
    keep: float = option(
        0.0,
        kind=Kind.DURATION,
        minimum=1,
        zero="as long as readers and other sinks need them",
        help="How long rows are kept at least, for batch reads, within the limits of the "
        "acknowledged log.",
    )
    include: tuple[str, ...] = option(
        (),
        help="Destinations whose rows can be read, as queue://, topic:// or bare patterns; empty: all.",
    )
    exclude: tuple[str, ...] = option(
        (), help="Destinations whose rows cannot be read, whatever `include` says."
    )
    tls_certificate: Path | None = option(
        None,
        help="PEM file with the gateway's certificate and then the intermediate ones. "
        "Switches TLS on.",
    )
    tls_key: Path | None = option(
        None, help="PEM file with the private key, not encrypted; required with `tls_certificate`."
    )
    allow_anonymous: bool | None = option(
        None,
        help="Accept clients without credentials. Left out: yes on loopback while no extension authenticates.",
    )
    streams_max: int = option(
        32,
        minimum=1,
        maximum=1000,
        help="Reads at a time. Each holds a thread and some 20 MB of the Flight server, which is a process of "
        "its own.",
        act="another read is told that the server is busy; the Spark source tries it again",
    )
    streams_per_client_max: int = option(
        16,
        minimum=1,
        maximum=1000,
        help="Reads of one principal at a time. A reader that stops reading must not keep "
        "others out.",
        act="as with `streams_max`",
    )
    session_timeout: float = option(
        600.0,
        kind=Kind.DURATION,
        minimum=1,
        maximum=86_400,
        help="Time without a call after which a client has to show its credentials again.",
        act="the session ends, and the client has to log in again",
    )


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how the server listens. Attributes: anonymous: also without credentials."""

    bind: Bind
    anonymous: bool
    certificate: str = ""
    key: str = ""


def listening_of(options: FlightSinkOptions, context: SinkContext) -> Listening:
    """Check *options* against each other and read the certificate. Raises: ConfigError."""
    try:
        bind = parse_bind(options.bind, DEFAULT_PORT)
    except ValueError as error:
        raise ConfigError(str(error), key="bind") from None
    certificate, key = "", ""
    if options.tls_certificate is not None or options.tls_key is not None:
        certificate, key = read_pair(options.tls_certificate, options.tls_key)
    if not bind.is_loopback and not certificate:
        raise ConfigError(
            f"{bind} can be reached from other machines, and rows and passwords would go there in clear: name "
            f'tls_certificate and tls_key, or bind to "127.0.0.1:{bind.port}"',
            key="bind",
        )
    anonymous = options.allow_anonymous
    if anonymous is None:
        anonymous = bind.is_loopback and not context.authenticated
    if not anonymous and not context.authenticated:
        raise ConfigError(
            "nothing authenticates clients, so none could ever read; add [[extensions]] with an authenticator, or "
            "write allow_anonymous = true",
            key="bind" if options.allow_anonymous is None else "allow_anonymous",
        )
    for name, principal in options.readers.items():
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name!r} is no name of a reader: letters, digits, '.', '_' and '-'", key="readers"
            )
        if not principal:
            raise ConfigError(f"{name!r} belongs to nobody; name its principal", key="readers")
    if not options.readers and not options.keep:
        raise ConfigError(
            "no row would be kept for anybody: name readers, or say with `keep` how long rows stay",
            key="readers",
        )
    return Listening(bind, anonymous, certificate, key)
