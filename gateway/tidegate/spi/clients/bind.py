"""Where a listener binds: parsing ``bind``, and which two addresses cannot both be bound."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
_EXAMPLES: Final = "'127.0.0.1:61613', '[::1]:61613' or ':61613' for all interfaces"
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Bind:
    """A parsed ``bind``.

    Attributes:
        host: an address without brackets, a host name, or "" for all interfaces.
        port: 0 to 65535; 0 takes a free one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach it. A host name other than localhost counts as False."""
        if self.host.lower() == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    def overlaps(self, other: Bind) -> bool:
        """Tell whether the two cannot both be bound (free ports never collide)."""
        if self.port != other.port or self.port == 0:
            return False
        if self.host.lower() == other.host.lower() or "" in (self.host, other.host):
            return True
        mine, theirs = _wildcard_family(self.host), _wildcard_family(other.host)
        return mine == _family(other.host) != 0 or theirs == _family(self.host) != 0


def parse_bind(text: str, default_port: int) -> Bind:
    """Parse *text*; "" means loopback, and a missing port means *default_port*.

    Raises: ValueError that says what is accepted.
    """
    if not text:
        return Bind("127.0.0.1", default_port)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or _family(host) != 6 or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; write {_EXAMPLES}")
        return Bind(host, _port(text, rest[1:]) if rest else default_port)
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(default_port)
    if ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets; write {_EXAMPLES}")
    if host == "*":
        host = ""
    elif host and _family(host) == 0 and _HOST_NAME.fullmatch(host) is None:
        raise ValueError(f"{text!r} is not an address; write {_EXAMPLES}")
    return Bind(host, _port(text, port))


def host_of(peer: str) -> str:
    """The host of a socket's address as :class:`Bind` writes it, ``host:port``; "" when it has none."""
    return peer.rpartition(":")[0].strip("[]")


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit()) or int(digits[:6]) > PORT_MAX:
        raise ValueError(f"{text!r}: the port must be a number from 0 to {PORT_MAX}")
    return int(digits)


def _family(host: str) -> int:
    """4 or 6 for an address, 0 for a name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _wildcard_family(host: str) -> int:
    """4 or 6 when *host* means every address of that family, -1 when it does not."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return -1
    return address.version if address.is_unspecified else -1
