"""``tidegate run``: the event loop, the signals and the order in which they meet the gateway."""

from __future__ import annotations

import asyncio
import importlib
import logging
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidegate._collector import Collector
from tidegate._logging import LogFormat, Logging, LogLevel, configure_logging
from tidegate.cli._notify import ServiceManager
from tidegate.cli._progress import RecoveryProgress
from tidegate.config import (
    DESCRIPTORS_RESERVED,
    HIDDEN,
    BrokerConfig,
    ResolvedConfig,
    certificate_ends,
    certificate_problem,
    check_parts,
    load_config,
    option_values,
    resolve,
)
from tidegate.listening import begin_early
from tidegate.plugin_exit import EXITS, failure_of, package_that_ran
from tidegate.plugins import PluginHost
from tidegate.spi import RequestError
from tidegate.spi.private_files import WRITABLE, warn_of_others

if TYPE_CHECKING:
    from tidegate.gateway import Gateway

_log = logging.getLogger("tidegate.run")

#: How long a thread beside the event loop may keep the interpreter from it, seconds. Python's own 5 ms are ten
#: times what a small message takes from its publisher to its consumer.
SWITCH_S: Final = 0.0005

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Further files that a connection may have open: large messages being written or read for it.
_FILES_PER_CONNECTION: Final = 4


class RunFailed(Exception):  # noqa: N818 - carries an error, is not one
    """An error of a running gateway, with what is needed to say it well."""

    def __init__(self, error: Exception, config: ResolvedConfig) -> None:
        super().__init__(error, config)
        self.error = error
        self.config = config


def run_gateway(config: Path | None, log_level: LogLevel | None) -> None:
    """Run the gateway of the file *config*, or the embedded default, until it is stopped; blocks.

    Args: log_level: comes before that of the configuration.
    Raises: RunFailed around what a running gateway raises; what is wrong with the configuration.
    """
    log = configure_logging(log_level or LogLevel.INFO)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    plugins = PluginHost()
    loaded = load_config(config)
    change_log(log, loaded.broker, log_level)
    manager = ServiceManager()
    progress = RecoveryProgress()
    collector = Collector()
    resolved: ResolvedConfig | None = None

    async def made() -> Gateway:
        nonlocal resolved
        await begin_early((table.protocol for table in loaded.listeners), plugins)
        found = resolve(loaded, plugins)
        if config is not None:
            warn_of_configuration(config, found)
        check_parts(found)
        raise_descriptor_limit(found.broker.connections_max)
        # Only once the configuration is known to be good: the broker is the bulk of the imports.
        from tidegate.gateway import Gateway

        collector.take_over()
        resolved = found
        return Gateway(
            found, plugins, progress=progressed, changed=changed, standing_by=standing_by
        )

    def changed(broker: BrokerConfig) -> None:
        change_log(log, broker, log_level)
        raise_descriptor_limit(broker.connections_max)

    def started(gateway: Gateway) -> None:
        progress.close()
        sys.setswitchinterval(SWITCH_S)
        collector.begin(gateway.broker.accounts.in_memory, asyncio.get_running_loop().call_later)
        write_lines(start_lines(gateway.config, gateway.addresses, plugins), sys.stdout.write)
        sys.stdout.flush()

    def progressed(what: str, done: int, total: int) -> None:
        manager.recovering(f"{what}, {done} of {total or 'unknown'}")
        progress(what, done, total)

    def standing_by(owner: str, since: str) -> None:
        manager.standing_by(owner, since)
        progress.stands_by()

    try:
        run_until_signal(made, started, manager)
    except Exception as error:
        if resolved is None:
            raise
        raise RunFailed(error, resolved) from error
    finally:
        progress.close()
        manager.close()


def change_log(log: Logging, broker: BrokerConfig, given: LogLevel | None) -> None:
    """Write *log* as *broker* says. Args: given: on the command line."""
    log.change(given or LogLevel(broker.log_level), LogFormat(broker.log_format))


def warn_of_configuration(path: Path, config: ResolvedConfig) -> None:
    """Log when others can change the file, or read the secrets in it."""
    tables = [config.store.options]
    tables += [item.config.options for item in config.listeners]
    tables += [item.options for item in (*config.sinks, *config.extensions)]
    has_secrets = any(HIDDEN in str(option_values(table)) for table in tables)
    warn_of_others(path, "configuration", among=0o066 if has_secrets else WRITABLE)


def warn_of_certificates(config: ResolvedConfig) -> None:
    """Log each one that has expired or will soon. A running gateway does that itself."""
    now = time.time_ns() // 1000
    for certificate in certificate_ends(config):
        problem = certificate_problem(certificate, now)
        if problem:
            _log.warning("option=%s %s", certificate.key, problem)


def start_lines(config: ResolvedConfig, addresses: Iterable[str], plugins: PluginHost) -> list[str]:
    """What ``tidegate run`` says once it runs: one fact a line, ``word: value``."""
    broker = config.broker
    lines = [f"listening: {address}" for address in addresses]
    lines.append(f"store: {config.store.name}{'' if broker.persistent else ' (not persistent)'}")
    lines.append(f"data directory: {broker.data_directory if broker.persistent else 'none'}")
    sinks = (f"{sink.name} ({sink.plugin})" for sink in config.sinks)
    lines.append(f"sinks: {', '.join(sinks) or 'none'}")
    lines.append(f"plugins: {', '.join(plugins.loaded())}")
    return lines


class RunningGateway(Protocol):
    """What this module needs of :class:`tidegate.gateway.Gateway`."""

    async def start(self) -> None: ...
    async def wait(self) -> None: ...
    async def stop(self) -> None: ...
    async def reload(self) -> object: ...


def run_until_signal(
    make: Callable[[], Awaitable[RunningGateway]],
    started: Callable[[Any], None],
    manager: ServiceManager | None = None,
) -> None:
    """Run the gateway that *make* gives until SIGTERM, SIGINT or its own end; blocks.

    *make* is called on the event loop, which is uvloop's where that is installed. *started* is
    called with the gateway once it accepts connections.

    ``sys.exit()`` in a plugin's own task is what another exception there is: that task ends, and
    the log says whose it was. Where the host's own task is hit, the gateway stops cleanly.

    Raises: whatever starting raises; PluginExitError.
    """
    stop = asyncio.Event()
    serving: asyncio.Task[None] | None = None

    async def make_and_serve() -> None:
        gateway = await make()
        await serve(gateway, lambda: started(gateway), stop, manager)

    async def until_it_ends() -> None:
        nonlocal serving
        if serving is None:
            serving = asyncio.create_task(make_and_serve(), name="serve")
        await asyncio.wait((serving,))

    failure: Exception | None = None
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        while serving is None or not serving.done():
            try:
                runner.run(until_it_ends())
            except EXITS as error:
                whose = package_that_ran(error)
                if serving is None or (whose is None and isinstance(error, KeyboardInterrupt)):
                    raise  # Ctrl-C before there is a handler for it
                told = failure_of(error)
                if whose == "tidegate":
                    failure = failure or told
                    stop.set()
                else:
                    _log.error(
                        "a gateway task ended unexpectedly; the gateway keeps running: %s",
                        told,
                        exc_info=error,
                    )
        if failure is not None:
            raise failure
        try:
            serving.result()
        except EXITS as error:
            raise failure_of(error) from error


async def serve(
    gateway: RunningGateway,
    started: Callable[[], None],
    stop: asyncio.Event | None = None,
    manager: ServiceManager | None = None,
) -> None:
    """Start *gateway*, wait for a signal, stop it cleanly.

    The first signal stops, also while the gateway still recovers. From then on signals have their
    default effect, so a second one ends the process at once even when the loop is stuck; that is
    safe, because whatever was confirmed is on disk. SIGHUP lets it read its configuration anew, and
    never ends the process, at whatever moment it comes. To set *stop* is as good as a signal.
    """
    loop = asyncio.get_running_loop()
    stop, manager = stop or asyncio.Event(), manager or ServiceManager({})

    def on_signal(number: signal.Signals) -> None:
        for other in STOP_SIGNALS:
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)
        manager.stopping()
        _log.info("signal=%s: stopping; a second signal ends the process at once", number.name)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    wanted = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, wanted.set)
    reloading = asyncio.create_task(_reload_when(wanted, gateway, manager), name="reload")
    signalled = asyncio.create_task(stop.wait(), name="signal")
    try:
        if await _first(asyncio.create_task(gateway.start(), name="start"), signalled):
            started()
            manager.ready()
            await _first(asyncio.create_task(gateway.wait(), name="wait"), signalled)
            await gateway.stop()
    finally:
        signalled.cancel()
        reloading.cancel()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def _reload_when(
    wanted: asyncio.Event, gateway: RunningGateway, manager: ServiceManager
) -> None:
    """Reload at each SIGHUP; several that come while it reloads are one."""
    while True:
        await wanted.wait()
        wanted.clear()
        _log.info(
            "signal=SIGHUP: reloading the configuration, and the files that listeners "
            "and extensions use"
        )
        manager.reloading()
        try:
            await gateway.reload()
        except RequestError as error:
            _log.error("reload=refused: %s", error)
        except Exception:
            _log.exception("reload=failed: unexpected error")
        manager.reloaded()


async def _first(work: asyncio.Task[None], signalled: asyncio.Task[Any]) -> bool:
    """Wait for *work* or the signal; True when *work* finished. The one cut short is cancelled."""
    await asyncio.wait((work, signalled), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
        if work.cancelled():
            return False
    work.result()
    return True


def raise_descriptor_limit(connections_max: int) -> None:
    """Ask the system for as many file descriptors as *connections_max* needs; warn if it refuses.

    The usual soft limit of 1024 would make the thousandth client fail with a riddle. Where the hard
    limit allows it, large messages of all of them at once have their files, too: else those would
    take the descriptors that the store needs.
    """
    needed = connections_max + DESCRIPTORS_RESERVED
    wanted = needed + connections_max * _FILES_PER_CONNECTION
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if possible > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < needed:
        _log.warning(
            "descriptors=%d connections_max=%d: fewer clients can connect than configured; raise "
            "the hard limit (ulimit -Hn) or lower broker.connections_max",
            possible,
            connections_max,
        )


def write_lines(lines: Iterable[str], write: Callable[[str], object]) -> None:
    """Write *lines* at once, so that a reader of the pipe never sees half of them."""
    write("".join(f"{line}\n" for line in lines))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed (half the cost per message), else asyncio's own."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    return uvloop.new_event_loop
