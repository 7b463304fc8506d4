"""What the store needs from a database, and the registry of adapters.

A third party adds a database with an entry point of the group :data:`ADAPTERS_GROUP`, whose name is
that of the adapter and whose object is an :data:`AdapterFactory`; or, in a module that is imported
anyway, with :func:`register_adapter`. ``[store] adapter`` or the scheme of ``[store] url`` names it.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from tidegate.spi import (
    ConfigError,
    CorruptRecordError,
    PluginContractError,
    PluginLoadError,
    StoreError,
    StoreFullError,
    StoreIOError,
    StorePart,
    StoreUnavailableError,
)
from tidegate_store_jdbc.database.secrets import Credentials
from tidegate_store_jdbc.database.url import DatabaseUrl

#: One row of parameters or of a result. Databases give what their columns hold.
Row: TypeAlias = Sequence[Any]


class DatabaseError(Exception):
    """The database refused; nothing of the transaction was written. ``statement``: which one."""

    def __init__(self, problem: str, statement: str = "") -> None:
        super().__init__(problem, statement)
        self.problem = problem
        self.statement = statement

    def __str__(self) -> str:
        return f"{self.statement}: {self.problem}" if self.statement else self.problem

    def store_error(self, doing: str) -> StoreError:
        """The error for the store's caller: *doing* failed."""
        return StoreIOError(f"{doing}: {self}")


class DatabaseUnavailableError(DatabaseError):
    """The connection is gone or the database is not ready; it may be tried again.

    Whether a transaction that was being committed took effect is unknown: ``in_doubt``.
    """

    def __init__(self, problem: str, *, in_doubt: bool = False) -> None:
        super().__init__(problem)
        self.in_doubt = in_doubt

    def store_error(self, doing: str) -> StoreError:
        """Retryable."""
        return StoreUnavailableError(f"{doing}: {self}")


class DatabaseFullError(DatabaseError):
    """No room; nothing of the transaction was written."""

    def store_error(self, doing: str) -> StoreError:
        """Retryable."""
        return StoreFullError(f"{doing}: {self}")


class DatabaseCorruptError(DatabaseError):
    """The database says that its contents are damaged."""

    def store_error(self, doing: str) -> StoreError:
        """Met while *doing*."""
        return CorruptRecordError(self.problem, location=doing)


class FenceError(DatabaseError):
    """The first step of a transaction touched no row, so nothing of it was done."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """One statement of a transaction.

    Attributes:
        statement: its name.
        rows: its parameters. A statement that takes many rows is run for all of them.
        fetch: it is a query and returns rows; otherwise it returns the number of rows touched.
    """

    statement: str
    rows: Sequence[Row]
    fetch: bool = False


#: What one step gave: rows touched, or rows found.
StepResult: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """A database's SQL, as data.

    Attributes:
        statements: SQL by name, with placeholders ``{message_table}`` … for the tables. The names
            are those of :data:`tidegate_store_jdbc.STATEMENTS`; parameters are in the order given
            there.
        create: the statements that create a table and its indexes, by the placeholder of the table;
            they must do nothing when it exists.
        types: column types by placeholder.
        is_embedded: the database lives in this process: 'auto' does not wait for its lock.
    """

    statements: Mapping[str, str]
    create: Mapping[str, Sequence[str]]
    types: Mapping[str, str]
    is_embedded: bool


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What an adapter is made with.

    Attributes:
        url, credentials: where and as whom to connect.
        directory: for relative paths of embedded databases.
        network_timeout: limit of one exchange, seconds.
        connections_max: connections for reading.
    """

    url: DatabaseUrl
    credentials: Credentials
    directory: Path
    network_timeout: float
    connections_max: int


class Sizes(NamedTuple):
    """Sizes of the tables in bytes.

    Attributes: disk: taken on disk; reusable: of these, free for new rows; claimed: see
        :class:`tidegate.spi.StoreStatistics`.
    """

    disk: int = 0
    reusable: int = 0
    claimed: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What to measure.

    Attributes:
        tables: by their names in SQL.
        free_limit: bytes of the disk to keep free (``broker.disk_free_limit``); 0 for none.
        is_limited: publishes are refused by the measured size (``broker.store_limit``).
    """

    tables: Sequence[str]
    free_limit: int
    is_limited: bool


class Adapter(Protocol):
    """A database. Methods run on the event loop; see the errors above for what they raise.

    ``transaction`` is called again only after the call before returned; ``fetch`` and ``control``
    may run beside it and beside each other.
    """

    @property
    def dialect(self) -> Dialect:
        """Its SQL."""
        ...

    @property
    def sizes(self) -> Sizes:
        """As of the last :meth:`measure`, or newer."""
        ...

    async def connect(self) -> None:
        """Connect. An embedded database is created if missing."""
        ...

    async def create(self, statements: Sequence[tuple[str, str]]) -> None:
        """Run each (name, SQL) in one transaction that locks out other gateways doing the same."""
        ...

    async def prepare(self, statements: Mapping[str, str]) -> None:
        """Take the complete SQL of all statements and let the database check each one.

        Raises: DatabaseError whose ``statement`` names the one that is wrong.
        """
        ...

    async def transaction(self, steps: Sequence[Step], *, synced: bool) -> list[StepResult]:
        """Run the steps in one transaction.

        The first step must touch a row, else the transaction is rolled back and FenceError raised.
        *synced*: durable on return; False: committed, but a power cut may lose it until the next
        synced transaction.
        """
        ...

    async def fetch(self, statement: str, row: Row) -> Sequence[Row]:
        """Run one query on a connection for reading."""
        ...

    async def control(self, statement: str, row: Row, *, fetch: bool) -> StepResult:
        """Run one statement of the lease on a connection of its own. It need not be durable."""
        ...

    async def explain(self, statement: str, rows: Sequence[Row]) -> str:
        """The database's plan for a statement as it is run for *rows*, as text."""
        ...

    async def check_measurable(self) -> None:
        """Check that it can measure what ``broker.store_limit`` needs. Raises: ConfigError."""
        ...

    async def measure(self, look: Look) -> None:
        """Measure the sizes; called every second where that is free or where there is a limit."""
        ...

    async def parts(self, tables: Sequence[str]) -> Sequence[StorePart]:
        """What operators see of the database: its files, or *tables* (by their names in SQL).

        Neither the writer nor the lease waits for it.
        """
        ...

    async def close(self) -> None:
        """Close all connections. Idempotent; never raises for a broken connection."""
        ...


AdapterFactory: TypeAlias = Callable[[AdapterContext], Adapter]

#: Entry points of adapters; only the one that the configuration names is imported.
ADAPTERS_GROUP: Final = "tidegate.jdbc_adapters"

_ADAPTERS: Final[dict[str, AdapterFactory]] = {}
_SCHEMES: Final[dict[str, str]] = {}


def register_adapter(name: str, factory: AdapterFactory, schemes: Sequence[str] = ()) -> None:
    """Make a database known: *name* for the option ``adapter``, *schemes* for the option ``url``.

    A later registration of the same name or scheme takes the place of the earlier one.
    """
    _ADAPTERS[name] = factory
    for scheme in schemes:
        _SCHEMES[scheme.lower()] = name


def adapter_factory(name: str, scheme: str) -> AdapterFactory:
    """The adapter called *name*, or, without a name, the one for *scheme*.

    Raises: ConfigError for one that is not known; PluginError for one that cannot be loaded.
    """
    wanted = name or _SCHEMES.get(scheme, scheme)
    if wanted in _ADAPTERS:
        return _ADAPTERS[wanted]
    points = importlib.metadata.entry_points(group=ADAPTERS_GROUP)
    if wanted in points.names:
        factory = _load(points[wanted])
        return _ADAPTERS.setdefault(wanted, factory)
    if name:
        raise ConfigError(
            f"{name!r} is not known{_near(name, {*_ADAPTERS, *points.names})}", key="adapter"
        )
    raise ConfigError(
        f"no adapter for {scheme!r}{_near(scheme, {*_SCHEMES, *points.names})}", key="url"
    )


def _load(point: importlib.metadata.EntryPoint) -> AdapterFactory:
    name = f"{ADAPTERS_GROUP} {point.name}"
    origin = f"{point.dist.name} {point.dist.version}: {point.value}" if point.dist else point.value
    try:
        factory: object = point.load()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise PluginLoadError(name, f"{origin} cannot be imported: {cause}") from error
    if not callable(factory):
        raise PluginContractError(name, f"{origin} is no class or function that makes an adapter")
    return cast(AdapterFactory, factory)


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"
