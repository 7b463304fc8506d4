"""The gateway: puts store, broker, listeners and sinks together, and takes them apart again.

Order matters at both ends. Start: directory, store (recovery), broker, sinks, services of
extensions, the operator's socket, listeners: nobody can connect before everything behind the
listener works. Stop: listeners close to new clients, accepted work is made durable and confirmed,
clients are told, services stop, sinks get their last rows, the store closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate import __version__
from tidegate.broker import BrokerCore
from tidegate.broker.events import Events
from tidegate.broker.operate.authorized import Around
from tidegate.broker.operate.operations import Operations
from tidegate.config import certificate_ends, require_acknowledged_log, require_measured_store
from tidegate.listening import Listeners, logged
from tidegate.operator_desk import Desk
from tidegate.operator_parts import bridge_rows, heed_drain, plugin_rows, takers
from tidegate.operator_socket import OperatorSocket
from tidegate.plugin_exit import failure_is_named
from tidegate.reloading import Running, reload
from tidegate.spi import (
    ConfigError,
    FrontEnd,
    GatewayInfo,
    RecoveredState,
    RequestError,
    Resident,
    Service,
    ServingSink,
    Sink,
    SinkContext,
    StoreContext,
    StoreLockedError,
)
from tidegate.spi.clients.operators import Phase
from tidegate.spi.events import Event, log_only
from tidegate.spi.operate import BridgeRow, Reloaded
from tidegate.spi.private_files import make_private_directory, warn_of_others

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.config import BrokerConfig, ResolvedConfig
    from tidegate.plugins import PluginHost

_log = logging.getLogger("tidegate.gateway")

#: Cursors spool here; what an earlier run left is useless, because order and counts are gone. Emptied
#: at start, so the name must be unique: somebody may have written ``data_directory = "/var"``.
TEMPORARY_DIRECTORY: Final = "tidegate-tmp"
SINKS_DIRECTORY: Final = "sinks"


def _unheard(*_: object) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class RunningSink:
    """A sink and the name it runs under."""

    name: str
    sink: Sink


class Gateway:
    """One gateway on one event loop.

    Args:
        config: resolved against the installed plugins.
        plugins: told when the gateway starts and stops.
        progress: called with (what, done, total) while the store recovers.
        serves: False for an operator's command: store and broker only, nobody can connect.
        changed: told of ``[broker]`` when it changes.
        standing_by: told who has the store that is waited for, and since when; "" when it is ours. *progress* follows.

    Attributes:
        config: what runs; replaced by :meth:`reload`.
        addresses: by listener (its index in the configuration), the address it listens on.
        sink_addresses: of sinks that listen, by name.
        recovered: what opening the store returned.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        plugins: PluginHost,
        *,
        progress: Callable[[str, int, int], None] | None = None,
        serves: bool = True,
        changed: Callable[[BrokerConfig], None] = _unheard,
        standing_by: Callable[[str, str], None] = _unheard,
    ) -> None:
        self._serves = serves
        self._changed = changed
        self._standing_by = standing_by
        self.config = config
        self.addresses: list[str] = []
        self.sink_addresses: dict[str, str] = {}
        self.recovered: RecoveredState | None = None
        self._plugins = plugins
        self._progress = progress
        self._broker: BrokerCore | None = None
        self._listeners = Listeners()
        self._running: Running | None = None
        self._reloading = asyncio.Lock()
        self._services: list[Service] = []
        self._residents: list[Resident] = []
        self._sinks: list[RunningSink] = []
        self._operator_socket: OperatorSocket | None = None
        self._stopped = asyncio.Event()
        self._stopping = False
        self._woken = asyncio.Event()  # wakes those that wait for the end
        self._loss = ""
        self._borrowed: Path | None = None
        self._desk: Desk | None = None

    @property
    def broker(self) -> BrokerCore:
        """The broker core; the gateway must have been started."""
        assert self._broker is not None, "the gateway has not been started"
        return self._broker

    def info(self) -> GatewayInfo:
        return GatewayInfo(self.config.broker.name, __version__, tuple(self.addresses))

    async def start(self) -> None:
        """Recover, then listen.

        Raises: OSError (directory not writable, port in use), StoreError (locked, corrupt),
            ConfigError, PluginError. Whatever was started before is stopped again.
        """
        try:
            await self._start()
        except BaseException:
            await self._take_apart()
            raise
        if self._serves:
            self._plugins.announce_started(self.info())

    async def _start(self) -> None:
        config = self.config
        directory = config.broker.data_directory
        if config.broker.persistent:
            make_writable_directory(directory)
            temporary = directory / TEMPORARY_DIRECTORY
        else:
            self._borrowed = Path(tempfile.mkdtemp(prefix="tidegate-"))
            temporary = self._borrowed / TEMPORARY_DIRECTORY
        progress = self._progress or _log_progress

        def progressed(what: str, done: int, total: int) -> None:
            desk.progressed(what, done, total)
            progress(what, done, total)

        events, told = Events(), list[Event]()

        def tell_once(event: Event, text: str, *values: object) -> None:
            if event not in told:  # a store made of two may wait for each
                told.append(event)
                events.tell(event, _log, text, *values)

        def stands_by(owner: str) -> None:
            self._standing_by(owner, desk.stands_by(owner))
            if owner:
                tell_once(Event.STANDBY_BEGUN, "store=waiting owner=%s", owner)
            elif told:
                tell_once(
                    Event.TAKEN_OVER, "store=ours: this gateway waited for it and has taken over"
                )

        broker = BrokerCore(
            config.broker,
            config.store.factory.create(
                StoreContext(
                    data_directory=directory,
                    gateway_name=config.broker.name,
                    persistent=config.broker.persistent,
                    keep_acknowledged=bool(config.sinks),
                    may_stand_by=self._serves,
                    disk_free_limit=config.broker.disk_free_limit,
                    store_limit=config.broker.store_limit,
                    progress=progressed,
                    stands_by=stands_by,
                    lost=self._lost,
                    tell=events.tell,
                ),
                config.store.options,
            ),
            cursors=config.cursors,
            policies=[table.policy for table in config.policies],
            extensions=[item.instance for item in config.extensions],
            quotas=config.quotas,
            keeps_log=bool(config.sinks),
            temporary_directory=temporary,
            version=__version__,
            # Messages that are not stored take sequences too, and the store does not know of those.
            # The clock helps: a gateway that numbers less than a million messages a second never
            # catches up with it, so no message id is ever given out twice.
            sequence_floor=time.time_ns() // 1000,
            events=events,
        )
        desk = Desk(config.broker.name, self._borrowed or directory, broker, self.addresses)
        require_measured_store(broker.store, config.store.name, config.broker)
        if config.sinks:
            require_acknowledged_log(broker.store, config.store.name)
        if self._serves:
            self._desk = desk
            await self._listeners.prepare(config.listeners, broker, desk)
        try:
            with failure_is_named(f"store-{config.store.name}", "open()"):
                self.recovered = await broker.start()
        except ConfigError as error:
            # Found only by opening the store, such as a statement that its database refuses.
            raise error.at(path=config.path, prefix="store") from error.__cause__
        self._broker, desk.phase = broker, Phase.STARTING
        text = "store=open pending=%d queues=%d last_sequence=%d"
        pending = broker.store.statistics().pending_messages
        queues = len(broker.destinations.queues)
        self._tell(Event.STORE_RECOVERED, text, pending, queues, self.recovered.last_sequence)
        broker.limits.overflows.announce = self._plugins.announce_overflow
        broker.slow_consumers.announce = self._plugins.announce_slow
        broker.acknowledged_log.announce = self._plugins.announce_filling
        broker.disk.announce = self._plugins.announce_shortage
        broker.bridges = self._bridges
        broker.draining.heed = lambda stage: heed_drain(self._residents, stage)
        # Only now: the store's lock says that no other gateway uses the directory.
        await asyncio.to_thread(_empty_directory, temporary)
        if not self._serves:
            return
        await self.start_sinks()
        for item in config.extensions:
            if isinstance(item.instance, Service):
                with failure_is_named(f"extension-{item.name}", "start()"):
                    await item.instance.start(broker.rights_changed)
                self._services.append(item.instance)
        desk.operator = Operations(broker, self._around())
        if config.broker.persistent:  # otherwise it has no directory
            operator_socket = OperatorSocket(desk.operator, directory)
            await operator_socket.start()
            self._operator_socket = operator_socket
        for item, running in zip(config.sinks, self._sinks, strict=True):
            if isinstance(running.sink, ServingSink):
                with failure_is_named(f"sink-{item.plugin}", "serve()"):
                    address = await running.sink.serve(broker)
                self.sink_addresses[item.name] = address
                _log.info("sink=%s listening address=%s", item.name, address)
        broker.certificates.known = await asyncio.to_thread(certificate_ends, config)
        await self._listeners.start()
        self.addresses[:] = self._listeners.addresses
        for item in config.extensions:
            if isinstance(item.instance, Resident):
                self._residents.append(item.instance)
                with failure_is_named(f"extension-{item.name}", "move_in()"):
                    await item.instance.move_in(broker)
        self._running = Running(
            config, self._plugins, broker, self._listeners, self._residents, self._changed
        )
        for address in self.addresses:
            self._tell(Event.LISTENER_ADDED, "listener=%s accepts connections", address)
        self._tell(Event.GATEWAY_STARTED, "listeners=%d started", len(self.addresses))
        broker.certificates.look(broker.now())
        desk.phase = Phase.RUNNING

    def _bridges(self) -> list[BridgeRow]:
        return bridge_rows(self._residents)

    def _around(self) -> Around:
        """What operators see that the broker does not know."""
        return Around(
            listeners=lambda: self.addresses,
            plugins=lambda: plugin_rows(self.config, self._plugins),
            bridges=self._bridges,
            takes_queues=lambda: takers(self._residents),
            reload=lambda check_only: self.reload(check_only=check_only),
        )

    async def start_sinks(self, only: str = "") -> None:
        """Start all sinks, or *only* one; the log keeps what the others have not got.

        Part of :meth:`start` for a gateway that serves; otherwise a command may call it. Raises: as :meth:`start`.
        """
        # All readers first: otherwise a started sink could release rows that the next one, which has
        # no reader yet, never saw.
        config, broker = self.config, self.broker
        readers = [broker.acknowledged_log.reader(item.name) for item in config.sinks]
        for item, reader in zip(config.sinks, readers, strict=True):
            if only not in ("", item.name):
                continue
            sink_directory = config.broker.data_directory / SINKS_DIRECTORY / item.name
            make_private_directory(sink_directory)
            sink = item.factory.create(
                SinkContext(
                    item.name,
                    config.broker.name,
                    sink_directory,
                    config.authenticates,
                    self._plugins.announce_lag,
                ),
                item.options,
            )
            reader.sink = sink
            self._sinks.append(RunningSink(item.name, sink))
            with failure_is_named(f"sink-{item.plugin}", "start()"):
                await sink.start(reader)

    async def wait(self) -> None:
        """Wait until :meth:`stop` has finished.

        Raises: StoreLockedError when another gateway owns the store; then this one has stopped.
        """
        await self._woken.wait()
        await self.stop()
        if self._loss:
            raise StoreLockedError(f"{self._loss}; this gateway has stopped: restart it")

    def _lost(self, problem: str) -> None:
        """See StoreContext.lost."""
        if not self._loss:
            text = (
                "store=lost: the gateway is stopping and confirms nothing more: %s; "
                "restart it, and it will wait on standby"
            )
            self._tell(Event.STORE_LOST, text, problem)
            self._loss = problem
            self._woken.set()

    async def reload(self, *, check_only: bool = False) -> Reloaded:
        """Read the configuration file again and apply what can change: :mod:`tidegate.reloading`.

        Cancellation: it is carried out all the same. Raises: RequestError; then nothing has changed.
        """
        return await asyncio.shield(asyncio.create_task(self._reload(check_only), name="reload"))

    async def _reload(self, check_only: bool) -> Reloaded:
        async with self._reloading:
            running = self._running
            if running is None or self._stopping:
                raise RequestError("the gateway is starting or stopping; nothing was changed")
            before = set(self.addresses)
            try:
                found = await reload(running, check_only=check_only)
            except RequestError as error:
                if not check_only:
                    self._tell(Event.CONFIGURATION_REFUSED, "reload=refused: %s", error)
                raise
            self.config = running.config
            self.addresses[:] = self._listeners.addresses
        if not check_only:
            self._tell_reloaded(found, before)
        return found

    def _tell_reloaded(self, found: Reloaded, before: set[str]) -> None:
        """Args: before: addresses of listeners."""
        for change in found.changed:
            _log.info("key=%s %s", change.key, change.what)
        for change in found.left:
            _log.warning("key=%s %s", change.key, change.what)
        text = "reload=done changed=%d not_changed=%d"
        self._tell(Event.CONFIGURATION_RELOADED, text, len(found.changed), len(found.left))
        for address in sorted(before.difference(self.addresses)):
            self._tell(Event.LISTENER_REMOVED, "listener=%s no longer accepts connections", address)
        for address in sorted(set(self.addresses) - before):
            self._tell(Event.LISTENER_ADDED, "listener=%s accepts connections", address)

    def _tell(self, event: Event, text: str, *values: object) -> None:
        """Tell an event of a gateway whose store is, or was, open."""
        tell = log_only if self._broker is None else self._broker.events.tell
        tell(event, _log, text, *values)

    @property
    def _front_ends(self) -> list[FrontEnd]:
        """As the configuration has them."""
        return [listening.front_end for listening in self._listeners]

    async def stop(self) -> None:
        """Stop cleanly: no new work, accepted work confirmed, clients told. Idempotent."""
        if self._stopping:
            await self._stopped.wait()
            return
        self._stopping = True
        if self._serves:
            self._tell(Event.GATEWAY_STOPPING, "listeners=%d stopping", len(self.addresses))
            self._plugins.announce_stopping(self.info())
        try:
            await self._take_apart()
        finally:
            self._stopped.set()
            self._woken.set()

    async def _take_apart(self) -> None:
        """Stop all that runs; an error in one part must not keep the others from stopping."""
        if self._desk is not None:
            self._desk.phase, self._desk.operator = Phase.STOPPING, None
        if self._operator_socket is not None:
            with logged("closing the operator's socket"):
                await self._operator_socket.stop()
        async with self._reloading:  # let a reload under way finish
            await self._listeners.stop_accepting()
        for running in self._sinks:
            if isinstance(running.sink, ServingSink):
                with logged(f"ending the readers of sink {running.name}"):
                    await running.sink.stop_serving()
        for resident in reversed(self._residents):
            with logged(f"ending {resident}"):
                await resident.move_out()
        if self._broker is not None:
            with logged("ending the connections"):
                await self._broker.end_connections()
        await self._listeners.stop()
        for service in reversed(self._services):
            with logged(f"stopping {service}"):
                await service.stop()
        for running in self._sinks:
            with logged(f"stopping sink {running.name}"):
                await running.sink.stop()
        if self._broker is not None:
            with logged("closing the store"):
                await self._broker.stop()
        if self._borrowed is not None:
            await asyncio.to_thread(shutil.rmtree, self._borrowed, ignore_errors=True)


def make_writable_directory(directory: Path) -> None:
    """Create *directory* where needed, for this user alone. Raises: PermissionError or another OSError naming it."""
    try:
        make_private_directory(directory)
    except PermissionError:
        raise
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if is_file else error.strerror
        problem = f"cannot create the data directory (broker.data_directory): {reason}"
        raise OSError(error.errno, problem, str(directory)) from error
    warn_of_others(directory, "data directory")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(13, "the data directory is not writable", str(directory))


def _empty_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    make_private_directory(directory)


def _log_progress(what: str, done: int, total: int) -> None:
    _log.info("recovery=%s done=%d total=%d", what, done, total)
