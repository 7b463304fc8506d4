"""The contract of a sink, which carries acknowledged messages to another system, exactly once.

The acknowledged log is dense and ordered, and the sink's target is the offset store: a sink reads
on after the mark it finds in its target, and releases only what the target has for good.
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
        the gateway it may be lower than before: only the target knows what the target has."""
        ...

    @property
    def first(self) -> int:
        """Lowest ack sequence that the log still has; ``last + 1`` when it has none. Rows already
        released by this sink may still be there for others."""
        ...

    @property
    def last(self) -> int:
        """Highest ack sequence known; a cheap hint, not necessarily durable."""
        ...

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See :meth:`AcknowledgedLog.acknowledged`."""
        ...

    async def read_encoded(self, after: int, limit: int, bytes_max: int) -> EncodedPage:
        """The same rows, for a sink that works in a process of its own: where the store has messages encoded, no
        object is made of any of them here. Raises: as :meth:`read`."""
        ...

    async def wait_beyond(self, after: int) -> None:
        """Wait until there is a row after *after*. Cancellation: safe."""
        ...

    async def release(self, through: int) -> None:
        """Promise never to ask again for rows up to *through*. Idempotent. The mark becomes durable
        later, see :attr:`released`."""
        ...


@dataclass(frozen=True, slots=True)
class SinkLag:
    """A sink is further behind than its goal, or no longer is.

    Attributes:
        name: the sink's.
        goal_seconds: the most the oldest acknowledged message not yet in the target may age.
        lag_seconds: its age now.
        cause: why, for people; "" when it is over.
        is_over: the goal is met again.
    """

    name: str
    goal_seconds: float
    lag_seconds: float
    cause: str
    is_over: bool


def unheard(_: SinkLag) -> None:
    """Ignores the report."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What the host gives a sink factory.

    Attributes:
        name: the sink's name, unique in this gateway; also its directory's name.
        gateway_name: for the rows.
        data_directory: absolute, and exists; the sink may create files below it.
        authenticated: an extension can authenticate clients; for a :class:`ServingSink`.
        announce_lag: call it when the sink misses its own goal for its lag, and when it meets it again; on the
            event loop.
    """

    name: str
    gateway_name: str
    data_directory: Path
    authenticated: bool = False
    announce_lag: Callable[[SinkLag], None] = unheard


class SinkState(enum.Enum):
    """What a sink is doing."""

    #: What its target holds is not known yet.
    STARTING = "starting"
    #: It carries rows, or waits for them.
    RUNNING = "running"
    #: Nothing to carry: its worker was stopped, and restarts with the next row.
    ASLEEP = "asleep"
    #: Something is wrong; it retries by itself, and the log keeps its rows.
    FAILING = "failing"
    #: It does nothing any more.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """Rows that were added to the target atomically.

    Attributes:
        at: when, in microseconds since the epoch.
        rows: how many; dead: how many more of the log's rows went to where unusable rows go.
        version: the target's; 0 when it has none.
        files: staged files that it took.
        seconds: how long it took.
        after, through: the commit covers the rows after *after*, up to *through*, that the sink takes.
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
    """A turn of upkeep: it reduces the number of files in a sink's target.

    Attributes:
        number: of the turn, from 1 since the start.
        at: when it ended, in microseconds since the epoch.
        seconds: how long it took.
        files_removed, files_added: of the target; removed files may stay on disk for readers.
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
    """How a sink is doing. Unknown values are None.

    Attributes:
        state: what it is doing.
        mark: highest ack sequence that its target holds for good, as last read from the target; 0 before it was
            ever read: is_mark_known is False then, and the real mark may be any.
        staged: highest ack sequence that left the store.
        problem: what is wrong now and what to do, "" when nothing is.
        target: what it carries rows to, as people name it.
        rows_per_second: over the last minute.
        last_commit: the last one since the start; None before it.
        target_files: files that make up the target.
        dead_rows: how many of the log's rows went to where unusable rows go, in all.
        staged_files, staged_rows, staged_bytes: waiting between the log and the target.
        problems: the last ones, newest first, including those that are over.
        is_late: it misses the goal for its lag set by its options.
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
        """It works, or waits for work, or retries."""
        return self.state is not SinkState.STOPPED


class Sink(Protocol):
    """A running sink."""

    async def start(self, reader: AcknowledgedReader) -> None:
        """Begin to work; returns once it does. Raises: ConfigError, StoreError, OSError."""
        ...

    async def stop(self) -> None:
        """Stop soon; rows not in the target stay in the log. Idempotent."""
        ...

    def health(self) -> SinkHealth:
        """Its state, from memory: called on the event loop, as often as every second."""
        ...


@runtime_checkable
class CompactingSink(Protocol):
    """Optional for a sink: its target needs upkeep, which can be requested."""

    def compact(self) -> int:
        """Begin a turn of upkeep as soon as possible. Returns at once.

        Returns: the turn's number; when it has ended, :attr:`SinkHealth.upkeep` has this number or a later one.
        Raises: RequestError.
        """
        ...


@runtime_checkable
class CommittingSink(Protocol):
    """Optional for a sink: it carries rows into targets that it knows, and reports each commit
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
        health: its own report: rows up to its mark are in its targets, if it takes them.
        released: it will never ask again for rows up to here, whether its target has them or not.
        target_of: see :meth:`CommittingSink.target_of`.
    """

    name: str
    health: SinkHealth
    released: int
    target_of: Callable[[str], str]


@runtime_checkable
class ServingSink(Protocol):
    """Optional for a sink: it lets clients read. It listens, and asks the gateway who they are
    (:meth:`Broker.connect`) and what they may have (:meth:`BrokerConnection.may_take`)."""

    async def serve(self, broker: Broker) -> str:
        """Bind and accept. Called after ``start``, when users and rights are known, like a listener.

        Returns: the address, e.g. ``grpc://127.0.0.1:8815``. Raises: ConfigError, OSError.
        """
        ...

    async def stop_serving(self) -> None:
        """Let no more clients in, and end those connected. Called before ``stop``, even when ``serve``
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
