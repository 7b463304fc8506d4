"""Commands that a plugin adds to ``tidegate``: how they are found, and what the host lends them.

An entry point of the group ``tidegate.commands`` names a command group (``bench`` becomes
``tidegate bench``) and a ``typer.Typer`` whose commands go into it. A group whose only command has the
group's name is that command itself (``tidegate replay``). Several distributions may add
to the same group, also to ``store``, which is the host's own; a name that is taken already is
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
    """A client command could not do its work: the broker it speaks to, or what it needs itself.

    Exit code 8.
    """


#: (what, done, total) as in :attr:`StoreContext.progress`.
Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """A store that a configuration names, not yet made: nothing is opened or touched.

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
        """The store, not yet opened; acknowledged messages that a sink still waits for are kept.

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
    """A sink that a configuration names, not yet made: nothing is opened or touched.

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
    """How far the acknowledged log of a store is.

    Attributes:
        store_id: whose log it is.
        first, last: it holds ack sequences first..last (first = last + 1 when it is empty).
    """

    store_id: str
    first: int
    last: int


class OperatorConnection(Protocol):
    """A connection of an operator to a gateway that runs. Blocks."""

    def answer(self, request: Request) -> Answer:
        """Raises: RequestError, AccessError; ClientError for all else, also when the gateway goes away."""
        ...


class CommandHost(Protocol):
    """What the host lends to a command. Everything here blocks and belongs to one thread."""

    def store(self, config: Path | None) -> ConfiguredStore:
        """The store of the configuration in *config*; None means the default configuration.

        Raises: ConfigError, PluginError.
        """
        ...

    def extension_options(self, config: Path | None, plugin: str) -> Sequence[object]:
        """The options of each ``[[extensions]]`` table that names *plugin*, in order; makes nothing.

        Raises: ConfigError, PluginError.
        """
        ...

    def sinks(self, config: Path | None, plugin: str, name: str = "") -> Sequence[ConfiguredSink]:
        """The sinks of *plugin* that the configuration names, in order; makes nothing.

        Args: name: this one alone.
        Raises: ConfigError, also when there is none; PluginError.
        """
        ...

    def log_state(self, config: Path | None) -> LogState:
        """How far the acknowledged log is: asks the gateway when it runs, else opens its store.

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
        """Give *take* the rows that the log still has behind *after* and up to *through*, in order and some at a time.

        Asks the gateway when it runs, else opens its store.
        Raises: as :meth:`log_state`; what *take* raises.
        """
        ...

    def operator(self, config: Path | None) -> AbstractContextManager[OperatorConnection]:
        """Connect to the gateway that runs with the configuration, as this process's user.

        Raises: ConfigError; ClientError when none runs there.
        """
        ...

    def print_json(self, value: object) -> None:
        """*value* as JSON on stdout."""
        ...

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table on stdout; numbers stand to the right. No folding when stdout is no terminal."""
        ...

    def progress(self) -> Progress:
        """Something that draws a bar on stderr when that is a terminal, and else stays silent."""
        ...

    def export_store(self, store: ConfiguredStore, target: Path) -> Mapping[str, int]:
        """Write all of *store* to the new directory *target* in the portable format.

        The store must not be in use. Returns: how many of each thing.
        Raises: ConfigError (also: what the format needs is not installed); StoreError.
        """
        ...

    def import_store(self, store: ConfiguredStore, source: Path) -> Mapping[str, int]:
        """Fill *store*, which must be empty, with what :meth:`export_store` wrote to *source*.

        Returns: how many of each thing. Raises: as :meth:`export_store`.
        """
        ...
