"""Transports: how bytes reach a protocol session and leave it: TCP, TLS, WebSocket, and WebSocket over TLS."""

from __future__ import annotations

from tidegate_protocols.transport._link import Handler, Link, SessionHandler, Sockets
from tidegate_protocols.transport._listener import Listener, make_listener
from tidegate_protocols.transport._options import TRANSPORTS, TransportOptions
from tidegate_protocols.transport._slices import STEP_PACKETS, Share, nobody
from tidegate_protocols.transport._tcp import TcpListener
from tidegate_protocols.transport._tcp_link import TcpLink
from tidegate_protocols.transport._upgrade import WebSocketProfile

__all__ = [
    "STEP_PACKETS",
    "TRANSPORTS",
    "Handler",
    "Link",
    "Listener",
    "SessionHandler",
    "Share",
    "Sockets",
    "TcpLink",
    "TcpListener",
    "TransportOptions",
    "WebSocketProfile",
    "make_listener",
    "nobody",
]
