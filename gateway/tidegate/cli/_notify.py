"""What a service manager is told: that the gateway runs, reloads, stops, and that its event loop is alive.

The protocol of systemd's ``sd_notify(3)``: datagrams of ``NAME=value`` lines to the socket that ``NOTIFY_SOCKET``
names. Without that variable nobody is told anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_log = logging.getLogger("tidegate.run")

#: How many times the watchdog hears from us within the time after which it kills.
_TIMES: Final = 3
#: How often recovery progress is reported, in seconds.
_STATUS_EVERY_S: Final = 1.0


class ServiceManager:
    """See the module. Never raises, never blocks. Args: environment: of the process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_s = 0.0
        owner = environment.get("WATCHDOG_PID", str(os.getpid()))
        if self._address and owner == str(os.getpid()):
            self._watchdog_s = _microseconds(environment.get("WATCHDOG_USEC", "")) / 1e6
        self._socket: socket.socket | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._told_at = -_STATUS_EVERY_S
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def ready(self) -> None:
        """Clients can connect; called on the event loop, whose beats the watchdog hears from now on."""
        self._is_ready = True
        self._tell("READY=1", "STATUS=running")
        if self._watchdog_s and self._beat is None:
            self._go_on()

    def recovering(self, what: str) -> None:
        """The store is being opened; that may take as long as it takes."""
        now = time.monotonic()
        if now - self._told_at >= _STATUS_EVERY_S:
            self._told_at = now
            self._tell(f"STATUS=recovering: {what}")

    def standing_by(self, owner: str, since: str) -> None:
        """*owner* has the store and is waited for *since* then; "": no longer."""
        if owner:
            self._tell(f"STATUS=standby since {since}: {owner} has the store's lock")
        else:
            self._tell("STATUS=recovering")

    def reloading(self) -> None:
        """The configuration is read anew. Without effect before it is ready."""
        if self._is_ready:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """That is over, whatever came of it."""
        if self._is_ready:
            self.ready()

    def stopping(self) -> None:
        """It stops."""
        self._is_ready = False
        self._tell("STOPPING=1", "STATUS=stopping")

    def close(self) -> None:
        """Nothing more is told. Idempotent."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _go_on(self) -> None:
        self._tell("WATCHDOG=1")
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(self._watchdog_s / _TIMES, self._go_on)

    def _tell(self, *lines: str) -> None:
        if self._socket is None:
            return
        address = self._address
        name = "\0" + address[1:] if address.startswith("@") else address  # an abstract one
        try:
            self._socket.sendto("\n".join(lines).encode(), name)
        except OSError as error:
            _log.warning("notify=%s: cannot notify the service manager: %s", lines[0], error)


def _microseconds(text: str) -> int:
    return int(text) if text.isdecimal() else 0
