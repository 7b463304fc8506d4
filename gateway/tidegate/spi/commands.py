"""Commands that a plugin adds to ``tidegate``: how they are found, and what the host lends them.

An entry point of the group ``tidegate.commands`` names a command group (``bench`` becomes
``tidegate bench``) and a ``typer.Typer`` whose commands go into it. A group whose only command has the
group's name is that command itself (``tidegate replay``). Several distributions may add
to the same group, including the host's own ``store``; a name already taken is
refused with both distributions named. The module is imported when somebody types the group (or
asks for its help), never by ``tidegate run``.

A command finds its :class:`CommandHost` in ``typer.Context.obj``. It raises the errors of the
contract; the host turns them into one line on stderr and an exit code (docs/configuration.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from tidegate.spi.errors import GatewayError
from tidegate.spi.operate import Answer, LogRows, Request
from tidegate.spi.sink import SinkContext, SinkFactory
from tidegate.spi.storage.store import (
    DISK_FREE_LIMIT,
    MessageStore,
    MessageStoreFactory,
    StoreContext,
)

COMMANDS_GROUP: Final = "tidegate.commands"


class ClientError(GatewayError):
    """A client command failed: because of the broker it speaks to, or of something it needs itself.

    Exit code 8.
    """


#: (what, done, total) as in :attr:`StoreContext.progress`.
Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """A store that a configuration names, not created yet: nothing is opened or touched.

    Attributes:
        plugin: name of the store plugin.
        factory, options: as the gateway would use them.
        data_directory, gateway_name, persistent, disk_free_limit: as in :class:`StoreContext`.
    """

    plugin: str
    factory: MessageStoreFactory
    options: object
    data_directory: Path
    gateway_name: str = "tidegate"
    persistent: bool = True
    disk_free_limit: int = DISK_FREE_LIMIT

    def create(self, *, progress: Progress | None = None) -> MessageStore:
        """The store, not opened yet. It keeps acknowledged messages that a sink still needs.

        Raises: ConfigError.
        """
        context = StoreContext(
            data_directory=self.data_directory,
            gateway_name=self.gateway_name,
            persistent=self.persistent,
            keep_acknowledged=True,
            disk_free_limit=self.disk_free_limit,
            progress=progress or (lambda _what, _done, _total: None),
        )
        return self.factory.create(context, self.options)


@dataclass(frozen=True, slots=True)
class ConfiguredSink:
    """A sink that a configuration names, not created yet: nothing is opened or touched.

    Attributes:
        plugin: name of the sink plugin.
        factory, options: as the gateway would use them.
        context: what the factory would be given; its directory need not exist.
    """

    plugin: str
    factory: SinkFactory
    options: object
    context: SinkContext

    @property
    def name(self) -> str:
        """Its name in the gateway."""
        return self.context.name


@dataclass(frozen=True, slots=True)
class LogState:
    """How far a store's acknowledged log reaches.

    Attributes:
        store_id: identity of the log.
        first, last: it holds ack sequences first..last (first = last + 1 when it is empty).
    """

    store_id: str
    first: int
    last: int


class OperatorConnection(Protocol):
    """An operator's connection to a running gateway. Blocks."""

    def answer(self, request: Request) -> Answer:
        """Carry out *request*. Raises: RequestError, AccessError; ClientError for all else, even a vanished gateway."""
        ...


class CommandHost(Protocol):
    """What the host lends to a command. Everything here blocks and belongs to one thread."""

    def store(self, config: Path | None) -> ConfiguredStore:
        """The store of the configuration in *config*; None means the default configuration.

        Raises: ConfigError, PluginError.
        """
        ...

    def extension_options(self, config: Path | None, plugin: str) -> Sequence[object]:
        """The options of each ``[[extensions]]`` table that names *plugin*, in order; creates nothing.

        Raises: ConfigError, PluginError.
        """
        ...

    def sinks(self, config: Path | None, plugin: str, name: str = "") -> Sequence[ConfiguredSink]:
        """The sinks of *plugin* that the configuration names, in order; creates nothing.

        Args: name: only this one; "" for all.
        Raises: ConfigError (also when there is none), PluginError.
        """
        ...

    def log_state(self, config: Path | None) -> LogState:
        """How far the acknowledged log reaches: asks the gateway if it runs, otherwise opens its store.

        Raises: ConfigError, PluginError, ClientError, StoreError, OSError.
        """
        ...

    def read_log(
        self,
        config: Path | None,
        after: int,
        through: int,
        take: Callable[[LogRows], None],
    ) -> None:
        """Pass *take* the rows that the log still has after *after*, up to *through*, in order, a few at a time.

        Asks the gateway if it runs, otherwise opens its store.
        Raises: as :meth:`log_state`; whatever *take* raises.
        """
        ...

    def operator(self, config: Path | None) -> AbstractContextManager[OperatorConnection]:
        """Connect to the gateway that runs with this configuration, as this process's user.

        Raises: ConfigError; ClientError when none is running.
        """
        ...

    def print_json(self, value: object) -> None:
        """Print *value* as JSON on stdout."""
        ...

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table on stdout; numbers are right-aligned. Lines are not wrapped when stdout is no terminal."""
        ...

    def progress(self) -> Progress:
        """Draws a bar on stderr when that is a terminal, and stays silent otherwise."""
        ...

    def export_store(self, store: ConfiguredStore, target: Path) -> Mapping[str, int]:
        """Write all of *store* to the new directory *target* in the portable format.

        The store must not be in use. Returns: how many of each thing were written.
        Raises: ConfigError (also when something the format needs is not installed); StoreError.
        """
        ...

    def import_store(self, store: ConfiguredStore, source: Path) -> Mapping[str, int]:
        """Fill *store*, which must be empty, with what :meth:`export_store` wrote to *source*.

        Returns: how many of each thing were imported. Raises: as :meth:`export_store`.
        """
        ...
