"""What commands do while no gateway runs: the store is open, the broker works, and nobody can connect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tidegate._logging import LogLevel, configure_logging
from tidegate.config import load_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import ConfigError, SinkState, StoreLockedError
from tidegate.spi.commands import ClientError, Progress
from tidegate.spi.operate import SinkStatus

if TYPE_CHECKING:
    from tidegate.config import ResolvedConfig
    from tidegate.gateway import Gateway

_T = TypeVar("_T")

#: Interval between two checks of the sinks' progress.
LOOK_S: Final = 0.2


def offline(
    config: ResolvedConfig,
    plugins: PluginHost,
    work: Callable[[Gateway], Awaitable[_T]],
    *,
    progress: Progress,
    why: str,
) -> _T:
    """Do *work* on a gateway that nobody can connect to.

    Args: progress: of the recovery; why: a gateway that runs is to be stopped first.
    Raises: StoreLockedError while one runs; ConfigError, PluginError, StoreError, OSError.
    """
    from tidegate.gateway import Gateway  # the broker is the bulk of the imports

    async def run() -> _T:
        gateway = Gateway(config, plugins, progress=progress, serves=False)
        await gateway.start()
        try:
            return await work(gateway)
        finally:
            await gateway.stop()

    try:
        return asyncio.run(run())
    except StoreLockedError as error:
        raise StoreLockedError(
            f"{error}; stop the gateway first: {why}", owner=error.owner
        ) from error


def carry(
    config: Path | None, name: str, timeout_s: float, progress: Progress
) -> Sequence[SinkStatus]:
    """Run all sinks, or the one with *name*, until they have every row that is acknowledged.

    Args: timeout_s: give up then; 0: never.
    Returns: how far they are, in the order of the configuration.
    Raises: ClientError when one stopped, or time was over; ConfigError, PluginError, StoreError, OSError.
    """

    async def carried(gateway: Gateway) -> Sequence[SinkStatus]:
        return await _until_carried(gateway, name, timeout_s, progress)

    return with_sinks(config, name, progress, carried)


def with_sinks(
    config: Path | None,
    name: str,
    progress: Progress,
    work: Callable[[Gateway], Awaitable[_T]],
) -> _T:
    """Start all sinks, or the one with *name*, while no gateway runs, do *work*, and stop them.

    Raises: StoreLockedError while one runs; ConfigError, PluginError, StoreError, OSError.
    """
    configure_logging(LogLevel.WARNING)
    plugins = PluginHost()
    resolved = resolve(load_config(config), plugins)
    if name not in ("", *(sink.name for sink in resolved.sinks)) or not resolved.sinks:
        known = ", ".join(sink.name for sink in resolved.sinks) or "none"
        which = f"no sink {name!r}" if name else "no sink"
        raise ConfigError(
            f"there is {which}; there are: {known}", path=str(config or ""), key="sinks"
        )

    async def started(gateway: Gateway) -> _T:
        await gateway.start_sinks(name)
        return await work(gateway)

    why = "a running gateway does this itself"
    return offline(resolved, plugins, started, progress=progress, why=why)


async def _until_carried(
    gateway: Gateway, name: str, timeout_s: float, progress: Progress
) -> Sequence[SinkStatus]:
    log, clock = gateway.broker.acknowledged_log, asyncio.get_running_loop().time
    began, left = clock(), dict[str, int]()
    while True:
        rows = [row for row in await log.statuses(0) if name in ("", row.name)]
        for row in rows:
            total = left.setdefault(row.name, row.lag_rows)
            progress(f"sink {row.name}", max(0, total - row.lag_rows), total)
        if all(_has_all(row) for row in rows):
            return rows
        stopped = [row for row in rows if row.health.state is SinkState.STOPPED]
        if stopped:
            raise ClientError(f"the sink {stopped[0].name} stopped: {stopped[0].health.problem}")
        if timeout_s and clock() - began >= timeout_s:
            behind = "; ".join(
                f"{row.name} is {row.lag_rows} rows behind"
                + (f" ({row.health.problem})" if row.health.problem else "")
                for row in rows
                if not _has_all(row)
            )
            raise ClientError(f"not finished after {timeout_s:g} s: {behind}")
        await asyncio.sleep(LOOK_S)


def _has_all(row: SinkStatus) -> bool:
    """It has said what its table holds, and that is everything."""
    return not row.lag_rows and row.health.state in (SinkState.RUNNING, SinkState.ASLEEP)
