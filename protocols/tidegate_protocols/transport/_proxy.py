"""The PROXY protocol, version 2: a proxy reports the address a client comes from.

Source: "The PROXY protocol, versions 1 & 2" (HAProxy, 2020), section 2.2. Only proxies listed for the
listener are let in, and each of their connections must begin with a header: accepting headers from
everybody would let everybody choose an address. What a proxy says about TLS is ignored: identity is
what the gateway itself has verified.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from tidegate.spi import ConfigError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
#: Signature, version and command, family and protocol, length.
FIXED_BYTES: Final = 16
#: Limit on what follows these. Two addresses take 36 bytes, those of UNIX sockets 216; the rest is what
#: proxies add, a checksum or the client's certificate: nothing comes near this.
VARIABLE_BYTES_MAX: Final = 4096

_VERSION: Final = 2
_LOCAL: Final = 0
_PROXY: Final = 1
_TCP_OVER_IPV4: Final = 0x11
_TCP_OVER_IPV6: Final = 0x21
_ADDRESS_BYTES: Final = {_TCP_OVER_IPV4: 4, _TCP_OVER_IPV6: 16}
#: UNSPEC, and UNIX sockets: the client has no address.
_WITHOUT_ADDRESS: Final = frozenset({0x00, 0x31})


class ProxyHeaderError(ConnectionError):
    """The connection does not begin as one from a listed proxy must."""


@dataclass(frozen=True, slots=True)
class Proxies:
    """Addresses of proxies, and how long one may take to send its header (seconds)."""

    networks: tuple[Network, ...]
    timeout_s: float


def parse_networks(addresses: Sequence[str]) -> tuple[Network, ...]:
    """``192.0.2.7``, ``10.0.0.0/8``, ``2001:db8::/32``. Raises: ConfigError."""
    found: list[Network] = []
    for text in addresses:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is not the address of a proxy: {error}; write '192.0.2.7' or "
                "'10.0.0.0/8'",
                key="proxy_addresses",
            ) from None
    return tuple(found)


async def client_of(
    loop: asyncio.AbstractEventLoop, accepted: socket.socket, proxies: Proxies
) -> str:
    """Read the header, and no byte beyond it, from a connection just accepted.

    Returns: ``host:port`` of the client (``[address]:port`` for IPv6); "": the header names none, so the
        proxy speaks for itself (health checks).
    Raises: ProxyHeaderError. Cancellation: safe; the socket stays the caller's.
    """
    _check_listed(accepted, proxies.networks)
    try:
        async with asyncio.timeout(proxies.timeout_s):
            head = await _exactly(loop, accepted, FIXED_BYTES)
            size = length_of(head)
            return parse(head, await _exactly(loop, accepted, size))
    except TimeoutError:
        raise ProxyHeaderError(f"no complete PROXY header within {proxies.timeout_s:g} s") from None


def length_of(head: bytes) -> int:
    """Number of bytes after the first FIXED_BYTES, *head*. Raises: ProxyHeaderError."""
    if not head.startswith(SIGNATURE):
        if head.startswith(b"PROXY "):
            raise ProxyHeaderError(
                "PROXY header of version 1; configure the proxy to send version 2"
            )
        raise ProxyHeaderError("the connection does not begin with a PROXY protocol header")
    if head[12] >> 4 != _VERSION:
        raise ProxyHeaderError(f"unknown PROXY version {head[12] >> 4}")
    size = int.from_bytes(head[14:16], "big")
    if size > VARIABLE_BYTES_MAX:
        raise ProxyHeaderError(f"a header of {size} bytes, {VARIABLE_BYTES_MAX} at most")
    return size


def parse(head: bytes, rest: bytes) -> str:
    """The client's address in a complete header, "" for none. Raises: ProxyHeaderError."""
    command, family = head[12] & 0x0F, head[13]
    if command == _LOCAL:
        return ""  # "the receiver must accept this connection as valid and must use the real one"
    if command != _PROXY:
        raise ProxyHeaderError(f"unknown PROXY command {command}")
    if family in _WITHOUT_ADDRESS:
        return ""
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        raise ProxyHeaderError(f"family and protocol {family:#x} are not supported: only TCP is")
    if len(rest) < 2 * size + 4:
        raise ProxyHeaderError("the header ends inside its addresses")
    address = ipaddress.ip_address(rest[:size])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # one client has one address: rules and limits go by it
    port = int.from_bytes(rest[2 * size : 2 * size + 2], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _check_listed(accepted: socket.socket, networks: Sequence[Network]) -> None:
    try:
        host = cast("str", accepted.getpeername()[0])
        address = ipaddress.ip_address(host.partition("%")[0])
    except (OSError, ValueError):
        raise ProxyHeaderError("the connection is already closed") from None
    if not any(address in network for network in networks):
        raise ProxyHeaderError("the peer is not listed in proxy_addresses")


async def _exactly(loop: asyncio.AbstractEventLoop, accepted: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            piece = await loop.sock_recv(accepted, size - len(data))
        except OSError as error:
            raise ProxyHeaderError(f"its header cannot be read: {error}") from error
        if not piece:
            raise ProxyHeaderError("it ended inside its header")
        data += piece
    return data
