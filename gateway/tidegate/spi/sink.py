"""The contract of a sink: what carries acknowledged messages to another system, exactly once.

The acknowledged log is dense and ordered, and the sink's target is the offset store: a sink reads
behind the mark it finds in its target, and releases only what the target has for good.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tidegate.spi.clients.connection import Broker
from tidegate.spi.storage.log import AcknowledgedPage, EncodedPage


class AcknowledgedReader(Protocol):
    """A sink's own view of the acknowledged log. Called on the event loop."""

    @property
    def store_id(self) -> str:
        """Identity of the log: the epoch. Ack sequences are dense within it."""
        ...

    @property
    def released(self) -> int:
        """This sink's own mark: it has released everything up to here (0 at first). After a kill of
        the gateway it may be lower than it was: only the target knows what the target has."""
        ...

    @property
    def first(self) -> int:
        """Lowest ack sequence that the log still has; ``last + 1`` when it has none. Rows that this
        sink has released may be there for the sake of others."""
        ...

    @property
    def last(self) -> int:
        """Highest ack sequence known; a cheap hint without durability."""
        ...

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See :meth:`AcknowledgedLog.acknowledged`."""
        ...

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        """The same rows for a sink that works in a process of its own: no object of any message is made here
        where the store has them encoded. Raises: as :meth:`read`."""
        ...

    async def wait_beyond(self, after: int) -> None:
        """Wait until there is a row behind *after*. Cancellation: safe."""
        ...

    async def release(self, through: int) -> None:
        """This sink will never ask again for rows up to *through*. Idempotent. The mark becomes
        durable later, see :attr:`released`."""
        ...


@dataclass(frozen=True, slots=True)
class SinkLag:
    """A sink is further behind than its goal, or is not any more.

    Attributes:
        name: the sink's.
        goal_seconds: how old the oldest acknowledged message that its target does not have may be.
        lag_seconds: how old it is.
        cause: why, for people; "" when it is over.
        is_over: the goal is met again.
    """

    name: str
    goal_seconds: float
    lag_seconds: float
    cause: str
    is_over: bool


def unheard(_: SinkLag) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What the host gives a sink factory.

    Attributes:
        name: the sink's name in this gateway, unique; also its directory's name.
        gateway_name: for the rows.
        data_directory: absolute; the sink may create files below; it exists.
        authenticated: an extension can say who clients are; of interest to a :class:`ServingSink`.
        announce_lag: to be told when the sink misses a goal of its own for its lag, and when it meets it again; on the
            event loop.
    """

    name: str
    gateway_name: str
    data_directory: Path
    authenticated: bool = False
    announce_lag: Callable[[SinkLag], None] = unheard


class SinkState(enum.Enum):
    """What a sink is doing."""

    #: It is not known yet what its target holds.
    STARTING = "starting"
    #: It carries rows, or waits for them.
    RUNNING = "running"
    #: There is nothing to carry: what carries it was let go, and comes back with the next row.
    ASLEEP = "asleep"
    #: Something is wrong; it tries again by itself, and the log keeps its rows.
    FAILING = "failing"
    #: It does nothing any more.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """What went into the target at once.

    Attributes:
        at: when, in microseconds since the epoch.
        rows: how many; dead: how many of the log's rows went to where unusable ones go, besides.
        version: the target's, 0 for one that has none.
        files: staged files that it took.
        seconds: how long it took.
        after, through: it took the rows behind ack sequence *after* up to *through*, those that the sink takes.
    """

    at: int
    rows: int
    dead: int = 0
    version: int = 0
    files: int = 0
    seconds: float = 0.0
    after: int = 0
    through: int = 0


@dataclass(frozen=True, slots=True)
class SinkProblem:
    """Something that went wrong. Attributes: at (microseconds since the epoch), text (what, and what to do)."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class SinkUpkeep:
    """A turn of upkeep of a sink's target: fewer files for what it holds.

    Attributes:
        number: of the turn, from 1 since the start.
        at: when it ended, in microseconds since the epoch.
        seconds: how long it took.
        files_removed, files_added: of the target; the first may stay on the disk for readers.
        problem: why it failed, "" when it did not.
    """

    number: int
    at: int
    seconds: float = 0.0
    files_removed: int = 0
    files_added: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """How a sink is doing. What it does not know is None.

    Attributes:
        mark: highest ack sequence that its target holds for good, as last read from the target; 0 where nobody has
            read it yet, and it may be any: is_mark_known is False then.
        staged: highest ack sequence that left the store.
        problem: what is wrong now and what to do, "" when nothing is.
        target: what it carries rows to, as people name it.
        rows_per_second: over the last minute.
        last_commit: the last one since the start; None before it.
        target_files: that the target consists of.
        dead_rows: of the log that went to where unusable ones go, in all.
        staged_files, staged_rows, staged_bytes: that wait between the log and the target.
        problems: the last ones, the newest first, those that are over included.
        is_late: it misses the goal that its options set for its lag.
        upkeep: the last turn since the start; None before it.
    """

    state: SinkState
    mark: int
    staged: int
    problem: str = ""
    target: str = ""
    rows_per_second: float = 0.0
    last_commit: SinkCommit | None = None
    target_files: int | None = None
    dead_rows: int | None = None
    staged_files: int = 0
    staged_rows: int = 0
    staged_bytes: int = 0
    problems: tuple[SinkProblem, ...] = ()
    is_late: bool = False
    upkeep: SinkUpkeep | None = None
    is_mark_known: bool = True

    @property
    def running(self) -> bool:
        """It works, or waits for work, or tries again."""
        return self.state is not SinkState.STOPPED


class Sink(Protocol):
    """A running sink."""

    async def start(self, reader: AcknowledgedReader) -> None:
        """Begin to work; returns when it does. Raises: ConfigError, StoreError, OSError."""
        ...

    async def stop(self) -> None:
        """Stop soon; what is not in the target stays in the log. Idempotent."""
        ...

    def health(self) -> SinkHealth:
        """How it is doing, from memory: called on the event loop, also every second."""
        ...


@runtime_checkable
class CompactingSink(Protocol):
    """What a sink is besides whose target wants upkeep, which somebody may ask for now."""

    def compact(self) -> int:
        """Begin a turn of upkeep as soon as may be. Returns at once.

        Returns: the turn's number; :attr:`SinkHealth.upkeep` has it, or a later one, when it has ended.
        Raises: RequestError.
        """
        ...


@runtime_checkable
class CommittingSink(Protocol):
    """What a sink is besides that carries rows into targets that it knows, and tells of each commit
    (:attr:`SinkHealth.last_commit`) before it releases the commit's rows."""

    def target_of(self, destination: str) -> str:
        """Where rows of this canonical destination go, as people name it: :attr:`SinkHealth.target`, or another
        one beside it; "" when the sink does not take them. Called on the event loop; must be quick."""
        ...


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far a :class:`CommittingSink` is.

    Attributes:
        name: the sink's.
        health: what it says of itself: rows up to its mark are in its targets, if it takes them.
        released: it will never ask again for rows up to here, wherever they are.
        target_of: see :meth:`CommittingSink.target_of`.
    """

    name: str
    health: SinkHealth
    released: int
    target_of: Callable[[str], str]


@runtime_checkable
class ServingSink(Protocol):
    """What a sink is besides that lets clients read: it listens, and asks the gateway who they are
    (:meth:`Broker.connect`) and what they may have (:meth:`BrokerConnection.may_take`)."""

    async def serve(self, broker: Broker) -> str:
        """Bind and accept. Called after ``start``, when users and rights are known, like a listener.

        Returns: the address, e.g. ``grpc://127.0.0.1:8815``. Raises: ConfigError, OSError.
        """
        ...

    async def stop_serving(self) -> None:
        """No more clients; those that are there are ended. Before ``stop``, and also when ``serve``
        failed or was never called. Idempotent; bounded in time."""
        ...


class SinkFactory(Protocol):
    """What a plugin registers for a sink type (hook ``register_sink``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass; the host parses the ``[[sinks]]`` table into it."""
        ...

    def create(self, context: SinkContext, options: object) -> Sink:
        """Build a sink; must not start anything yet. Raises: ConfigError."""
        ...
