"""Throw-away plugin distributions: real metadata and real modules in a folder of the test's own."""

import importlib.metadata
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.plugins import PluginHost
from tidegate.spi import ENTRY_POINT_GROUP


class PluginSite:
    """A folder on the import path with plugin distributions that a test made up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: set[str] = set()

    def add(
        self,
        distribution: str,
        entry_points: Mapping[str, str],
        source: str,
        *,
        version: str = "1.2.3",
        group: str = ENTRY_POINT_GROUP,
    ) -> None:
        """Install *distribution* with one module, *source*, named after it."""
        module = distribution.replace("-", "_")
        self.modules.add(module)
        self.path.joinpath(f"{module}.py").write_text(textwrap.dedent(source))
        info = self.path / f"{module}-{version}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        info.joinpath("entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))

    def add_toys(self) -> None:
        """Install ``toys`` (one of each kind) and ``doors`` (an authenticator)."""
        self.add("doors", {"extension-door": "doors"}, DOOR)
        self.add("toys", dict.fromkeys(TOY_NAMES, "toys"), TOYS, version="0.9")

    def entry_points(self, **params: Any) -> importlib.metadata.EntryPoints:
        """As importlib.metadata.entry_points, for this folder alone."""
        found = [
            entry_point
            for distribution in importlib.metadata.distributions(path=[str(self.path)])
            for entry_point in distribution.entry_points
        ]
        return importlib.metadata.EntryPoints(found).select(**params)

    def host(self) -> PluginHost:
        """A plugin host that sees this folder alone."""
        return PluginHost(self.entry_points(group=ENTRY_POINT_GROUP))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    path = tmp_path / "site"
    path.mkdir()
    site = PluginSite(path)
    monkeypatch.syspath_prepend(str(path))
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)


TOY_NAMES = ("store-toy", "cursor-toy", "protocol-toy", "sink-toy", "extension-open")

#: An authenticator; a distribution of its own, because one module gives one extension.
DOOR = """
from dataclasses import dataclass
from tidegate.spi import PluginInfo, Principal, hookimpl

tidegate_plugin = PluginInfo("lets everybody in, under one name", (1, 0))


@dataclass(frozen=True, slots=True)
class NoOptions:
    pass


class Door:
    async def authenticate(self, credentials):
        return Principal("somebody")


class Factory:
    options_type = NoOptions

    def create(self, options):
        return Door()


@hookimpl
def register_extension():
    return Factory()
"""

#: Enough of each contract for the host to start, and to see what it was given.
TOYS = '''
"""Toys: the smallest plugins that a gateway starts with."""
import asyncio
import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.spi import (
    AcknowledgedPage, ConfigError, CorruptRecordError, Kind, PluginInfo, RecoveredState, SinkHealth,
    StoreCapabilities, StoreFullError, StoreIOError, StoreLockedError, StoreStatistics,
    hookimpl, option,
)

tidegate_plugin = PluginInfo("toys for tests", (1, 0))

FAILURES = {
    "locked": StoreLockedError("owned by gateway other", owner="other"),
    "corrupt": CorruptRecordError("bad CRC", location="data-1 at 4096"),
    "full": StoreFullError("no space left"),
    "io": StoreIOError("sync failed"),
    "denied": PermissionError(errno.EACCES, "Permission denied", "/nowhere"),
    "bug": RuntimeError("a bug"),
    "config": ConfigError("contradicts itself", key="failure"),
}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    journal_max_file_length: int = option(
        32 << 20, kind=Kind.SIZE, minimum=1 << 20, help="Bytes of one file."
    )
    checkpoint_interval: float = option(5.0, kind=Kind.DURATION, zero="never", help="How often.")
    url: str = option("sql://user:pw@host/db", help="Where.")
    password: str = option("", help="Secret.")
    failure: str = option("", choices=("", *FAILURES), help="What open() raises.")


class Store:
    def __init__(self, failure):
        self.failure = failure

    @property
    def capabilities(self):
        return StoreCapabilities(durable=True, acknowledged_log=self)

    async def open(self):
        if self.failure:
            raise FAILURES[self.failure]
        return RecoveredState("toy")

    async def write(self, batch):
        pass

    async def page_in(self, pending_list, after, limit, bytes_max):
        return ()

    async def acknowledged(self, after, limit, bytes_max):
        return AcknowledgedPage((), 0)

    async def release_acknowledged(self, through):
        pass

    def log_statistics(self):
        return LogStatistics(1, 0, 0, 0)

    def statistics(self):
        return StoreStatistics(0, 0, True)

    async def close(self):
        pass


class StoreFactory:
    options_type = StoreOptions

    def create(self, context, options):
        return Store(options.failure)


class CursorFactory:
    needs_store = False
    spools = False

    def create(self, context):
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    frame_bytes_max: int = option(16 << 20, kind=Kind.SIZE, minimum=1024, help="Bytes of a frame.")


class Listener:
    def __init__(self, config):
        self.config = config
        self.server = None

    async def start(self):
        self.server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, self.config.host or None, self.config.port
        )
        host, port = self.server.sockets[0].getsockname()[:2]
        return f"toy://{host}:{port}"

    async def stop_accepting(self):  # also called when start() failed
        if self.server is not None:
            self.server.close()

    async def stop(self):
        pass


class ListenerFactory:
    options_type = ListenerOptions
    transports = ("tcp", "tls")
    default_port = 4711

    def create(self, config, broker):
        return Listener(config)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    table: Path = option(help="Where the table is.")

    def __post_init__(self):
        if self.table == Path("nonsense"):
            raise ValueError("'nonsense' is no table")


class Sink:  # nobody starts it
    async def start(self, reader):
        pass

    async def stop(self):
        pass

    def health(self):
        pass


class SinkFactory:
    options_type = SinkOptions

    def create(self, context, options):
        return Sink()


@dataclass(frozen=True, slots=True)
class NoOptions:
    pass


class Open:
    """Sees publishes, authenticates nobody."""

    def intercept(self, message, principal):
        return message


class ExtensionFactory:
    options_type = NoOptions

    def create(self, options):
        return Open()


@hookimpl
def register_message_store():
    return StoreFactory()


@hookimpl
def register_cursor():
    return CursorFactory()


@hookimpl
def register_front_end():
    return ListenerFactory()


@hookimpl
def register_sink():
    return SinkFactory()


@hookimpl
def register_extension():
    return ExtensionFactory()
'''
