"""The listeners of a gateway: started, replaced while it runs, stopped.

They are replaced all together or not at all: the new ones bind first, and if one of them cannot, the old ones
listen as before. Clients of a listener that stays notice nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.config import Bind
from tidegate.plugin_exit import FAILURES, exit_is_error, failure_is_named
from tidegate.spi import ConnectionEndedError, FrontEnd, GatewayError, PluginError
from tidegate.spi.clients.operators import OperatorDesk, OperatorFrontEnd

if TYPE_CHECKING:
    from tidegate.broker import BrokerCore
    from tidegate.broker.connection.connection import Connection
    from tidegate.config import ResolvedListener
    from tidegate.plugins import PluginHost

_log = logging.getLogger("tidegate.gateway")

#: Clients disconnected before others get their turn.
_ENDED_AT_ONCE: Final = 50


async def begin_early(protocols: Iterable[str], plugins: PluginHost) -> None:
    """Let listeners of these *protocols* begin with what takes long, while all else is looked up and imported.

    Faults of a plugin or the configuration are reported when that is resolved.
    """
    for protocol in protocols:
        try:
            factory = plugins.front_end(protocol)
        except PluginError:
            continue
        begin: Callable[[], Awaitable[None]] | None = getattr(factory, "begin", None)
        if begin is not None:
            with exit_is_error(f"protocol-{protocol}"):
                await begin()


@dataclass(slots=True, eq=False)
class Listening:
    """One listener. Attributes: item: its configuration; address: "" before it has started; is_begun: it
    must be stopped."""

    item: ResolvedListener
    front_end: FrontEnd
    address: str = ""
    is_begun: bool = False

    @property
    def bind(self) -> Bind:
        return Bind(self.item.config.host, self.item.config.port)

    async def start(self) -> None:
        """Raises: OSError, GatewayError."""
        self.is_begun = True
        with failure_is_named(f"protocol-{self.item.config.protocol}", "start()"):
            self.address = await self.front_end.start()


@dataclass(slots=True)
class Exchange:
    """What replaces what. Attributes: kept: with their present configuration; left: operators' listeners
    that differ; order: of all, as in the file."""

    added: list[Listening] = field(default_factory=list["Listening"])
    removed: list[Listening] = field(default_factory=list["Listening"])
    kept: list[Listening] = field(default_factory=list["Listening"])
    left: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    order: list[Listening] = field(default_factory=list["Listening"])
    clients: dict[Listening, list[Connection]] = field(
        default_factory=dict["Listening", "list[Connection]"]
    )

    def is_changed(self, added: Listening) -> bool:
        """It replaces one on the same address."""
        return any(old.bind == added.bind for old in self.removed)


class Listeners:
    """See the module. On the event loop."""

    def __init__(self) -> None:
        self._all: list[Listening] = []
        self._retired: list[FrontEnd] = []  # they have clients, and another listens in their place
        self._leaving: set[asyncio.Task[None]] = set()
        self._broker: BrokerCore | None = None

    @property
    def addresses(self) -> list[str]:
        return [listening.address for listening in self._all]

    def __iter__(self) -> Generator[Listening]:
        yield from self._all

    async def prepare(
        self, items: Sequence[ResolvedListener], broker: BrokerCore, desk: OperatorDesk
    ) -> None:
        """Make them, and start those for operators. Raises: ConfigError, OSError."""
        self._broker = broker
        for item in items:
            made = Listening(item, item.factory.create(item.config, broker))
            self._all.append(made)
            if isinstance(made.front_end, OperatorFrontEnd):
                made.is_begun = True
                with failure_is_named(f"protocol-{item.config.protocol}", "prepare()"):
                    await made.front_end.prepare(desk)

    async def start(self) -> None:
        """Raises: OSError, GatewayError."""
        for listening in self._all:
            await listening.start()

    # --- others in their place -------------------------------------------------------------------

    def plan(self, items: Sequence[ResolvedListener]) -> Exchange:
        """What must be done so that *items* listen. Raises: ConfigError."""
        assert self._broker is not None, "they are prepared first"
        found, there = Exchange(), list(self._all)
        for item in items:
            same = next((old for old in there if old.item.config == item.config), None)
            if same is not None:
                there.remove(same)
                found.kept.append(same)
                found.order.append(same)
                continue
            made = Listening(item, item.factory.create(item.config, self._broker))
            if isinstance(made.front_end, OperatorFrontEnd):
                what = (
                    f"an operators' listener on {made.bind} is added or changed at the next start"
                )
                found.left.append((item.key, what))
                continue
            found.added.append(made)
            found.order.append(made)
        for old in there:
            if isinstance(old.front_end, OperatorFrontEnd):
                found.order.append(old)
                if all(old.item.key != key for key, _ in found.left):
                    what = f"{old.address} is for operators, and is removed at the next start"
                    found.left.append(("listeners", what))
            else:
                found.removed.append(old)
        return found

    async def begin(self, exchange: Exchange) -> None:
        """Bind what is added. Raises: OSError, GatewayError; then everything is as before."""
        started: list[Listening] = []
        closed: list[Listening] = []
        in_the_way = [
            old
            for old in exchange.removed
            if any(old.bind.overlaps(new.bind) for new in exchange.added)
        ]
        later = [
            new for new in exchange.added if any(new.bind.overlaps(old.bind) for old in in_the_way)
        ]
        try:
            for new in exchange.added:
                if new not in later:
                    started.append(new)
                    await new.start()
            for old in in_the_way:
                closed.append(old)
                await old.front_end.stop_accepting()
                exchange.clients[old] = self._clients_of(old)
            for new in later:
                started.append(new)
                await new.start()
        except BaseException:
            for new in started:
                with logged(f"taking back {new.bind}"):
                    await new.front_end.stop()
            for old in closed:
                await self._listen_again(old)
            raise

    def finish(self, exchange: Exchange, items: Sequence[ResolvedListener]) -> None:
        """What was begun takes effect; removed listeners end gradually, with their clients. Cannot fail."""
        by_config = [(item, item.config) for item in items]
        for kept in exchange.kept:  # its place in the file may have changed
            match = next((pair for pair in by_config if pair[1] == kept.item.config), None)
            if match is not None:
                by_config.remove(match)
                kept.item = match[0]
        self._all = exchange.order
        for old in exchange.removed:
            clients = exchange.clients.get(old)
            task = asyncio.create_task(self._leave(old, clients), name=f"close {old.address}")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def _clients_of(self, listening: Listening) -> list[Connection]:
        assert self._broker is not None
        return [one for one in self._broker.connections if one.listener == listening.address]

    async def _listen_again(self, old: Listening) -> None:
        """Bind its address again with another listener made like it; its clients go on."""
        assert self._broker is not None
        self._retired.append(old.front_end)
        try:
            old.front_end = old.item.factory.create(old.item.config, self._broker)
            await old.start()
        except FAILURES:
            _log.exception(
                "address=%s is no longer listening: it could not be bound again", old.address
            )
            self._all.remove(old)

    async def _leave(self, old: Listening, clients: list[Connection] | None) -> None:
        """Keep what its clients were promised, tell them, and end it."""
        assert self._broker is not None
        with logged(f"closing {old.address}"):
            await old.front_end.stop_accepting()
        if clients is None:
            clients = self._clients_of(old)
        for client in clients:
            client.hold()
        with contextlib.suppress(GatewayError):
            await self._broker.until_durable()
        text = f"the listener {old.address} was removed or changed; connect again"
        for count, client in enumerate(clients, 1):
            client.end(ConnectionEndedError("administrative", text))
            if not count % _ENDED_AT_ONCE:
                await asyncio.sleep(0)
        with logged(f"closing {old.address}"):
            await old.front_end.stop()
        _log.info("address=%s closed clients=%d", old.address, len(clients))

    # --- the end ---------------------------------------------------------------------------------

    async def stop_accepting(self) -> None:
        """Accept no new connections. Idempotent."""
        for listening in self._begun():
            with logged("closing a listener"):
                await listening.front_end.stop_accepting()

    async def stop(self) -> None:
        """Close what is left. Idempotent."""
        for front_end in [*self._retired, *[listening.front_end for listening in self._begun()]]:
            with logged("closing connections"):
                await front_end.stop()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _begun(self) -> list[Listening]:
        return [listening for listening in self._all if listening.is_begun]


@contextlib.contextmanager
def logged(what: str) -> Generator[None]:
    """An error in one part must not keep the others from stopping."""
    try:
        yield
    except FAILURES:
        _log.exception("%s failed", what)
