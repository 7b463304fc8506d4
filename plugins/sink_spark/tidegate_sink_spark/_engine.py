"""The interface between the sink and the engine that carries staged files into the table.

The sink stages, releases, reports its health, and restarts what ends. An engine knows the table:
it starts *jobs*, one at a time, that take staged files in the order of their numbers, commit them
together with the mark, and report. These hold for every engine:

1. the first report that matters is a :class:`~tidegate_sink_spark._protocol.Mark` as read from the table;
2. a reported mark is in the table, and on stable storage;
3. a job killed at any moment leaves a table from which the next one continues;
4. a job dies with the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate_sink_spark._protocol import Command, Report


@dataclass(frozen=True, slots=True)
class StagedLog:
    """What a job is told about the log it carries.

    Attributes:
        store_id: the store whose log this is.
        directory: where its staged files are.
        floor: the store has released everything up to here, so no file can hold it.
    """

    store_id: str
    directory: Path
    floor: int


class EngineJob(Protocol):
    """A running job. Used on one event loop; :class:`~tidegate_sink_spark._process.JobProcess`."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def tail(self) -> str:
        """The last lines of its own log, to explain its death."""
        ...

    def send(self, command: Command) -> None:
        """Send a command. Does nothing when the job is gone."""
        ...

    async def next_report(self) -> Report | None:
        """Its next report; None when it has ended. Cancellation: safe, no report is lost."""
        ...

    async def wait(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        ...

    async def end(self) -> int:
        """Kill what is left of it; returns its exit code. Idempotent. Cancellation: safe."""
        ...


class Engine(Protocol):
    """Starts jobs for one sink. Used on the event loop."""

    @property
    def name(self) -> str:
        """As in "the Spark job"."""
        ...

    @property
    def table(self) -> str:
        """The table as logs and problems name it: absolute path, URI or name."""
        ...

    @property
    def further_tables(self) -> Mapping[str, str]:
        """Further tables, by pattern of destinations."""
        ...

    async def prepare(self) -> None:
        """Check that the machine has what the engine needs; once, when the sink starts.

        Raises: ConfigError that says what is missing and what to install; OSError.
        """
        ...

    async def start(self, staged: StagedLog) -> EngineJob:
        """Start a job, after the previous one has ended. It works until told to stop.

        Raises: EngineError, OSError; the sink tries again later.
        """
        ...


class EngineError(Exception):
    """A job cannot be started now. The text says why and what to do."""
