"""Sinks keep their targets up: asked for in the gateway that runs, or done while none does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tidegate.cli.groups._asking import ask
from tidegate.cli.groups._offline import LOOK_S, with_sinks
from tidegate.operator_socket import OperatorClient
from tidegate.spi import RequestError, SinkState
from tidegate.spi.commands import ClientError, Progress
from tidegate.spi.operate import (
    CompactSink,
    ListSinks,
    ShowSink,
    SinkDetails,
    SinkList,
    SinkStatus,
    SinkTurn,
)

if TYPE_CHECKING:
    from tidegate.gateway import Gateway


def compact_offline(
    config: Path | None, name: str, timeout_s: float, progress: Progress
) -> Sequence[SinkStatus]:
    """Keep the targets of all sinks up, or of the one with *name*, while no gateway runs.

    Args: timeout_s: give up then; 0: never.
    Returns: the sinks that do such a thing, with what was done.
    Raises: ClientError when one stopped, or time was over; ConfigError, PluginError, StoreError, OSError.
    """

    async def compacted(gateway: Gateway) -> Sequence[SinkStatus]:
        log = gateway.broker.acknowledged_log
        names = [row.name for row in await log.statuses(0)]
        turns, deadline = _begin(names, name, log.compact), _Deadline(timeout_s)
        while True:
            rows = [row for row in await log.statuses(0) if row.name in turns]
            if _are_done(rows, turns, deadline):
                return rows
            await asyncio.sleep(LOOK_S)

    return with_sinks(config, name, progress, compacted)


def compact_by(client: OperatorClient, name: str, timeout_s: float) -> Sequence[SinkStatus]:
    """The same by the gateway that runs. Raises: ClientError; typer.BadParameter for what makes no sense."""
    names = [row.name for row in ask(client, ListSinks(), SinkList).rows]

    def begin(sink: str) -> int:
        return ask(client, CompactSink(sink), SinkTurn).number

    turns, deadline = _begin(names, name, begin), _Deadline(timeout_s)
    while True:
        rows = [ask(client, ShowSink(sink), SinkDetails).status for sink in turns]
        if _are_done(rows, turns, deadline):
            return rows
        time.sleep(LOOK_S)


def _begin(names: Sequence[str], name: str, begin: Callable[[str], int]) -> dict[str, int]:
    """The number of the turn by sink. With a *name* it must be one that does such a thing."""
    if name:
        return {name: begin(name)}
    turns: dict[str, int] = {}
    for sink in names:
        with contextlib.suppress(RequestError, typer.BadParameter):  # it has nothing to compact
            turns[sink] = begin(sink)
    return turns


class _Deadline:
    """When somebody gives up. Args: seconds: 0: never."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return bool(self.seconds) and time.monotonic() >= self._at


def _are_done(rows: Sequence[SinkStatus], turns: Mapping[str, int], deadline: _Deadline) -> bool:
    """All have ended their turns. Raises: ClientError when one stopped before that, or it took too long."""
    left = [
        row
        for row in rows
        if row.health.upkeep is None or row.health.upkeep.number < turns[row.name]
    ]
    for row in left:
        if row.health.state is SinkState.STOPPED:
            raise ClientError(f"the sink {row.name} stopped: {row.health.problem}")
    if left and deadline.is_over:
        problems = (
            row.name + (f" ({row.health.problem})" if row.health.problem else "") for row in left
        )
        raise ClientError(f"not finished after {deadline.seconds:g} s: {', '.join(problems)}")
    return not left
