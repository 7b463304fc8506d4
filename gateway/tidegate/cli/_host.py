"""What commands of plugins, and ``tidegate store``, get from the host: :class:`CommandHost`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from tidegate.cli import _show
from tidegate.cli.groups._asking import NoGatewayError, ask, connected
from tidegate.config import BrokerConfig, base_of, load_config, require_acknowledged_log, resolve
from tidegate.operator_socket import OperatorClient
from tidegate.plugins import PluginHost
from tidegate.spi import ConfigError, SinkContext, parse_options
from tidegate.spi.commands import ClientError, ConfiguredSink, ConfiguredStore, LogState
from tidegate.spi.commands import Progress as ProgressCall
from tidegate.spi.operate import ListSinks, LogRows, ReadLog, SinkList
from tidegate.spi.printable import printable

_RowT = TypeVar("_RowT")


class Host:
    """See :class:`tidegate.spi.commands.CommandHost`."""

    def store(self, config: Path | None) -> ConfiguredStore:
        """See CommandHost."""
        resolved = resolve(load_config(config), PluginHost())
        return ConfiguredStore(
            plugin=resolved.store.name,
            factory=resolved.store.factory,
            options=resolved.store.options,
            data_directory=resolved.broker.data_directory,
            gateway_name=resolved.broker.name,
            persistent=resolved.broker.persistent,
            disk_free_limit=resolved.broker.disk_free_limit,
        )

    def extension_options(self, config: Path | None, plugin: str) -> Sequence[object]:
        """See CommandHost."""
        tables = load_config(config).extensions
        wanted = [(index, table) for index, table in enumerate(tables) if table.plugin == plugin]
        if not wanted:
            return []
        options_type: type[object] = PluginHost().extension(plugin).options_type
        found: list[object] = []
        for index, table in wanted:
            try:
                found.append(
                    parse_options(options_type, table.options, base=base_of(str(config or "")))
                )
            except ConfigError as error:
                raise error.at(path=str(config or ""), prefix=f"extensions[{index}]") from None
        return found

    def sinks(self, config: Path | None, plugin: str, name: str = "") -> Sequence[ConfiguredSink]:
        """See CommandHost."""
        from tidegate.gateway import SINKS_DIRECTORY

        resolved = resolve(load_config(config), PluginHost())
        broker = resolved.broker
        found = [
            ConfiguredSink(
                sink.plugin,
                sink.factory,
                sink.options,
                SinkContext(
                    sink.name, broker.name, broker.data_directory / SINKS_DIRECTORY / sink.name
                ),
            )
            for sink in resolved.sinks
            if sink.plugin == plugin and name in ("", sink.name)
        ]
        if not found:
            which = f"{name!r} " if name else ""
            known = ", ".join(sink.name for sink in resolved.sinks if sink.plugin == plugin)
            raise ConfigError(
                f"there is no sink {which}with plugin = {plugin!r}"
                + (f"; there are: {known}" if known else ""),
                path=str(config or ""),
                key="sinks",
            )
        return found

    def log_state(self, config: Path | None) -> LogState:
        """See CommandHost."""
        store = self.store(config)
        try:
            with connected(config) as client:
                sinks = ask(client, ListSinks(), SinkList).rows
        except NoGatewayError:
            return asyncio.run(_log_state(store))
        if not sinks:
            raise ClientError("the running gateway has no sinks, and therefore no acknowledged log")
        first = min(sink.released for sink in sinks) + 1
        return LogState(sinks[0].store_id, first, sinks[0].last)

    def read_log(
        self,
        config: Path | None,
        after: int,
        through: int,
        take: Callable[[LogRows], None],
    ) -> None:
        """See CommandHost."""
        reading = _LogReading(after, through, take)
        try:
            while not reading.is_over:
                # A new connection for each page: the consumer may take longer than the gateway waits for us.
                with connected(config) as client:
                    found = ask(client, ReadLog(reading.after), LogRows)
                reading.take(found)
        except NoGatewayError:
            asyncio.run(_read_store(self.store(config), load_config(config).broker, reading))

    def operator(self, config: Path | None) -> OperatorClient:
        """See CommandHost."""
        return connected(config)

    def print_json(self, value: object) -> None:
        """See CommandHost."""
        _show.print_json(value)

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """See CommandHost."""
        _show.make_console().print(plain_table(headings, rows))

    def progress(self) -> ProgressCall:
        """See CommandHost."""
        return Bars()

    def export_store(self, store: ConfiguredStore, target: Path) -> Mapping[str, int]:
        """See CommandHost."""
        from tidegate.portable import export_store

        with Bars() as bars:
            return export_store(store, target, bars)

    def import_store(self, store: ConfiguredStore, source: Path) -> Mapping[str, int]:
        """See CommandHost."""
        from tidegate.portable import import_store

        with Bars() as bars:
            return import_store(store, source, bars)


async def _log_state(configured: ConfiguredStore) -> LogState:
    store = configured.create()
    state = await store.open()
    try:
        found = require_acknowledged_log(store, configured.plugin).log_statistics()
        return LogState(state.store_id, found.first, found.last)
    finally:
        await store.close()


class _LogReading:
    """How far the reading of a log is. Attributes: after: where it goes on; is_over: it has come to its end."""

    def __init__(self, after: int, through: int, take: Callable[[LogRows], None]) -> None:
        self.after = after
        self._through = through
        self._take = take
        self.is_over = after >= through

    def take(self, found: LogRows) -> None:
        rows = tuple(row for row in found.rows if row.ack_sequence <= self._through)
        damaged = tuple(row for row in found.damaged if row.ack_sequence <= self._through)
        if rows or damaged:
            self._take(LogRows(rows, found.through, damaged))
        self.is_over = found.through <= self.after or found.through >= self._through
        self.after = found.through


async def _read_store(
    configured: ConfiguredStore, broker: BrokerConfig, reading: _LogReading
) -> None:
    from tidegate.broker.limits.acknowledged import AcknowledgedLog
    from tidegate.broker.operate.log_rows import log_rows

    store = configured.create()
    await store.open()
    try:
        require_acknowledged_log(store, configured.plugin)
        log = AcknowledgedLog(store, broker)
        while not reading.is_over:
            reading.take(await log_rows(log, ReadLog(reading.after)))
    finally:
        await store.close()


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table as the other commands print it; numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, heading in enumerate(headings):
        values = [row[number] for row in rows]
        right = bool(values) and all(isinstance(value, (int, float)) for value in values)
        # The first column is not wrapped: it is what people copy.
        table.add_column(
            heading, justify="right" if right else "left", overflow="fold", no_wrap=number == 0
        )
    for row in rows:
        table.add_row(*(Text("" if value is None else printable(str(value))) for value in row))
    return table


def column_table(
    columns: Sequence[tuple[str, Callable[[_RowT], object]]], rows: Sequence[_RowT]
) -> Table:
    """The same, of rows that are one thing each. Args: columns: headings, and what each shows."""
    cells = [[value(row) for _, value in columns] for row in rows]
    return plain_table([heading for heading, _ in columns], cells)


class Bars:
    """Progress bars on stderr, one for each thing that goes on; silent when that is no terminal.

    Begins with the first call and ends with the context, or when everything has come to its total.
    """

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Draw how far *what* is; *total* 0 means unknown."""
        progress = self._progress
        if progress is None:
            return
        if what not in self._tasks:
            if not progress.live.is_started:
                progress.start()
            self._tasks[what] = progress.add_task(what, total=total or None)
        progress.update(self._tasks[what], completed=done, total=total or None)
        if progress.finished:
            progress.stop()

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Draw no more. Idempotent."""
        if self._progress is not None and self._progress.live.is_started:
            self._progress.stop()
