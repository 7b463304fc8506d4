"""Exit codes, and the one line on stderr that goes with each."""

from __future__ import annotations

import enum
import errno
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.spi import (
    AccessError,
    ClientError,
    ConfigError,
    CorruptRecordError,
    GatewayError,
    PluginError,
    RequestError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)

if TYPE_CHECKING:
    from tidegate.config import ResolvedConfig


class ExitCode(enum.IntEnum):
    """How the command ends; documented in docs/configuration.md, stable for scripts."""

    OK = 0
    UNEXPECTED = 1
    CONFIG = 2
    BIND = 3
    STORE_LOCKED = 4
    STORAGE = 5
    PLUGIN = 6
    STORE_CORRUPT = 7
    BROKER = 8


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the command ends. Attributes: code, text (one line: what, where, what to do)."""

    code: ExitCode
    text: str


_BIND_ERRNOS: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
#: asyncio and uvloop both name the address this way, and nothing else: base_events.create_server.
_BIND_ADDRESS: Final = re.compile(r"bind on address \('([^']*)', (\d+)")


def failure_of(error: BaseException, config: ResolvedConfig | None = None) -> Failure:
    """Turn *error* into exit code and line. *config* tells which listener an address is of."""
    if isinstance(error, ClientError | RequestError | AccessError):
        return Failure(ExitCode.BROKER, _one_line(error))
    if isinstance(error, ConfigError):
        return Failure(ExitCode.CONFIG, _one_line(error))
    if isinstance(error, PluginError):
        return Failure(ExitCode.PLUGIN, _one_line(error))
    if isinstance(error, StoreLockedError):
        text = _one_line(error)
        # Some texts say what to do themselves, and it has nothing to do with the directory.
        says_what = "stop" in text and "data directory" not in text
        hint = "" if says_what else " (the directory is set by broker.data_directory)"
        return Failure(ExitCode.STORE_LOCKED, f"{text}{hint}")
    if isinstance(error, CorruptRecordError):
        return Failure(ExitCode.STORE_CORRUPT, f"the store is damaged: {_one_line(error)}")
    if isinstance(error, StoreFullError):
        return Failure(ExitCode.STORAGE, f"{_one_line(error)}; free disk space and start again")
    if isinstance(error, StoreError):
        return Failure(ExitCode.STORAGE, _one_line(error))
    if isinstance(error, OSError):
        return _os_failure(error, config)
    if isinstance(error, GatewayError):
        return Failure(ExitCode.UNEXPECTED, _one_line(error))
    return Failure(ExitCode.UNEXPECTED, f"unexpected {type(error).__name__}: {_one_line(error)}")


def _os_failure(error: OSError, config: ResolvedConfig | None) -> Failure:
    match = _BIND_ADDRESS.search(str(error))
    if match is None and error.errno not in _BIND_ERRNOS and not isinstance(error, socket.gaierror):
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or _one_line(error)
        hint = "; make it writable for this user or change broker.data_directory"
        denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        return Failure(ExitCode.STORAGE, f"{where}{reason}{hint if denied else ''}")
    host, port = (match[1], int(match[2])) if match else ("", 0)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if match is None:
        address = "the address of a listener"
    key = f"{_listener_key(config, port)}.bind"
    if error.errno == errno.EADDRINUSE:
        text = f"{address} is already in use; stop the other program or change {key}"
    elif error.errno == errno.EADDRNOTAVAIL:
        text = f"{address} is not an address of this machine; change {key}"
    elif error.errno == errno.EACCES:
        text = (
            f"no permission to listen on {address} (ports below 1024 need root or "
            f"CAP_NET_BIND_SERVICE); change {key}"
        )
    else:
        text = f"cannot listen on {address}: {error.strerror or _one_line(error)}; change {key}"
    return Failure(ExitCode.BIND, text)


def _listener_key(config: ResolvedConfig | None, port: int) -> str:
    for listener in config.listeners if config else ():
        if listener.config.port == port:
            return listener.key
    return "listeners[…]"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
