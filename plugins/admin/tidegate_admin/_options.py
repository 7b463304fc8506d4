"""Options of ``[[listeners]] protocol = "admin"``, and the checks across them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.spi import Bind, ConfigError, Kind, ListenerConfig, names, option
from tidegate.spi.clients.tls import read_pair
from tidegate.spi.operate import DestinationSort

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """A listener's options besides ``bind`` and ``transport``. Sizes are bytes, times seconds."""

    token_file: Path | None = option(
        None,
        help="On loopback: file with the token that lets operators of this machine in. It "
        "is created if missing, mode 0600. Left out: `admin.token` in the data directory.",
    )
    tls_certificate: Path | None = option(
        None,
        help="Transport `tls`, required there: PEM file with the gateway's certificate and then the intermediate "
        "ones.",
    )
    tls_key: Path | None = option(
        None, help="PEM file with the private key, not encrypted; required with `tls_certificate`."
    )
    hosts: tuple[str, ...] = option(
        (),
        help="Names by which this listener may be reached, besides `localhost` and "
        "addresses; a request for another host is refused. Guards against foreign web pages "
        "that point their own name at this machine's address.",
    )
    public_health: bool | None = option(
        None,
        help="Answer `/health/live` and `/health/ready` without credentials. Left out: yes on loopback.",
    )
    connections_max: int = option(
        100,
        minimum=2,
        maximum=10_000,
        help="HTTP connections at a time. They belong to the admin process and take nothing "
        "from clients.",
        act="the next connection is closed at once",
    )
    requests_max: int = option(
        16,
        minimum=1,
        maximum=1000,
        help="Requests to the gateway at a time; health is always answered. Guards the "
        "gateway's loop.",
        act="the next request is answered with 503",
    )
    event_streams_max: int = option(
        16,
        minimum=1,
        maximum=1000,
        help="Streams of events at a time; each console that shows events has one.",
        act="the next one is answered with 503",
    )
    request_limit: int = option(
        1 << 20,
        kind=Kind.SIZE,
        minimum=1024,
        maximum=64 << 20,
        help="Largest body of a request.",
        act="the request is answered with 413",
    )
    request_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.1,
        maximum=600,
        help="Time for the header of a request to arrive, and again for its body. Guards "
        "against clients that send a byte a minute.",
        act="the connection is closed, or the request answered with 408",
    )
    metrics_destinations_max: int = option(
        100,
        minimum=1,
        maximum=1000,
        zero="none",
        help="Destinations that have series of their own in `/metrics`. Guards the database "
        "of the scraper against one series for each name that clients invent.",
        act='the others are one series together, `destination="other"`',
    )
    metrics_destinations_by: DestinationSort = option(
        DestinationSort.PENDING,
        help="Which destinations have series of their own: the first by name, or those with "
        "the most waiting messages (`pending`), consumers, memory, or dropped messages. "
        "Destinations that drop in and out of that list have gaps in their series; the "
        "totals of all destinations have none.",
    )
    metrics_destinations: str = option(
        "",
        help="Only destinations that this name or filter covers are counted, such as "
        "`queue://orders.>`. Left out: all are.",
    )

    @property
    def authenticates(self) -> bool:
        """See :class:`tidegate.spi.AuthenticatingOptions`: nobody is let in without credentials."""
        return True


def is_loopback(config: ListenerConfig) -> bool:
    """Whether only this machine can reach the listener."""
    return Bind(config.host, config.port).is_loopback


def check(config: ListenerConfig, options: AdminOptions) -> None:
    """Raises: ConfigError for options that contradict each other, and for certificates."""
    bind = Bind(config.host, config.port)
    if config.allow_anonymous:
        raise ConfigError(
            "nobody operates a gateway without credentials: remove the key", key="allow_anonymous"
        )
    if config.transport == "tls":
        read_pair(options.tls_certificate, options.tls_key)
    elif options.tls_certificate is not None or options.tls_key is not None:
        key = "tls_key" if options.tls_certificate is None else "tls_certificate"
        raise ConfigError('has no effect without transport = "tls"', key=key)
    if not bind.is_loopback:
        _check_reachable(bind, config, options)
    if (
        not options.metrics_destinations_max
        and options.metrics_destinations_by is not DestinationSort.PENDING
    ):
        raise ConfigError(
            "has no effect with metrics_destinations_max = 0: no destination has series of its own",
            key="metrics_destinations_by",
        )
    _check_filter(options.metrics_destinations)
    for name in options.hosts:
        if _HOST.fullmatch(name) is None:
            raise ConfigError(
                f'{name!r} is no name of a host; write it without port, as in "gateway.example"',
                key="hosts",
            )


def _check_filter(written: str) -> None:
    if not written:
        return
    is_whole = names.is_queue(written) or names.is_topic(written)
    try:
        names.check_filter(names.name_of(written) if is_whole else written)
    except ValueError as error:
        raise ConfigError(str(error), key="metrics_destinations") from None


def _check_reachable(bind: Bind, config: ListenerConfig, options: AdminOptions) -> None:
    advice = f'or bind to "127.0.0.1:{bind.port}"'
    if config.transport != "tls":
        raise ConfigError(
            f"{bind} can be reached from other machines, and passwords would go there in clear: write "
            f'transport = "tls" with tls_certificate and tls_key, {advice}',
            key="bind",
        )
    if not config.authenticated:
        raise ConfigError(
            f"{bind} can be reached from other machines and nothing authenticates operators: add [[extensions]] "
            f"with an authenticator, {advice}",
            key="bind",
        )
    if options.token_file is not None:
        raise ConfigError(
            "is for loopback only: elsewhere users log in with their own credentials",
            key="token_file",
        )
