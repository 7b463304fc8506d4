"""Transports: how bytes reach a protocol session and leave it. TCP so far."""

from __future__ import annotations

from tidegate_protocols.transport._link import Handler, Link
from tidegate_protocols.transport._tcp import TcpLink, TcpListener

__all__ = ["Handler", "Link", "TcpLink", "TcpListener"]
