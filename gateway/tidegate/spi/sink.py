"""The contract of a sink: what carries acknowledged messages to another system, exactly once.

The acknowledged log is dense and ordered, and the sink's target is the offset store: a sink reads
behind the mark it finds in its target, and releases only what the target has for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate.spi.storage.store import AcknowledgedPage


class AcknowledgedReader(Protocol):
    """A sink's own view of the acknowledged log. Called on the event loop."""

    @property
    def store_id(self) -> str:
        """Identity of the log: the epoch. Ack sequences are dense within it."""
        ...

    @property
    def released(self) -> int:
        """This sink's own mark: it has released everything up to here (0 at first)."""
        ...

    @property
    def last(self) -> int:
        """Highest ack sequence known; a cheap hint without durability."""
        ...

    async def read(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        """See :meth:`AcknowledgedLog.acknowledged`."""
        ...

    async def wait_beyond(self, after: int) -> None:
        """Wait until there is a row behind *after*. Cancellation: safe."""
        ...

    async def release(self, through: int) -> None:
        """This sink will never ask again for rows up to *through*. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What the host gives a sink factory.

    Attributes:
        name: the sink's name in this gateway, unique; also its directory's name.
        gateway_name: for the rows.
        data_directory: the sink may create files below; it exists.
    """

    name: str
    gateway_name: str
    data_directory: Path


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """How a sink is doing.

    Attributes:
        running: it works, or waits for work.
        mark: highest ack sequence that its target holds for good, as last read from the target.
        staged: highest ack sequence that left the store.
        problem: what is wrong and what to do, "" when nothing is.
    """

    running: bool
    mark: int
    staged: int
    problem: str = ""


class Sink(Protocol):
    """A running sink."""

    async def start(self, reader: AcknowledgedReader) -> None:
        """Begin to work; returns when it does. Raises: ConfigError, StoreError, OSError."""
        ...

    async def stop(self) -> None:
        """Stop soon; what is not in the target stays in the log. Idempotent."""
        ...

    def health(self) -> SinkHealth: ...


class SinkFactory(Protocol):
    """What a plugin registers for a sink type (hook ``register_sink``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass; the host parses the ``[[sinks]]`` table into it."""
        ...

    def create(self, context: SinkContext, options: object) -> Sink:
        """Build a sink; must not start anything yet. Raises: ConfigError."""
        ...
